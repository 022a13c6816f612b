package netconn

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// fill admits requests of size bytes until the account rejects one, and returns the number of admitted bytes.
func fill(a *Account, size int) (admitted int) {
	for a.Admit(size) {
		admitted += size
	}
	return admitted
}

func TestSingleConnectionHoldsHalf(t *testing.T) {
	const limit = 24 << 20
	a := NewBudget(limit, nil).Open("", nil)
	got, want := fill(a, 1<<10), limit*7/8/2
	if got > want || got < want-2<<10 {
		t.Errorf("got %d bytes, want %d", got, want)
	}
	harness.Equal(t, a.Over(), false, "Over before Add")
	a.Add(4 << 10)
	harness.Equal(t, a.Over(), true, "Over after Add")
}

func TestSmallConnectionIsAdmittedUnderAttack(t *testing.T) {
	const request = 16 << 10
	for _, attackers := range []int{1, 4, 16, 64, 300} {
		b := NewBudget(24<<20, nil)
		for range attackers {
			var a *Account
			a = b.Open("", func() { a.Sub(int(a.used.Load())); a.Close() })
			fill(a, request)
		}
		for range 100 {
			a := b.Open("", nil)
			if !a.Await(small) { // Await waits until the connections that are being closed release their memory
				t.Fatalf("%d attackers: another connection cannot hold %d bytes", attackers, small)
			}
			a.Sub(int(a.used.Load()))
			a.Close()
		}
	}
}

func TestRejectedSmallConnectionClosesLargestConnection(t *testing.T) {
	const limit = 24 << 20
	b := NewBudget(limit, nil)
	accounts, closed := closers(b, 2)
	accounts[0].Add(limit)
	harness.Until(t, "the first connection is closed", func() bool { return closed(0) })
	accounts[0].Sub(limit)
	accounts[1].Add(limit + 1<<20) // the first account is being closed and will release its bytes
	accounts[0].Close()
	harness.Equal(t, b.Open("", nil).Admit(small), true, "Admit of another connection")
	harness.Until(t, "the second connection is closed", func() bool { return closed(1) })
}

func TestSmallConnectionsShareTheLimit(t *testing.T) {
	const limit = 1 << 20
	const charged = limit / chargedFraction / ConnectionBytes * ConnectionBytes
	all, closed := closers(NewBudget(limit, nil), 100)
	admitted := 0
	for _, a := range all {
		if a.Admit(small / 2) {
			admitted += small / 2
		}
	}
	harness.Equal(t, admitted, limit-charged, "bytes of the requests")
	for i := range all {
		harness.Equal(t, closed(i), false, "connection is closed")
	}
}

// closers opens accounts that record whether they were closed.
func closers(b *Budget, n int) (accounts []*Account, closed func(int) bool) {
	var mu sync.Mutex
	ended := make([]bool, n)
	for i := range n {
		accounts = append(accounts, b.Open("peer", func() {
			mu.Lock()
			defer mu.Unlock()
			ended[i] = true
		}))
	}
	return accounts, func(i int) bool {
		mu.Lock()
		defer mu.Unlock()
		return ended[i]
	}
}

func TestExhaustedBudgetClosesLargestConnection(t *testing.T) {
	bounds := bound.NewRecorder()
	b := NewBudget(16<<20, bounds)
	all, closed := closers(b, 3)
	all[0].Add(4 << 20)
	all[1].Add(8 << 20)
	all[2].Add(4 << 20)
	harness.Until(t, "the largest connection is closed", func() bool { return closed(1) })
	harness.Equal(t, bounds.Count(bound.Memory), 1, "events")

	all[2].Add(7 << 20) // all connections except the one that is being closed hold 15 MiB
	harness.Equal(t, closed(0) || closed(2), false, "another connection is closed")
	all[2].Add(1 << 20)
	harness.Until(t, "the next connection is closed", func() bool { return closed(2) })
	harness.Equal(t, closed(0), false, "smallest connection is closed")
}

// The connection of an ingress serves many ordinary requests, and other clients use the rest of the
// budget for waiting requests.
func TestSharedConnectionIsNotClosed(t *testing.T) {
	const limit, request, shared, others = 24 << 20, 12 << 10, 200, 3000
	b := NewBudget(limit, nil)
	all, closed := closers(b, others+1)
	all[0].Serve(shared)
	for range shared {
		harness.Equal(t, all[0].Admit(request), true, "request of the shared connection")
	}
	admitted := 0
	for _, a := range all[1:] {
		if a.Admit(request) {
			admitted++
		}
	}
	const charged = limit / chargedFraction // memory that the connections themselves use
	if want := (limit-charged)/request - shared; admitted != want {
		t.Errorf("got %d requests of other connections, want %d", admitted, want)
	}
	all[1].Add(small) // exceeds the limit
	harness.Until(t, "the connection with the most memory is closed", func() bool {
		all[1].Add(1) // not every addition scans the accounts
		return closed(1)
	})
	harness.Equal(t, closed(0), false, "shared connection is closed")
}

func TestConnectionWithMostMemoryPerRequestIsClosed(t *testing.T) {
	b := NewBudget(16<<20, nil)
	all, closed := closers(b, 3)
	all[0].Serve(400)
	all[0].Add(400 * 12 << 10)
	all[1].Serve(4)
	all[1].Add(4 << 20)
	all[2].Serve(250)
	all[2].Add(250 * 24 << 10)
	harness.Equal(t, closed(0) || closed(1) || closed(2), false, "connection within the budget is closed")
	all[2].Add(1 << 20)
	harness.Until(t, "the connection with long requests is closed", func() bool { return closed(1) })
	all[0].Add(4 << 20)
	harness.Until(t, "the largest connection with ordinary requests is closed", func() bool { return closed(0) })
	harness.Equal(t, closed(2), false, "smaller connection is closed")
}

func TestClosedConnectionFreesBudget(t *testing.T) {
	b := NewBudget(16<<20, nil)
	all, closed := closers(b, 2)
	all[0].Add(16 << 20)
	harness.Until(t, "the connection is closed", func() bool { return closed(0) })
	all[0].Sub(16 << 20)
	all[0].Close()
	used, limit := b.Usage()
	harness.Equal(t, used, 0, "used bytes")
	harness.Equal(t, limit, 16<<20, "limit")
	all[1].Add(14 << 20)
	harness.Equal(t, closed(1), false, "connection within the budget is closed")
	all[1].Add(2 << 20)
	harness.Until(t, "the connection is closed", func() bool { return closed(1) })
}

func TestSmallConnectionStaysOpenBelowTheLimit(t *testing.T) {
	const limit = 1 << 20
	b := NewBudget(limit, nil)
	all, closed := closers(b, limit/small)
	for _, a := range all { // the connections themselves exceed the limit
		a.Add(limit / len(all))
	}
	for i := range all {
		harness.Equal(t, closed(i), false, "connection is closed")
	}
	all[0].Add(1)
	harness.Until(t, "the largest connection is closed", func() bool { return closed(0) })
}

// The tunnels of the attackers make progress, and the connections themselves are charged.
func TestSmallConnectionStaysOpenWithManyTunnels(t *testing.T) {
	const limit, tunnels, others, bytes = 24 << 20, 250, 10, 128 << 10
	b := NewBudget(limit, nil)
	all, closed := closers(b, tunnels+others)
	for _, a := range all[tunnels:] {
		a.Add(small / 2)
	}
	for _, a := range all[:tunnels] {
		for range progress + 1 {
			a.Add(bytes)
			a.Sub(bytes)
		}
	}
	for _, a := range all[:tunnels] {
		a.Add(bytes)
	}
	harness.Until(t, "a tunnel is closed", func() bool {
		for i := range tunnels {
			if closed(i) {
				return true
			}
		}
		return false
	})
	for i := range others {
		harness.Equal(t, closed(tunnels+i), false, "small connection is closed")
	}
}

// The user container does not read the uploads.
func TestStalledConnectionIsClosedForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, request = 24 << 20, 48 << 10
		b := NewBudget(limit, nil)
		upload := b.Open("", func() { t.Error("connection with progress is closed") })
		upload.Add(request)
		for {
			var a *Account
			a = b.Open("", func() { a.Sub(request); a.Close() })
			if !a.Admit(request) {
				break
			}
		}
		time.Sleep(2 * stalledTime)
		b.Open("", nil)
		time.Sleep(clockInterval)
		upload.Progress(1)
		harness.Equal(t, b.Open("", nil).Await(small), true, "another connection is admitted")
		synctest.Wait()
	})
}

// The clock is not updated before the connection makes progress.
func TestStallTimeExcludesTimeBeforeProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(24<<20, nil)
		a := b.Open("", nil)
		stall := func() int64 {
			b.mu.Lock()
			defer b.mu.Unlock()
			return a.stall(b.tick())
		}
		time.Sleep(10 * stalledTime)
		a.Progress(1)
		for range 2 {
			time.Sleep(clockInterval)
			if got := time.Duration(stall()); got > 2*clockInterval {
				t.Errorf("stalled for %v, want at most %v", got, 2*clockInterval)
			}
		}
		for range stalledTime / clockInterval {
			time.Sleep(clockInterval)
			stall()
		}
		if got := time.Duration(stall()); got < stalledTime {
			t.Errorf("stalled for %v, want at least %v", got, stalledTime)
		}
	})
}

func TestAwaitLimitIgnoresEmptyAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, _ := closers(NewBudget(1<<20, nil), 2)
		all[0].Add(2 << 20)
		began := time.Now()
		all[1].AwaitLimit()
		harness.Equal(t, time.Since(began), 0, "time")
	})
}

func TestConnectionWithProgressIsClosedLast(t *testing.T) {
	const limit = 1 << 20
	b := NewBudget(limit, nil)
	all, closed := closers(b, 17)
	for range progress {
		all[0].Add(100 << 10)
		all[0].Sub(100 << 10)
	}
	all[0].Add(90 << 10)
	for _, a := range all[1:] {
		a.Add(60 << 10)
	}
	harness.Until(t, "another connection is closed", func() bool {
		for i := range all {
			if closed(i) {
				return true
			}
		}
		return false
	})
	harness.Equal(t, closed(0), false, "connection with progress is closed")
}

func TestAwaitWaitsForMemory(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration // time until the other connection releases its memory
		want  bool
	}{"memory is released": {awaitTime / 2, true}, "memory is released too late": {awaitTime + maxPoll, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBudget(1<<20, nil)
				other, a := b.Open("", nil), b.Open("", nil)
				other.Add(900 << 10)
				time.AfterFunc(test.after, func() { other.Sub(900 << 10) })
				harness.Equal(t, a.Await(200<<10), test.want, "admitted")
				time.Sleep(2 * awaitTime)
				used, _ := b.Usage()
				harness.Equal(t, used > 0, test.want, "bytes are added")
			})
		})
	}
}

func TestAwaitLimitWaitsForRelease(t *testing.T) {
	for name, test := range map[string]struct {
		used     int           // usage of the other connection, in bytes
		released bool          // the other connection is closed after awaitTime / 2
		want     time.Duration // duration of the wait, with a tolerance of maxPoll
	}{
		"sum is at the limit":    {1 << 20, false, 0},
		"memory is released":     {2 << 20, true, awaitTime / 2},
		"memory is not released": {2 << 20, false, awaitTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBudget(1<<20, nil)
				all, _ := closers(b, 2)
				all[0].Add(test.used - 1)
				all[1].Add(1)
				if test.released {
					time.AfterFunc(awaitTime/2, func() { all[0].Sub(test.used) })
				}
				began := time.Now()
				all[1].AwaitLimit()
				if got := time.Since(began); got < test.want || got > test.want+maxPoll {
					t.Errorf("got %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestClosingConnectionDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1<<20, nil)
		all, closed := closers(b, 1)
		all[0].Add(2 << 20)
		synctest.Wait()
		harness.Equal(t, closed(0), true, "connection is closed")
		began := time.Now()
		all[0].AwaitLimit()
		harness.Equal(t, all[0].Await(1), false, "admitted")
		harness.Equal(t, time.Since(began), 0, "time")
	})
}

func TestNilBudgetHasNoLimit(t *testing.T) {
	var b *Budget
	a := b.Open("", nil)
	a.Add(1 << 30)
	harness.Equal(t, a.Admit(1<<30) && a.Await(1<<30) && !a.Over() && !a.Scarce(), true, "admitted")
	a.AwaitLimit()
	harness.Equal(t, a.Set(0, 5), 5, "bytes")
	a.Sub(1 << 30)
	a.Close()
	used, limit := b.Usage()
	harness.Equal(t, used+limit, 0, "usage")
}

func TestConcurrentUseKeepsTheSum(t *testing.T) {
	b := NewBudget(0, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			a := b.Open("", nil)
			defer a.Close()
			for range 1000 {
				if a.Admit(100) {
					a.Sub(100)
				}
				a.Sub(a.Set(a.Set(0, 700), 300))
			}
		})
	}
	all.Wait()
	used, limit := b.Usage()
	harness.Equal(t, used, 0, "used bytes")
	harness.Equal(t, limit, Unlimited, "limit")
}

func TestManyConnectionsReduceBudget(t *testing.T) {
	const limit = 24 << 20
	b := NewBudget(limit, nil)
	const free = limit / freeFraction / ConnectionBytes
	const charged = limit / chargedFraction / ConnectionBytes
	var accounts []*Account
	for n, want := range map[int]int64{free: 0, free + 100: 100, free + charged + 1: charged, free + charged + 100: charged} {
		for len(accounts) < n {
			accounts = append(accounts, b.Open("", nil))
		}
		for len(accounts) > n {
			accounts[len(accounts)-1].Close()
			accounts = accounts[:len(accounts)-1]
		}
		used, _ := b.Usage()
		harness.Equal(t, used, want*ConnectionBytes, fmt.Sprint("bytes of ", n, " connections"))
	}
	harness.Equal(t, accounts[0].Await(small), true, "request is admitted")
	accounts[0].Sub(small)
	for _, a := range accounts {
		a.Close()
	}
	used, _ := b.Usage()
	harness.Equal(t, used, int64(0), "bytes after all connections were closed")
}

// The test closes the first connections, for which no memory was charged when they were opened.
func TestOpenConnectionsDetermineChargedMemory(t *testing.T) {
	const limit, free, more = 24 << 20, 24 << 20 / freeFraction / ConnectionBytes, 100
	b := NewBudget(limit, nil)
	all, _ := closers(b, free+more)
	for _, a := range all[:more] {
		a.Close()
	}
	used, _ := b.Usage()
	harness.Equal(t, used, int64(0), "bytes of the remaining connections")
	_, _ = closers(b, more)
	used, _ = b.Usage()
	harness.Equal(t, used, more*ConnectionBytes, "bytes after other connections were opened")
}

// On a busy machine, closed connections release their memory with a delay, and new connections could
// use it in the meantime.
func TestClosingConnectionsLimitNewConnections(t *testing.T) {
	const limit, request, connections = 24 << 20, 16 << 10, 180
	b := NewBudget(limit, nil)
	for range connections {
		a := b.Open("", func() {}) // an account that never releases its memory
		fill(a, request)
		a.Add(request) // the budget is exhausted
	}
	const want = limit + limit/closingFraction + connections*request
	if used, _ := b.Usage(); used > want {
		t.Errorf("connections hold %d bytes, want at most %d", used, want)
	}
}

func TestBufferSizeDependsOnFreeMemory(t *testing.T) {
	const size = 64 << 10
	var unlimited *Account
	harness.Equal(t, unlimited.BufferSize(size), size, "without a budget")
	for _, c := range []struct{ own, others, want int }{
		{0, 0, size},
		{3 << 20, 0, size},
		{4 << 20, 0, size / 2},  // a quarter of the share of the connection
		{8 << 20, 0, size / 16}, // half of the share
		{0, 11 << 20, size / 2},
		{0, 16 << 20, size / 16},
	} {
		b := NewBudget(20<<20, nil)
		a, other := b.Open("", nil), b.Open("", nil)
		a.Add(c.own)
		other.Add(c.others)
		harness.Equal(t, a.BufferSize(size), c.want, "with", c.own, "bytes of the connection and", c.others, "bytes of others")
	}
}
