package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// seconds returns the buckets of our own duration histograms. They cover cached pages as well as model
// inference that takes minutes. All these histograms have the same buckets, so that a dashboard can compare
// them.
func seconds() []float64 {
	return []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
}

// requests contains the request metrics in the metric set "default".
type requests struct {
	total    *table[counter]
	failures *table[counter]
	grpc     *table[counter] // by gRPC status; there is no series for the zero value
	kubelet  *table[counter]
	replays  prometheus.Counter
	duration *table[histogram]
	wait     histogram
	app      *table[histogram]

	exemplars *exemplars // exemplars of the histograms in app
}

func newRequests(r *registry) *requests {
	code, version, why := dim(classes[:]...), dim(protocols...), dim(reasons...)
	q := &requests{
		total: countersOf(r.counters("queue_proxy_requests_total",
			"Number of completed requests. The reason is ok or the cause of the failure.",
			"code", "method", "protocol", "reason"), code, dim(methods...), version, why),
		failures: countersOf(r.counters("queue_proxy_request_failures_total",
			"Number of failed requests, by reason. All reasons are exported from the start.",
			"reason"), dim(reasons[1:]...)),
		grpc: countersOf(r.counters("queue_proxy_grpc_responses_total",
			"Number of complete gRPC responses from the user container. Absent before the first one.",
			"code"), dim(grpcStatuses...)),
		duration: histogramsOf(r.durations("queue_proxy_request_duration_seconds",
			"Time from the header section to the end of a request. An upgraded connection has the code 1xx and ends when it is closed.",
			"code", "protocol"), code, version),
		wait: histogram{r.durations("queue_proxy_queue_wait_seconds",
			"Time from the header section of a request until it gets a slot or leaves the queue.").WithLabelValues()},
		app: histogramsOf(r.durations("queue_proxy_app_duration_seconds",
			"Time from acquiring a slot to the end of the request.",
			"code"), code),
		replays: r.counters("queue_proxy_replays_total",
			"Number of request retries after a connection failure or a refused request.").WithLabelValues(),
		kubelet: countersOf(r.counters("queue_proxy_kubelet_probes_total",
			"Number of liveness and startup probes that were forwarded to the user container. No other metric counts them.",
			"code", "reason"), code, why),
		exemplars: newExemplars(),
	}
	q.failures.all()
	q.start(method(http.MethodGet), protocol(1, 1))
	return q
}

// start creates the series of successful requests with the value 0 for the classes 2xx to 5xx, so that the first
// response of each class is visible as an increase. The parameters are indexes in methods and protocols.
func (q *requests) start(method, protocol int) {
	for code := class(http.StatusOK); code < len(classes); code++ {
		q.total.at(code, method, protocol, reason(observation.OK))
	}
}

func (q *requests) observe(o *observation.Observation) {
	code, method, protocol, why := class(o.Status), method(o.Method), protocol(o.Major, o.Minor), reason(o.Reason)
	total := q.total.known(code, method, protocol, why)
	if total == nil {
		q.start(method, protocol)
		total = q.total.at(code, method, protocol, why)
	}
	total.Inc()
	if why > 0 {
		q.failures.at(why - 1).Inc()
	} else if o.RPC != 0 {
		q.observeRPC(int(o.RPC) - 1)
	}
	if o.Replayed {
		q.replays.Inc()
	}
	took := o.End.Sub(o.Start)
	q.duration.at(code, protocol).took(took)
	if o.Slot.IsZero() { // the request left the queue without a slot
		if o.Reason != observation.BadRequest { // an invalid request is not queued
			q.wait.took(took)
		}
		return
	}
	waited := o.Slot.Sub(o.Start)
	q.wait.took(waited)
	q.exemplars.observe(q.app.at(code), code, took-waited, o)
}

// observeRPC counts a gRPC response from the user container. The first response creates all series.
func (q *requests) observeRPC(status int) {
	if q.grpc.known(status) == nil {
		q.grpc.all()
	}
	q.grpc.at(status).Inc()
}
