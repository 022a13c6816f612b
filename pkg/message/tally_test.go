package message

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// reports records the calls to Tally.Report.
type reports struct {
	mu    sync.Mutex
	items []uint64
	errs  []error
}

func (r *reports) add(items uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.items, r.errs = append(r.items, items), append(r.errs, err)
}

// check waits until all goroutines are blocked and compares the reports.
func (r *reports) check(t *testing.T, what string, want ...uint64) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	harness.Equal(t, r.items, want, "reports", what)
}

func TestTallyReportsAllItemsOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got reports
		tally := Tally{Report: got.add}
		for range 90 {
			tally.Add(2, nil)
			time.Sleep(700 * time.Millisecond)
		}
		got.check(t, "while items are lost", 4, 172)
		time.Sleep(time.Hour)
		got.check(t, "after the last item", 4, 172, 4)

		tally.Add(5, nil)
		tally.Flush()
		tally.Flush()
		time.Sleep(time.Hour)
		got.check(t, "after Flush", 4, 172, 4, 5)
	})
}

func TestTallyEndFollowsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got reports
		var restored []uint64
		tally := Tally{Report: got.add, Restored: func(items uint64) { restored = append(restored, items) }}
		tally.End()
		tally.Add(3, nil)
		tally.End()
		harness.Equal(t, restored, nil, "before the report")
		time.Sleep(2 * tallyDelay)
		tally.Add(4, nil)
		tally.End()
		harness.Equal(t, restored, []uint64{7}, "after the report")
		tally.End()
		harness.Equal(t, restored, []uint64{7}, "after the second End")
		time.Sleep(time.Hour)
		got.check(t, "after the end", 3)
	})
}

func TestTallyEndFollowsBlockedReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := make(chan struct{})
		var restored []uint64
		tally := Tally{Report: func(uint64, error) { <-written }, Restored: func(items uint64) { restored = append(restored, items) }}
		tally.Add(3, nil)
		time.Sleep(2 * tallyDelay)
		synctest.Wait()
		tally.End()
		harness.Equal(t, restored, nil, "while the report is written")
		close(written)
		synctest.Wait()
		tally.End()
		harness.Equal(t, restored, []uint64{3}, "after the report")
	})
}

func TestTallyReportsLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usual, failed := errors.New("full"), errors.New("failed")
		var got reports
		tally := Tally{Report: got.add, Usual: usual}
		for _, errs := range [][]error{{nil}, {errors.New("first"), failed, nil}, {nil}} {
			for _, err := range errs {
				tally.Add(1, err)
			}
			tally.Flush()
		}
		tally.Add(1, failed)
		tally.End()
		tally.Add(1, nil)
		tally.Flush()
		got.check(t, "all", 1, 3, 1, 1)
		harness.Equal(t, got.errs, []error{usual, failed, usual, usual}, "errors")
	})
}

func TestTallyAddDoesNotAllocate(t *testing.T) {
	var tally Tally
	tally.Add(1, nil)
	defer tally.Flush()
	harness.Equal(t, testing.AllocsPerRun(100, func() { tally.Add(1, nil) }), 0, "allocations")
}
