// Package metrics counts requests, and exports the counters and the state of the sidecar to Prometheus or
// over OTLP. The package pkg/inject/webhook contains the metrics of the injector.
//
// The methods of [Metrics] record events. The values of gauges are read for each scrape. The tables of
// docs/metrics.md are generated from this package.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

// path is the URL path at which metrics are served.
const path = "/metrics"

// Options contains the settings of a [Metrics].
type Options struct {
	Names   string    // METRICS_NAMES: default, knative-1.18, knative-1.19, knative-head, all or off; "" means default
	Pushed  bool      // whether Metrics.Push will be called, which requires the metrics of knative-1.19 or knative-head
	Version string    // version of the program
	Commit  string    // commit of the source code
	Start   time.Time // start time of the process; zero means the time of the call to New

	NativeHistograms bool // whether histograms of request durations are also native histograms

	Gauges Gauges
	Merge  Merge // the zero value disables merging

	// NotReadyReasons contains all reasons that Gauges.Ready can return. Other reasons are replaced
	// with "other".
	NotReadyReasons []string

	// Labels of the Knative metrics. Our own metrics do not need these labels, because Prometheus adds the
	// labels of the target.
	Namespace, Service, Configuration, Revision, Pod string

	// UserPort is the port of the user container. It is a label of the metrics of knative-1.19 and knative-head.
	UserPort int
}

// Gauges contains the functions that return the values of gauges. They are called for each scrape and must be safe
// for concurrent use. If LogLinesDropped or SpansDropped is nil, its metric is omitted.
type Gauges struct {
	Load            func() (running, waiting int)              // number of requests in the user container and in the queue
	OldestWaiter    func() time.Time                           // arrival time of the first request in the queue; zero if the queue is empty
	Limit           func() (running, waiting int)              // maximum numbers of running and queued requests; if running is 0, there is no limit and waiting is undefined
	Adaptive        func() (observation.LimitState, bool)      // state of an adaptive limit; false if the limit is fixed
	Ready           func() (ready, probed bool, reason string) // result of the readiness probes, and one of NotReadyReasons if they fail; probed is false before the first result
	AppHangs        func() bool                                // whether the status page reports that the application does not respond
	Draining        func() bool                                // whether the drain has started
	CertValidity    func() (notBefore, notAfter time.Time)     // zero without a certificate
	LogLinesDropped func() uint64                              // number of dropped lines of the request log
	SpansDropped    func() uint64                              // number of dropped spans
	Memory          func() (used, limit int64)                 // memory for requests and the memory budget, in bytes; limit is 0 without a budget
	Bounds          *bound.Recorder                            // counts the events of bounds and client errors; if nil, all counters are 0

	// Connections returns the state of client connections and of HTTP/1 connections to the user container.
	Connections func() (clients, app bound.Pool)
}

// depth returns the number of running and queued requests. It returns false without a concurrency limit.
func (g *Gauges) depth() (float64, bool) {
	most, _ := g.Limit()
	running, waiting := g.Load()
	return float64(running + waiting), most > 0
}

// Metrics records events and exports metrics. It is safe for concurrent use. The recording methods of a nil
// *Metrics do nothing.
type Metrics struct {
	registry *registry
	gatherer prometheus.Gatherer
	handler  http.Handler

	requests *requests    // nil if disabled
	state    *state       // nil if requests is nil
	tags     *routeTags   // route tags for v118 and head
	v118     *knative118  // nil if disabled
	head     *knativeHead // nil if disabled
}

// New returns a new Metrics. It returns an error if Options.Names or Options.Merge is invalid.
func New(o Options) (*Metrics, error) {
	names, err := parseNames(o.Names)
	if err != nil {
		return nil, err
	}
	if o.Pushed && names&names119 == 0 {
		names |= namesHead
	}
	if o.Start.IsZero() {
		o.Start = time.Now()
	}
	r := newRegistry(o.Start)
	r.native = o.NativeHistograms
	m := &Metrics{registry: r, gatherer: r, tags: newRouteTags()}
	if names&ourNames != 0 {
		m.requests = newRequests(r)
		m.state = newState(r, &o)
		addProcess(r)
	}
	if names&names118 != 0 {
		m.v118 = newKnative118(r, &o, m.tags)
	}
	if names&(names119|namesHead) != 0 {
		m.head = newKnativeHead(r, &o, m.tags, names)
		m.gatherer = withoutEmpty{r}
	}

	// OpenMetrics would add the suffix _total to the counters of Knative up to 1.18.
	openMetrics := names&names118 == 0
	if o.Merge.Port != 0 {
		if m.handler, err = newMerge(r, &o.Merge, m.gatherer, openMetrics); err != nil {
			return nil, err
		}
	} else {
		m.handler = promhttp.HandlerFor(m.gatherer, promhttp.HandlerOpts{
			ErrorHandling:      promhttp.ContinueOnError,
			EnableOpenMetrics:  openMetrics,
			DisableCompression: true, // compression would take most of a scrape's CPU time, and the traffic stays in the cluster
		})
	}
	if m.head != nil { // Knative also exports the metrics of this handler
		m.handler = promhttp.InstrumentMetricHandler(r, m.handler)
	}
	m.handler = bounded(m.handler)
	return m, nil
}

// Handler returns a handler that serves /metrics for GET and HEAD, and 404 for other paths. The Accept field selects
// the Prometheus text format, the protobuf format or OpenMetrics. With [Options.Merge], the metrics of the user
// container are appended, and the protobuf format is used only if the user container supports it.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Observe records a completed request. It does not lock or allocate, except for the first request with a new
// set of labels.
//
// Excluded requests are ignored (docs/promises.md 3.10). Kubelet probes are counted only in their own metric.
func (m *Metrics) Observe(o *observation.Observation) {
	switch {
	case m == nil || o.Excluded:
		return
	case o.Kind == observation.KubeletRequest:
		if m.requests != nil {
			m.requests.kubelet.at(class(o.Status), reason(o.Reason)).Inc()
		}
		return
	case o.Kind != observation.Traffic:
		return
	}
	if m.requests != nil {
		m.state.first(firstRequest, o.Start)
		m.requests.observe(o)
	}
	if m.v118 == nil && m.head == nil {
		return
	}
	tag := int(observation.TagDisabled)
	if o.Exchange != nil {
		tag = m.tags.place(o.Exchange)
	}
	if m.v118 != nil {
		m.v118.observe(o, tag)
	}
	if m.head != nil {
		m.head.observe(o, tag)
	}
}

// Listening records the time at which the sidecar began to accept requests. Only the earliest time is used.
func (m *Metrics) Listening(at time.Time) {
	if m != nil && m.state != nil {
		m.state.first(listening, at)
	}
}

// Answered records the result of a readiness probe. asked is the time at which the probe was received. Answered
// must be called when the response is sent.
func (m *Metrics) Answered(asked time.Time, ready bool) {
	if m == nil || m.state == nil {
		return
	}
	now := time.Now()
	m.state.first(firstProbe, asked)
	if ready {
		m.state.first(firstReady, now)
	}
	m.state.answers.at(place(ready)).took(now.Sub(asked))
}

// ReadinessChanged records that the user container became ready or stopped being ready.
func (m *Metrics) ReadinessChanged(ready bool) {
	switch {
	case m == nil || m.state == nil:
	case ready:
		m.state.first(firstReady, time.Now())
	default:
		m.state.flaps.Inc()
	}
}
