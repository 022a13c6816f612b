package portlimit

import (
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestAcceptancePausesForATenthOfTheTimeAtMost(t *testing.T) {
	var p pauses
	begin := time.Now()
	now := begin
	var paused time.Duration
	for now.Sub(begin) < time.Minute { // as much as it may, again and again
		pause := p.left(now)
		p.spend(now, now.Add(pause))
		paused += pause
		now = now.Add(pause + time.Millisecond)
	}
	if most := grace + now.Sub(begin)/10; paused > most {
		t.Errorf("it paused for %v of %v, want at most %v", paused, now.Sub(begin), most)
	}
	harness.Equal(t, p.left(now.Add(time.Hour)), grace, "after an hour")
}
