package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// Somebody who waits for readiness notices the drain at once, not when the run
// has ended (docs/promises.md 3.5).
func TestDrainBeginAnswersWaitingProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{
			Drain: NewDrain(DrainSettings{}),
			Ready: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		}
		for range 2 { // the second time after one that was undone
			x := newFake("/", header.Probe, header.QueueValue)
			answered := make(chan Answer)
			go func() { answered <- p.answerProbe(header.QueueProbe, x) }()
			synctest.Wait()
			p.Drain.Begin(false)
			if a := <-answered; a.Status != 503 || a.Body != "shutting down\n" {
				t.Errorf("got %d %q, want 503 shutting down", a.Status, a.Body)
			}
			time.Sleep(2 * time.Second)
			if p.Drain.Draining() {
				t.Error("got draining, want it undone")
			}
		}
	})
}
