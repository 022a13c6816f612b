// This file limits the memory that the requests of all client connections use while the requests
// are being read or are waiting.
//
// Each connection has an [Account]. The engines add the bytes that a request holds to the account,
// and subtract these bytes when the request releases them. An account does not allocate or free
// memory. The following steps keep the sum below the limit of the [Budget]:
//
//   - [Account.Admit] returns false if the connection holds more than its share. The engine
//     then rejects the request with the reason overload. [Account.Await] waits for memory first.
//   - [Account.Over] reports true for such a connection. The engine then reads more slowly.
//   - If the sum is close to the limit, the connection with the most memory per request is closed.
//   - If the sum exceeds the limit, [Account.AwaitLimit] waits until the closed connections have
//     released their memory.
//
// The share of each connection is the free memory. A single connection can therefore use half of the budget. The
// share does not limit a connection that uses little memory. If such a connection needs memory and the budget is
// exhausted, a connection that uses more memory is closed. Therefore, a client with few requests is served even if
// other clients use the whole budget. A connection with an upload that makes progress is closed last.
//
// A connection from an ingress or from the activator carries the requests of many clients. For this reason,
// connections are compared by their memory per request. Such a connection is not closed if the budget is used by
// many connections that use little memory.
//
// If the connections themselves need more than a fourth of the budget, they are also charged to the budget, so that
// less memory remains for their requests.

package netconn

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

const (
	// MemoryFraction is the ratio of the memory limit to the budget. The rest of the memory is for
	// the process itself, idle connections, buffers and garbage.
	MemoryFraction = 2
	// Unlimited is the budget in bytes of a process without a memory limit.
	Unlimited = 1 << 30
	// small is the number of bytes up to which a connection is closed only if the sum exceeds the limit. It is also
	// the number of bytes that each connection can hold while other connections use the whole budget.
	small = 64 << 10
	// medium is the usage in bytes up to which a connection is not limited by its share. A single upload over HTTP/2
	// and TLS uses less memory.
	medium = 192 << 10
	// progress is the ratio of released bytes to held bytes above which a connection is considered to make progress.
	progress = 4
	// ordinary is the maximum number of bytes of an ordinary request. A request over HTTP/2 with a
	// header section of 16 KiB uses less memory.
	ordinary = 32 << 10
	// ConnectionBytes is the estimated memory in bytes of a client connection without requests. An
	// idle TLS connection needs up to 30 KB (docs/bounds.md).
	ConnectionBytes = 32 << 10
	// Open connections can use limit/freeFraction bytes without being charged.
	freeFraction = 4
	// At most limit/chargedFraction bytes are charged for the connections themselves. The rest of
	// the budget remains for the requests.
	chargedFraction = 2
	// stalledTime is the time without progress after which a connection that holds more than
	// ordinary bytes per request can be closed, so that another connection is served. It is shorter
	// than awaitTime, so that Await can use the memory that this connection releases.
	stalledTime = awaitTime / 2
	// clockInterval is the minimum time between two updates of the clock.
	clockInterval = 100 * time.Millisecond
	// maxClockInterval is the maximum time between two updates of the clock. If more time has
	// passed, the time of the previous calls to Add, Sub and Progress is unknown.
	maxClockInterval = 2 * clockInterval
	// While connections are being closed, the sum may exceed the limit by up to
	// limit/closingFraction bytes.
	closingFraction = 4
	// After a scan has found no connection to close, the next skippedScans additions above the
	// trigger do not start a scan.
	skippedScans = 64
	// awaitTime is the maximum time that Await and AwaitLimit wait. Other requests usually release
	// memory within milliseconds.
	awaitTime = time.Second
	// minPoll and maxPoll are the minimum and maximum time between two checks of a waiting connection.
	minPoll = time.Millisecond
	maxPoll = 32 * time.Millisecond
)

// A Budget limits the memory of all requests. It is safe for concurrent use. A nil Budget means no limit.
type Budget struct {
	limit  int64
	soft   int64 // sum at which the share of a connection is 0; the rest is for small connections
	hard   int64 // sum at which connections are closed
	bounds *bound.Recorder

	used    atomic.Int64
	trigger atomic.Int64 // sum at which reclaim is called: hard plus the bytes of ending accounts
	urgent  atomic.Int64 // sum at which reclaim is called even if skips is positive
	begin   time.Time
	clock   atomic.Int64 // nanoseconds since begin; updated when an account is opened or closed, and by reclaim
	skips   atomic.Int64 // number of further additions between trigger and urgent that do not call reclaim

	mu       sync.Mutex
	before   int64 // previous value of clock
	resumed  int64 // clock at the last update that was at least maxClockInterval after the previous update; 0 if there was none
	accounts map[*Account]struct{}
	charged  int64 // number of bytes in used that are charged for the connections themselves
}

// An Account counts the memory that one connection uses. It is safe for concurrent use. A nil Account means no
// limit.
type Account struct {
	budget *Budget
	peer   string
	end    func()
	used   atomic.Int64
	served atomic.Int64 // number of requests that are being served
	ending atomic.Bool  // end was called; set while budget.mu is held

	released atomic.Int64 // total number of bytes passed to Sub or Progress since Open
	moved    atomic.Int64 // value of budget.clock at the last call to Add, Sub or Progress
}

// NewBudget returns a budget of limit bytes. If limit is not positive, the budget is [Unlimited]. If
// bounds is not nil, it records the connections that are closed.
func NewBudget(limit int64, bounds *bound.Recorder) *Budget {
	if limit <= 0 {
		limit = Unlimited
	}
	b := &Budget{limit: limit, soft: limit - limit/8, hard: limit - limit/16, bounds: bounds, begin: time.Now()}
	b.accounts = make(map[*Account]struct{})
	b.trigger.Store(b.hard)
	b.urgent.Store(b.limit)
	return b
}

// Usage returns the number of bytes that requests and charged connections hold, and the limit in bytes.
func (b *Budget) Usage() (used, limit int64) {
	if b == nil {
		return 0, 0
	}
	return b.used.Load(), b.limit
}

// Open returns the account of a connection. peer is the address of the peer. end closes the
// connection. The budget calls end at most once, on a separate goroutine. If b is nil, Open returns
// nil.
func (b *Budget) Open(peer string, end func()) *Account {
	if b == nil {
		return nil
	}
	a := &Account{budget: b, peer: peer, end: end}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tick()
	a.moved.Store(b.clock.Load())
	b.accounts[a] = struct{}{}
	b.chargeConnections()
	return a
}

// chargeConnections charges the memory of the open connections to the budget. The first limit/freeFraction bytes are
// not charged, and the charge is at most limit/chargedFraction bytes. b.mu must be held.
func (b *Budget) chargeConnections() {
	excess := int64(len(b.accounts))*ConnectionBytes - b.limit/freeFraction
	charged := min(max(excess, 0), b.limit/chargedFraction)
	b.used.Add(charged - b.charged)
	b.charged = charged
}

// Close removes the account. All bytes must have been subtracted.
func (a *Account) Close() {
	if a == nil {
		return
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tick()
	delete(b.accounts, a)
	b.chargeConnections()
	if a.ending.Load() {
		b.setTriggers(b.endingBytes(), b.limit)
	}
}

// Serve sets the number of requests that the connection is serving. A connection that serves one request at a time does
// not have to call it.
func (a *Account) Serve(requests int) {
	if a != nil {
		a.served.Store(int64(requests))
	}
}

// perRequest returns the number of bytes that the connection holds for each request.
func (a *Account) perRequest() int64 { return a.used.Load() / max(a.served.Load(), 1) }

// Admit adds n bytes and returns true if the connection can hold them. Otherwise, it adds
// nothing and returns false.
func (a *Account) Admit(n int) bool {
	if a == nil {
		return true
	}
	b, used := a.budget, a.used.Load()+int64(n)
	if !b.admits(used, b.used.Load()+int64(n)) {
		// The sum can exceed the limit without a call to reclaim, because a connection can release its bytes before its
		// account is closed. While connections wait, the clock is updated, so that stalled connections are found.
		if used > medium || b.skips.Add(-1) >= 0 && !b.clockDue() {
			return false
		}
		b.reclaim()
		if !b.admits(used, b.used.Load()+int64(n)) {
			return false
		}
	}
	a.Add(n)
	return true
}

// admits reports whether a connection can hold used bytes if all connections hold total bytes. A connection that
// holds at most medium bytes can also use the memory of connections that are being closed. The total is limited,
// because those connections release their memory with a delay on a busy machine.
func (b *Budget) admits(used, total int64) bool {
	if used <= b.soft-total {
		return true
	}
	ending := b.trigger.Load() - b.hard
	return used <= medium && total-ending <= b.limit && total <= b.limit+b.limit/closingFraction
}

// Over reports whether the connection holds more memory than its share.
func (a *Account) Over() bool {
	return a != nil && !a.budget.admits(a.used.Load(), a.budget.used.Load())
}

// Await is like Admit, but waits up to awaitTime until the connection can hold the bytes. It returns false
// immediately if the connection is being closed.
func (a *Account) Await(n int) bool {
	return a.Admit(n) || a.wait(func() bool { return a.Admit(n) })
}

// Scarce reports whether more than half of the budget is used. The engines then read fewer bytes at a
// time, because read buffers are not part of the budget and many connections can read concurrently.
func (a *Account) Scarce() bool { return a != nil && a.budget.used.Load() > a.budget.limit/2 }

// BufferSize returns the size in bytes of a buffer that stays in use until a slow peer has read its content. It
// returns size/16 if more than three quarters of the budget or half of the connection's share are used. It returns
// size/2 if more than half of the budget or a quarter of the share is used, and size otherwise. This keeps the memory
// of many slow requests below the budget. Unlike [Account.Scarce], BufferSize also depends on the connection, because
// one connection can carry many slow requests.
func (a *Account) BufferSize(size int) int {
	if a == nil {
		return size
	}
	b := a.budget
	used, total := a.used.Load(), b.used.Load()
	share := b.soft - total
	switch {
	case total > b.limit-b.limit/4 || used > share/2:
		return size / 16
	case total > b.limit/2 || used > share/4:
		return size / 2
	}
	return size
}

// AwaitLimit waits up to awaitTime if the total usage is above the limit and connections are being closed, so that
// those connections can release their memory first. Without the wait, the usage would continue to grow. AwaitLimit
// does not wait if the connection holds no memory, so that its next request is served.
func (a *Account) AwaitLimit() {
	if a == nil {
		return
	}
	if b := a.budget; a.used.Load() > 0 && b.used.Load() > b.limit && b.trigger.Load() > b.hard {
		a.wait(func() bool { return b.used.Load() <= b.hard })
	}
}

// wait waits until ready returns true. It returns false after awaitTime, or if the connection is being closed.
func (a *Account) wait(ready func() bool) bool {
	poll := minPoll
	for left := awaitTime; left > 0 && !a.ending.Load(); poll = min(2*poll, maxPoll) {
		time.Sleep(poll)
		left -= poll
		if ready() {
			return true
		}
	}
	return false
}

// Add adds n bytes that the connection must hold. If the budget is exhausted, the connection
// with the most memory per request is closed.
func (a *Account) Add(n int) {
	if a == nil || n == 0 {
		return
	}
	a.used.Add(int64(n))
	b := a.budget
	a.moved.Store(b.clock.Load())
	sum, trigger := b.used.Add(int64(n)), b.trigger.Load()
	if sum <= trigger {
		return
	}
	if sum > b.urgent.Load() || b.skips.Add(-1) < 0 {
		b.reclaim()
	}
}

// Sub subtracts n bytes that were added.
func (a *Account) Sub(n int) {
	if a == nil || n == 0 {
		return
	}
	a.used.Add(-int64(n))
	a.released.Add(int64(n))
	a.moved.Store(a.budget.clock.Load())
	a.budget.used.Add(-int64(n))
}

// Progress records that n bytes of content were forwarded. A connection whose upload makes progress is closed last.
func (a *Account) Progress(n int) {
	if a != nil {
		a.released.Add(int64(n))
		a.moved.Store(a.budget.clock.Load())
	}
}

// tick returns the time since begin in nanoseconds and updates the clock. b.mu must be held.
func (b *Budget) tick() (now int64) {
	now = int64(time.Since(b.begin))
	if clock := b.clock.Load(); now-clock >= int64(clockInterval) {
		if now-clock >= int64(maxClockInterval) {
			b.resumed = now
		}
		b.before = clock
		b.clock.Store(now)
		b.skips.Store(0) // scan the accounts again, because another connection may be stalled
	}
	return now
}

// clockDue reports whether the clock must be updated.
func (b *Budget) clockDue() bool {
	return time.Since(b.begin)-time.Duration(b.clock.Load()) >= clockInterval
}

// stall returns the time without progress, in nanoseconds. It returns 0 if the account has made progress since the
// second-to-last update of the clock. The time before a late update does not count, because the account may have
// moved bytes during this time. budget.mu must be held.
func (a *Account) stall(now int64) int64 {
	moved := a.moved.Load()
	if moved >= a.budget.before {
		return 0
	}
	return now - max(moved, a.budget.resumed)
}

// Set changes the number of bytes that are charged for one object from held to n, and returns n.
func (a *Account) Set(held, n int) int {
	if n > held {
		a.Add(n - held)
	} else {
		a.Sub(held - n)
	}
	return n
}

// reclaim closes connections until the others hold at most b.hard bytes. It begins with the connection that
// uses the most memory per request.
func (b *Budget) reclaim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	ending, urgent, now := b.endingBytes(), b.limit, b.tick()
	for sum := b.used.Load() - ending; sum > b.hard; sum = b.used.Load() - ending {
		a := b.victim(sum, now)
		if a == nil {
			b.skips.Store(skippedScans)
			if sum > b.limit { // the connections themselves exceed the limit
				urgent = min(sum+ordinary, max(sum, b.limit+b.charged))
			}
			break
		}
		a.ending.Store(true)
		ending += a.used.Load()
		b.bounds.Hit(bound.Memory, a.peer)
		go a.end()
	}
	b.setTriggers(ending, urgent)
}

// setTriggers sets the sums at which reclaim is called. ending is the number of bytes of the connections that are
// being closed. urgent does not include ending. b.mu must be held.
func (b *Budget) setTriggers(ending, urgent int64) {
	b.trigger.Store(b.hard + ending)
	b.urgent.Store(urgent + ending)
}

// endingBytes returns the bytes of the connections that are being closed. b.mu must be held.
func (b *Budget) endingBytes() (n int64) {
	for a := range b.accounts {
		if a.ending.Load() {
			n += a.used.Load()
		}
	}
	return n
}

// victim returns the connection to be closed next, or nil if no connection should be closed. sum is the number of
// bytes without the connections that are being closed. now is the time returned by tick. b.mu must be held.
//
// Connections are closed in this order:
//
//  1. The connection with the most bytes per request, if it holds more than medium bytes and more than
//     ordinary bytes per request.
//  2. The connection that has been stalled for the longest time, for example because the user container does not read
//     an upload. The client may have disconnected, because a disconnect is not detected while the connection has
//     unread input.
//  3. The connection with the most bytes. It must hold more than medium bytes, or it must hold more than
//     small bytes and make no progress. It is not closed if small connections, connections with progress
//     and the memory of the connections themselves use half of the budget, because they are then the cause
//     of the shortage.
//  4. If the sum exceeds the limit, the connection with the most bytes per request. Connections with progress and
//     connections without progress form two groups, and the connection is selected from the group that uses more
//     memory. Otherwise many tunnels could cause a small connection to be closed. If the sum exceeds the limit
//     because of the memory of the connections themselves, small connections are not closed, because this would
//     release little memory.
//
// Steps 1 to 3 also apply below the limit, so that small connections are served.
func (b *Budget) victim(sum, now int64) *Account {
	s := b.survey(now)
	switch {
	case s.large.account != nil && s.large.perRequest > ordinary:
		return s.large.account
	case s.stalled != nil:
		return s.stalled
	case s.large.account != nil && s.workingBytes+s.smallBytes+b.charged <= b.limit/2:
		return s.large.account
	case sum <= b.limit:
		return nil
	}
	next := s.idle
	if next.account == nil || s.workingBytes > s.smallBytes+s.mediumBytes {
		next = s.working
	}
	if sum-b.charged <= b.limit && next.perRequest <= small {
		return nil
	}
	return next.account
}

// A survey is the result of comparing all connections, except those that are being closed. A
// working connection makes progress and holds at most medium bytes. An idle connection makes no
// progress and holds at most medium bytes.
type survey struct {
	stalled *Account // connection with the longest stall time; nil if no stall time reaches stalledTime
	large   heaviest // heaviest among connections with more than medium bytes and idle connections with more than small bytes
	working heaviest // heaviest working connection
	idle    heaviest // heaviest idle connection

	workingBytes int64 // number of bytes held by working connections
	smallBytes   int64 // number of bytes held by idle connections with at most small bytes
	mediumBytes  int64 // number of bytes held by idle connections with more than small bytes
}

// survey compares all connections. now is the time returned by tick. b.mu must be held.
func (b *Budget) survey(now int64) (s survey) {
	for a := range b.accounts {
		if a.ending.Load() {
			continue
		}
		used, perRequest, stall := a.used.Load(), a.perRequest(), a.stall(now)
		// Stall times can be equal because of b.resumed, so the times of the last progress are compared.
		if stall >= int64(stalledTime) && perRequest > ordinary && (s.stalled == nil || a.moved.Load() < s.stalled.moved.Load()) {
			s.stalled = a
		}
		switch {
		case used > medium:
			s.large.add(a, max(perRequest, ordinary), used)
		case a.released.Load() > progress*used && stall < int64(stalledTime):
			s.working.add(a, perRequest, used)
			s.workingBytes += used
		case used > small:
			s.large.add(a, ordinary, used) // not perRequest, because a single upload can exceed ordinary
			s.idle.add(a, perRequest, used)
			s.mediumBytes += used
		default:
			s.idle.add(a, perRequest, used)
			s.smallBytes += used
		}
	}
	return s
}

// heaviest is the connection with the most bytes per request, and among equal connections, the one with the most bytes
// in total.
type heaviest struct {
	account          *Account
	perRequest, used int64
}

func (h *heaviest) add(a *Account, perRequest, used int64) {
	if h.account == nil || perRequest > h.perRequest || perRequest == h.perRequest && used > h.used {
		*h = heaviest{a, perRequest, used}
	}
}
