package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// audit waits until the sidecar holds no resources for completed requests: no slots are in use,
// no requests are queued, the concurrency in the statistics is 0, and the number of goroutines
// and files has increased by at most extra. Each test that attacks an HTTP engine calls audit
// after the clients have disconnected.
func (p *proxy) audit(before footprint, extra int) {
	p.t.Helper()
	p.poll("slots are released", func() error {
		var page struct {
			Drain            struct{ InFlight int }
			Running, Waiting int
		}
		answer, err := http.Get("http://" + local(p.port.status) + "/status.json")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if err := json.NewDecoder(answer.Body).Decode(&page); err != nil {
			return err
		}
		if n := page.Drain.InFlight + page.Running + page.Waiting; n > 0 {
			return fmt.Errorf("got %+v, want no request", page)
		}
		return nil
	})
	p.poll("the statistics return to zero", func() error { // wait, because the statistics cover the last full second
		s, err := p.tryStat()
		if err == nil && s.concurrency > 0 {
			err = fmt.Errorf("got an average of %v concurrent requests, want 0", s.concurrency)
		}
		return err
	})
	p.awaitReleased("after all clients left", before, extra)
}

// auditAtEnd registers audit as a cleanup function of the test. auditAtEnd must be called
// before the test creates clients, so that audit runs after they are closed.
func (p *proxy) auditAtEnd() {
	p.t.Helper()
	const extra = 30 // number of goroutines and files that connections to the user container may use
	before := p.footprint()
	p.t.Cleanup(func() {
		if !p.ended() {
			p.audit(before, extra)
		}
	})
}
