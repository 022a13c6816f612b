package message

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestTallyReportsAllItemsOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []uint64
		tally := Tally{Report: func(items uint64) { reports = append(reports, items) }}
		for range 90 {
			tally.Add(2)
			time.Sleep(700 * time.Millisecond)
		}
		synctest.Wait()
		harness.Equal(t, reports, []uint64{4, 172}, "reports while items are lost")
		time.Sleep(time.Hour)
		synctest.Wait()
		harness.Equal(t, reports, []uint64{4, 172, 4}, "reports after the last item")

		tally.Add(5)
		tally.Flush()
		tally.Flush()
		time.Sleep(time.Hour)
		harness.Equal(t, reports, []uint64{4, 172, 4, 5}, "reports after Flush")
	})
}

func TestTallyEndFollowsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []uint64
		tally := Tally{Report: func(items uint64) { reports = append(reports, items) }}
		harness.Equal(t, tally.End(), 0, "End without items")
		tally.Add(3)
		harness.Equal(t, tally.End(), 0, "End before the report")
		time.Sleep(2 * tallyDelay)
		tally.Add(4)
		harness.Equal(t, tally.End(), 7, "End after the report")
		harness.Equal(t, tally.End(), 0, "second End")
		time.Sleep(time.Hour)
		synctest.Wait()
		harness.Equal(t, reports, []uint64{3}, "reports")
	})
}
