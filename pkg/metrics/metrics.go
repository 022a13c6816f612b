// Package metrics counts requests, and serves the counts and the state of the sidecar to
// Prometheus, or pushes them over OTLP. pkg/inject/webhook has metrics of its own.
//
// Events are recorded by methods of [Metrics]. What can be read at any time is read at
// each scrape, so no gauge is stale. docs/metrics.md lists every metric and is made from
// this package.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// path is where [Metrics.Handler] answers.
const path = "/metrics"

// Options are what [New] needs to know.
type Options struct {
	Names   string    // METRICS_NAMES: default, knative-1.18, knative-head, all or off; "": default
	Pushed  bool      // [Metrics.Push] is called: Knative's head's are made in any case
	Version string    // of the program
	Commit  string    // it was built from
	Start   time.Time // of the process; zero: when New was called

	Gauges Gauges
	Merge  Merge // the zero value merges nothing

	// NotReadyReasons are all words that Gauges.Ready may give. Another one is shown
	// as "other".
	NotReadyReasons []string

	// Who we are, for Knative's names. Ours have no such labels: Prometheus knows what
	// it scrapes.
	Namespace, Service, Configuration, Revision, Pod string

	// UserPort is where the user container listens, for the names of Knative's head.
	UserPort int
}

// Gauges are asked at each scrape, possibly by several goroutines at once. What counts
// the dropped may be nil, which leaves its metric out.
type Gauges struct {
	Load            func() (running, waiting int) // requests in the user container, and in line
	OldestWaiter    func() time.Time              // when the first in line came; zero: nobody waits
	Limit           func() (running, waiting int) // how many of each may be; 0 running: no limit, and then waiting says nothing
	Adaptive        func() (adapt.State, bool)    // what an adaptive limit has decided; false: it is fixed
	Ready           func() (bool, string)         // what a queue probe would be answered, and if not ready one of NotReadyReasons
	Draining        func() bool                   // the pod is ending
	CertExpiry      func() time.Time              // of the certificate that is served; zero: there is none
	LogLinesDropped func() uint64                 // of the request log, since the start
	SpansDropped    func() uint64                 // since the start
	Memory          func() (used, limit int64)    // memory of requests and its budget, in bytes; limit 0: there is no budget
	Bounds          *bound.Recorder               // of bounds on the behavior of peers; nil: all counts are 0

	// Connections returns the connections of clients, and the HTTP/1 connections to the user container.
	Connections func() (clients, app bound.Pool)
}

// depth is how many requests run or wait; absent without a limit.
func (g *Gauges) depth() (float64, bool) {
	most, _ := g.Limit()
	running, waiting := g.Load()
	return float64(running + waiting), most > 0
}

// Metrics records and shows. It is safe for concurrent use; the nil *Metrics
// records nothing.
type Metrics struct {
	registry *registry
	gatherer prometheus.Gatherer
	handler  http.Handler

	requests *requests    // nil: not asked for
	state    *state       // nil where requests is
	tags     *routeTags   // of the two below
	v118     *knative118  // nil: not asked for
	head     *knativeHead // nil: not asked for
}

// New returns Metrics with nothing recorded. An error is about Options.Names or
// Options.Merge.
func New(o Options) (*Metrics, error) {
	names, err := parseNames(o.Names)
	if err != nil {
		return nil, err
	}
	if o.Pushed {
		names |= namesHead
	}
	if o.Start.IsZero() {
		o.Start = time.Now()
	}
	r := newRegistry()
	m := &Metrics{registry: r, gatherer: r, tags: newRouteTags()}
	if names&ourNames != 0 {
		m.requests = newRequests(r)
		m.state = newState(r, &o)
		addProcess(r)
	}
	if names&names118 != 0 {
		m.v118 = newKnative118(r, &o, m.tags)
	}
	if names&namesHead != 0 {
		m.head = newKnativeHead(r, &o, m.tags)
		m.gatherer = withoutEmpty{r}
	}

	// In OpenMetrics the counters that Knative had up to 1.18 would get a _total behind
	// their names.
	openMetrics := names&names118 == 0
	if o.Merge.Port != 0 {
		if m.handler, err = newMerge(r, &o.Merge, m.gatherer, openMetrics); err != nil {
			return nil, err
		}
	} else {
		m.handler = promhttp.HandlerFor(m.gatherer, promhttp.HandlerOpts{
			ErrorHandling:      promhttp.ContinueOnError,
			EnableOpenMetrics:  openMetrics,
			DisableCompression: true, // it costs more than all the rest, and the bytes stay in the cluster
		})
	}
	if m.head != nil { // Knative's head shows these too
		m.handler = promhttp.InstrumentMetricHandler(r, m.handler)
	}
	m.handler = bounded(m.handler)
	return m, nil
}

// Handler serves /metrics to GET and HEAD, in Prometheus' text or protobuf format or
// OpenMetrics, whichever the scraper likes best, and 404 elsewhere. With
// [Options.Merge] the user container's metrics stand behind ours.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Observe records a request that has ended. It takes no lock and does not allocate,
// but for the first request with new labels.
//
// Excluded ones leave no trace (docs/promises.md 3.10). Kubelet probes are counted
// by themselves and appear in no other metric.
func (m *Metrics) Observe(o *queue.Observation) {
	switch {
	case m == nil || o.Excluded:
		return
	case o.Kind == header.KubeletRequest:
		if m.requests != nil {
			m.requests.kubelet.at(class(o.Status), reason(o.Reason)).Inc()
		}
		return
	case o.Kind != header.Traffic:
		return
	}
	if m.requests != nil {
		m.state.first(firstRequest, o.Start)
		m.requests.observe(o)
	}
	if m.v118 == nil && m.head == nil {
		return
	}
	tag := int(header.TagDisabled)
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

// Listening records that requests are being accepted. The first call counts.
func (m *Metrics) Listening(at time.Time) {
	if m != nil && m.state != nil {
		m.state.first(listening, at)
	}
}

// Answered records that a queue probe that came at asked has just been answered whether
// the user container is ready.
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

// ReadinessChanged records that the user container has become ready or is no longer.
func (m *Metrics) ReadinessChanged(ready bool) {
	switch {
	case m == nil || m.state == nil:
	case ready:
		m.state.first(firstReady, time.Now())
	default:
		m.state.flaps.Inc()
	}
}
