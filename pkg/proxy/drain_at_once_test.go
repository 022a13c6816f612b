package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
)

// When the drain begins, a waiting queue probe is answered immediately, and not after the check of
// the user container (docs/promises.md 3.5).
func TestDrainBeginAnswersWaitingProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{
			Drain: NewDrain(DrainSettings{}),
			Ready: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		}
		for range 2 { // the second drain begins after the first was undone
			x := newFake("/", knative.Probe, knative.QueueValue)
			answered := make(chan answer)
			go func() { answered <- p.answerProbe(observation.QueueProbe, x) }()
			synctest.Wait()
			p.Drain.Begin(false)
			if a := <-answered; a.status != 503 || a.body != "shutting down\n" {
				t.Errorf("got %d %q, want 503 shutting down", a.status, a.body)
			}
			time.Sleep(2 * time.Second)
			if p.Drain.Draining() {
				t.Error("got a running drain, want no running drain after undoAfter")
			}
		}
	})
}
