package metrics

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
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

	flaps   atomic.Uint64
	answers *vector[histogram] // nil: not asked for
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

// show adds the families.
func (s *state) show(fs *families, o *Options) {
	s.showLoad(fs, &o.Gauges)
	s.showReadiness(fs, o)
	s.showStartup(fs)
	s.showRest(fs, o)
}

func (s *state) showLoad(fs *families, g *Gauges) {
	if g.Load != nil {
		fs.add(Default, Gauge, RunningRequests, "Requests that are in the user container now.").
			always(func() float64 { running, _ := g.Load(); return float64(running) })
		fs.add(Default, Gauge, WaitingRequests, "Requests that wait for a slot now.").
			always(func() float64 { _, waiting := g.Load(); return float64(waiting) })
	}
	if g.OldestWaiter != nil {
		fs.add(Default, Gauge, OldestWaiterAgeSeconds, "How long the first in line has been waiting; 0 when nobody waits.").
			always(func() float64 {
				since := g.OldestWaiter()
				if since.IsZero() {
					return 0
				}
				return max(0, time.Since(since).Seconds())
			})
	}
	if g.Limit != nil {
		fs.add(Default, Gauge, ConcurrencyLimit, "How many requests may be in the user container at once; 0 is any number.").
			always(func() float64 { running, _ := g.Limit(); return float64(running) })
		fs.add(Default, Gauge, QueueLimit, "How many requests may wait for a slot; absent without a limit on concurrency.").
			read(func() (float64, bool) { running, waiting := g.Limit(); return float64(waiting), running > 0 })
	}
}

func (s *state) showReadiness(fs *families, o *Options) {
	if ready := o.Gauges.Ready; ready != nil {
		fs.add(Default, Gauge, Ready, "1 when a readiness probe hears yes, 0 when it hears no.").
			always(func() float64 { yes, _ := ready(); return number(yes) })
		f := fs.add(Default, Gauge, NotReadyReason, "1 for the reason why not; absent when ready.", "reason")
		words := dim("reason", o.NotReadyReasons...)
		other := pairs("reason", "other")
		f.series = func(add func(*dto.Metric)) {
			yes, word := ready()
			if yes {
				return
			}
			labels := other
			if i := slices.Index(o.NotReadyReasons, word); i >= 0 {
				labels = words[i]
			}
			add(f.sample(labels, 1))
		}
	}
	fs.add(Default, Counter, ReadinessFlapsTotal, "How often the user container has become unready after it had been ready.").
		always(func() float64 { return float64(s.flaps.Load()) })
	s.answers = fs.add(Default, Histogram, ReadinessAnswersSeconds, "How long a readiness probe waited for its answer, by the answer.", "ready").
		histograms(seconds(), dim("ready", "yes", "no"))
	if draining := o.Gauges.Draining; draining != nil {
		fs.add(Default, Gauge, Draining, "1 while the pod is ending, else 0.").
			always(func() float64 { return number(draining()) })
	}
}

func (s *state) showStartup(fs *families) {
	f := fs.add(Default, Gauge, StartupSeconds,
		"When something happened first, counted from the start of the process: listening, first_probe, first_ready, first_request; absent until it has.",
		"event")
	events := []struct {
		moment *moment
		labels []*dto.LabelPair
	}{
		{&s.listening, pairs("event", "listening")},
		{&s.firstProbe, pairs("event", "first_probe")},
		{&s.firstReady, pairs("event", "first_ready")},
		{&s.firstRequest, pairs("event", "first_request")},
	}
	f.series = func(add func(*dto.Metric)) {
		for _, e := range events {
			if after := e.moment.at.Load(); after != 0 {
				add(f.sample(e.labels, time.Duration(after).Seconds()))
			}
		}
	}
}

func (s *state) showRest(fs *families, o *Options) {
	if expiry := o.Gauges.CertExpiry; expiry != nil {
		fs.add(Default, Gauge, CertificateExpiry, "When the certificate that we serve ends, in seconds since 1970; absent without one.").
			read(func() (float64, bool) {
				at := expiry()
				return float64(at.Unix()), !at.IsZero()
			})
	}
	if dropped := o.Gauges.LogLinesDropped; dropped != nil {
		fs.add(Default, Counter, LogLinesDroppedTotal, "Lines of the request log that were not written, so as not to make requests wait.").
			always(func() float64 { return float64(dropped()) })
	}
	if dropped := o.Gauges.SpansDropped; dropped != nil {
		fs.add(Default, Counter, SpansDroppedTotal, "Spans that never reached the collector.").
			always(func() float64 { return float64(dropped()) })
	}
	f := fs.add(Default, Gauge, BuildInfo, "1, with what is running.", "version", "revision", "goversion")
	labels := pairs("version", o.Version, "revision", o.Commit, "goversion", runtime.Version())
	f.series = func(add func(*dto.Metric)) { add(f.sample(labels, 1)) }
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
