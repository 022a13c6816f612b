package message

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// reports records the calls of Tally.Report.
type reports struct {
	mu    sync.Mutex
	items []uint64
}

func (r *reports) add(items uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.items = append(r.items, items)
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
			tally.Add(2)
			time.Sleep(700 * time.Millisecond)
		}
		got.check(t, "while items are lost", 4, 172)
		time.Sleep(time.Hour)
		got.check(t, "after the last item", 4, 172, 4)

		tally.Add(5)
		tally.Flush()
		tally.Flush()
		time.Sleep(time.Hour)
		got.check(t, "after Flush", 4, 172, 4, 5)
	})
}

func TestTallyEndFollowsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got reports
		tally := Tally{Report: got.add}
		harness.Equal(t, tally.End(), 0, "End without items")
		tally.Add(3)
		harness.Equal(t, tally.End(), 0, "End before the report")
		time.Sleep(2 * tallyDelay)
		tally.Add(4)
		harness.Equal(t, tally.End(), 7, "End after the report")
		harness.Equal(t, tally.End(), 0, "second End")
		time.Sleep(time.Hour)
		got.check(t, "after the end", 3)
	})
}
