package metrics

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A moment is when something first happened, counted from the start of the
// process in nanoseconds; 0: it has not. It is safe for concurrent use.
type moment struct{ at atomic.Int64 }

// first notes that it happened so long after the start.
func (m *moment) first(after time.Duration) {
	n := max(1, int64(after))
	for {
		known := m.at.Load()
		if known != 0 && known <= n || m.at.CompareAndSwap(known, n) {
			return
		}
	}
}

// state is what our own metrics say about the sidecar itself.
type state struct {
	start time.Time // of the process

	// The way to the first answer, in the order in which it is hoped for.
	listening, firstProbe, firstReady, firstRequest moment

	flaps   prometheus.Counter
	answers *table[histogram]
}

// first notes that something happened at a time.
func (s *state) first(m *moment, at time.Time) { m.first(at.Sub(s.start)) }

// placeOfReady is the place of a readiness answer in "yes", "no".
func placeOfReady(ready bool) int {
	if ready {
		return 0
	}
	return 1
}

func newState(r *registry, o *Options) *state {
	s := &state{start: o.Start}
	addLoad(r, &o.Gauges)
	s.addReadiness(r, o)
	s.addStartup(r)
	addRest(r, o)
	return s
}

func addLoad(r *registry, g *Gauges) {
	if g.Load != nil {
		r.gauge(runningRequests, "Requests that are in the user container now.",
			always(func() float64 { running, _ := g.Load(); return float64(running) }))
		r.gauge(waitingRequests, "Requests that wait for a slot now.",
			always(func() float64 { _, waiting := g.Load(); return float64(waiting) }))
	}
	if g.OldestWaiter != nil {
		r.gauge(oldestWaiterAgeSeconds, "How long the first in line has been waiting; 0 when nobody waits.", always(func() float64 {
			since := g.OldestWaiter()
			if since.IsZero() {
				return 0
			}
			return max(0, time.Since(since).Seconds())
		}))
	}
	if g.Limit != nil {
		r.gauge(concurrencyLimit, "How many requests may be in the user container at once; 0 is any number.",
			always(func() float64 { running, _ := g.Limit(); return float64(running) }))
		r.gauge(queueLimit, "How many requests may wait for a slot; absent without a limit on concurrency.",
			sometimes(func() (float64, bool) { running, waiting := g.Limit(); return float64(waiting), running > 0 }))
	}
	if g.Adaptive != nil {
		r.gauge(concurrencyLimitReason, "1 for the reason why an adaptive limit is what it is; absent where the limit is fixed.", func(add func(float64, ...string)) {
			if state, adaptive := g.Adaptive(); adaptive {
				add(1, string(state.Reason))
			}
		}, "reason")
	}
	if g.Advice != nil {
		r.gauge(advisedLimit, "Which limit on concurrency would have been right, by how sure that is; absent where it cannot be told.", func(add func(float64, ...string)) {
			if a := g.Advice(); a.Limit > 0 {
				add(float64(a.Limit), string(a.Sure))
			}
		}, "sure")
	}
}

func (s *state) addReadiness(r *registry, o *Options) {
	if ready := o.Gauges.Ready; ready != nil {
		r.gauge(readyGauge, "1 when a readiness probe is answered with success, 0 when with failure.",
			always(func() float64 { yes, _ := ready(); return number(yes) }))
		r.gauge(notReadyReason, "1 for the reason why not; absent when ready.", func(add func(float64, ...string)) {
			yes, word := ready()
			if !slices.Contains(o.NotReadyReasons, word) {
				word = "other"
			}
			if !yes {
				add(1, word)
			}
		}, "reason")
	}
	s.flaps = r.counters(readinessFlapsTotal, "How often the user container has become unready after it had been ready.").WithLabelValues()
	s.answers = histogramsOf(r.histograms(readinessAnswersSeconds, "How long a readiness probe waited for its answer, by the answer.",
		seconds(), "ready"), dim("yes", "no"))
	if draining := o.Gauges.Draining; draining != nil {
		r.gauge(drainingGauge, "1 while the pod is ending, else 0.", always(func() float64 { return number(draining()) }))
	}
}

func (s *state) addStartup(r *registry) {
	events := []struct {
		name   string
		moment *moment
	}{{"listening", &s.listening}, {"first_probe", &s.firstProbe}, {"first_ready", &s.firstReady}, {"first_request", &s.firstRequest}}
	r.gauge(startupSeconds,
		"When something happened first, counted from the start of the process: listening, first_probe, first_ready, first_request; absent until it has.",
		func(add func(float64, ...string)) {
			for _, e := range events {
				if after := e.moment.at.Load(); after != 0 {
					add(time.Duration(after).Seconds(), e.name)
				}
			}
		}, "event")
}

func addRest(r *registry, o *Options) {
	if expiry := o.Gauges.CertExpiry; expiry != nil {
		r.gauge(certificateExpiry, "When the certificate that we serve ends, in seconds since 1970; absent without one.",
			sometimes(func() (float64, bool) { at := expiry(); return float64(at.Unix()), !at.IsZero() }))
	}
	if dropped := o.Gauges.LogLinesDropped; dropped != nil {
		r.counter(logLinesDroppedTotal, "Lines of the request log that were not written, so as not to make requests wait.",
			always(func() float64 { return float64(dropped()) }))
	}
	if dropped := o.Gauges.SpansDropped; dropped != nil {
		r.counter(spansDroppedTotal, "Spans that never reached the collector.", always(func() float64 { return float64(dropped()) }))
	}
	r.with("version", o.Version, "revision", o.Commit, "goversion", runtime.Version()).gauge(buildInfo, "1, with what is running.", one)
}

// one reads 1.
func one(add func(float64, ...string)) { add(1) }

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
