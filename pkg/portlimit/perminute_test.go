package portlimit_test

import (
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/portlimit"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestManyEventsAreOneLineAMinute(t *testing.T) {
	var p portlimit.PerMinute
	at := time.Now()
	for i, row := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {0, 0}, {59 * time.Second, 0}, {time.Minute, 3}, {119 * time.Second, 0}, {time.Hour, 2}} {
		harness.Equal(t, p.Add(at.Add(row.after)), row.want, "event", i+1, "after", row.after, "in a line")
	}
}
