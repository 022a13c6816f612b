package metrics

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// startupEvents contains the events at startup in their usual order.
var startupEvents = [...]string{"listening", "first_probe", "first_ready", "first_request"}

// Indexes in startupEvents.
const (
	listening = iota
	firstProbe
	firstReady
	firstRequest
)

// state contains our own metrics about the state of the sidecar.
type state struct {
	start time.Time // start time of the process

	// firsts contains the first time of each event in startupEvents, in nanoseconds since start. 0 means that
	// the event has not happened.
	firsts [len(startupEvents)]atomic.Int64

	flaps   prometheus.Counter
	answers *table[histogram]
}

// first records that an event in startupEvents happened at the given time, unless an earlier time is known.
func (s *state) first(event int, at time.Time) {
	n := max(1, int64(at.Sub(s.start)))
	for {
		known := s.firsts[event].Load()
		if known != 0 && known <= n || s.firsts[event].CompareAndSwap(known, n) {
			return
		}
	}
}

func newState(r *registry, o *Options) *state {
	s := &state{start: o.Start}
	addLoad(r, &o.Gauges)
	s.addReadiness(r, o)
	s.addStartup(r)
	addConnections(r, &o.Gauges)
	addRest(r, o)
	return s
}

func addConnections(r *registry, g *Gauges) {
	clients := func() bound.Pool { p, _ := g.Connections(); return p }
	app := func() bound.Pool { _, p := g.Connections(); return p }
	pool := func(name, open, waiting string, get func() bound.Pool) {
		r.gauge(name, open, always(func() float64 { return float64(get().Open) }))
		r.gauge(name+"_limit", "Maximum number of open connections. Absent if there is no limit.",
			sometimes(func() (float64, bool) { n := get().Limit; return float64(n), n > 0 }))
		r.gauge(name+"_waiting", waiting, always(func() float64 { return float64(get().Waiting) }))
	}
	pool("queue_proxy_client_connections", "Number of open client connections.",
		"Number of new connections that wait for the limit.", clients)
	r.counter("queue_proxy_client_connections_total", "Number of client connections by result: accepted, evicted for a new connection, or refused because the pod stopped.",
		func(add func(float64, ...string)) {
			p := clients()
			add(float64(p.Accepted), "accepted")
			add(float64(p.Evicted), "evicted")
			add(float64(p.Refused), "refused")
		}, "result")
	r.counter("queue_proxy_client_connections_wait_seconds_total", "Total time that accepted connections waited for the limit.",
		always(func() float64 { return clients().Waited }))
	pool("queue_proxy_app_connections", "Number of open HTTP/1 connections to the user container.",
		"Number of requests that wait for a connection to the user container.", app)
}

func addLoad(r *registry, g *Gauges) {
	r.gauge("queue_proxy_running_requests", "Requests in the user container.",
		always(func() float64 { running, _ := g.Load(); return float64(running) }))
	r.gauge("queue_proxy_waiting_requests", "Queued requests.",
		always(func() float64 { _, waiting := g.Load(); return float64(waiting) }))
	r.gauge("queue_proxy_oldest_waiter_age_seconds", "Waiting time of the oldest queued request; 0 if the queue is empty.", always(func() float64 {
		since := g.OldestWaiter()
		if since.IsZero() {
			return 0
		}
		return max(0, time.Since(since).Seconds())
	}))
	r.gauge("queue_proxy_app_hangs", "1 if the user container does not respond to requests, otherwise 0.",
		always(func() float64 { return float64(place(g.AppHangs())) }))
	r.gauge("queue_proxy_concurrency_limit", "Maximum number of requests in the user container; 0 means no limit.",
		always(func() float64 { running, _ := g.Limit(); return float64(running) }))
	r.gauge("queue_proxy_queue_limit", "Maximum number of queued requests. Absent if there is no concurrency limit.",
		sometimes(func() (float64, bool) { running, waiting := g.Limit(); return float64(waiting), running > 0 }))
	r.gauge("queue_proxy_request_memory_bytes", "Memory of incomplete and queued requests. Absent if there is no budget.",
		sometimes(func() (float64, bool) { used, limit := g.Memory(); return float64(used), limit > 0 }))
	r.gauge("queue_proxy_request_memory_limit_bytes", "Memory budget for requests. Absent if there is no budget.",
		sometimes(func() (float64, bool) { _, limit := g.Memory(); return float64(limit), limit > 0 }))
	r.gauge("queue_proxy_concurrency_limit_reason", "Reason for the adaptive limit. Absent if the limit is fixed. The value is 1.", func(add func(float64, ...string)) {
		if state, adaptive := g.Adaptive(); adaptive {
			add(1, string(state.Reason))
		}
	}, "reason")
	r.gauge("queue_proxy_advised_concurrency_limit", "Settled adaptive limit. Absent until the limit was compared with a lower and a higher limit.",
		sometimes(func() (float64, bool) { state, _ := g.Adaptive(); return float64(state.Settled), state.Settled > 0 }))
}

func (s *state) addReadiness(r *registry, o *Options) {
	r.gauge("queue_proxy_ready", "1 if readiness probes succeed, otherwise 0. Absent before the first result.",
		sometimes(func() (float64, bool) { yes, probed, _ := o.Gauges.Ready(); return float64(place(yes)), probed }))
	r.gauge("queue_proxy_not_ready_reason", "Reason why the pod is not ready. Absent if the pod is ready, or before the first result. The value is 1.", func(add func(float64, ...string)) {
		yes, probed, word := o.Gauges.Ready()
		if !slices.Contains(o.NotReadyReasons, word) {
			word = "other"
		}
		if probed && !yes {
			add(1, word)
		}
	}, "reason")
	s.flaps = r.counters("queue_proxy_readiness_flaps_total", "Number of changes of the user container from ready to not ready.").WithLabelValues()
	s.answers = histogramsOf(r.histograms("queue_proxy_readiness_answer_seconds", "Duration of readiness probes, by result.",
		seconds(), "ready"), dim("no", "yes"))
	r.gauge("queue_proxy_draining", "1 during the drain, otherwise 0.", always(func() float64 { return float64(place(o.Gauges.Draining())) }))
}

func (s *state) addStartup(r *registry) {
	r.gauge("queue_proxy_startup_seconds",
		"Time from the process start to the event. Absent before the event.",
		func(add func(float64, ...string)) {
			for i, event := range startupEvents {
				if after := s.firsts[i].Load(); after != 0 {
					add(time.Duration(after).Seconds(), event)
				}
			}
		}, "event")
}

func addRest(r *registry, o *Options) {
	r.gauge("queue_proxy_tls_certificate_expiry_timestamp_seconds", "Expiry time of the certificate as a Unix timestamp. Absent if there is no certificate.",
		sometimes(func() (float64, bool) { _, at := o.Gauges.CertValidity(); return float64(at.Unix()), !at.IsZero() }))
	r.gauge("queue_proxy_tls_certificate_not_before_timestamp_seconds", "Time from which the certificate is valid as a Unix timestamp. Absent if there is no certificate.",
		sometimes(func() (float64, bool) { at, _ := o.Gauges.CertValidity(); return float64(at.Unix()), !at.IsZero() }))
	if dropped := o.Gauges.LogLinesDropped; dropped != nil {
		r.counter("queue_proxy_log_lines_dropped_total", "Number of request log lines dropped because the output was blocked.",
			always(func() float64 { return float64(dropped()) }))
	}
	if dropped := o.Gauges.SpansDropped; dropped != nil {
		r.counter("queue_proxy_spans_dropped_total", "Number of spans dropped before they reached the collector.", always(func() float64 { return float64(dropped()) }))
	}
	r.counter("queue_proxy_bounds_total", "Number of closed connections, streams and requests, by bound.",
		func(add func(float64, ...string)) {
			for name := range bound.NumNames {
				add(float64(o.Gauges.Bounds.Count(name)), name.String())
			}
		}, "bound")
	r.counter("queue_proxy_client_errors_total", "Number of connections and requests that ended because of a client protocol error or a failed TLS handshake.",
		func(add func(float64, ...string)) {
			for name := bound.NumNames; name < bound.NumEvents; name++ {
				add(float64(o.Gauges.Bounds.Count(name)), name.String())
			}
		}, "error")
	r.with("version", o.Version, "revision", o.Commit, "goversion", runtime.Version()).gauge("queue_proxy_build_info", "Version information in the labels. The value is 1.", one)
}

// one is a read for a series with the value 1.
func one(add func(float64, ...string)) { add(1) }

// place returns 1 for true and 0 for false.
func place(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
