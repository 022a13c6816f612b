package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// seconds returns the buckets of our own durations. They cover cached pages as well as model inference that
// takes minutes. All durations have the same buckets, so that they can be compared in a dashboard.
func seconds() []float64 {
	return []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
}

// requests contains the request metrics of the set default.
type requests struct {
	total    *table[counter]
	failures *table[counter]
	kubelet  *table[counter]
	replays  prometheus.Counter
	duration *table[histogram]
	wait     histogram
	app      *table[histogram]

	exemplars *exemplars // of app
}

func newRequests(r *registry) *requests {
	code, protocol, why := dim(classes...), dim(protocols...), dim(reasons...)
	q := &requests{
		total: countersOf(r.counters("queue_proxy_requests_total",
			"Number of completed requests. The reason is ok or the cause of the failure.",
			"code", "method", "protocol", "reason"), code, dim(methods...), protocol, why),
		failures: countersOf(r.counters("queue_proxy_request_failures_total",
			"Number of failed requests, by reason. All reasons are exported from the start.",
			"reason"), dim(reasons[1:]...)),
		duration: histogramsOf(r.histograms("queue_proxy_request_duration_seconds",
			"Time from the header section to the end of a request, including the queue. The status code of an upgraded connection is 1xx, and the duration includes the time until the connection is closed.",
			seconds(), "code", "protocol"), code, protocol),
		wait: histogram{r.histograms("queue_proxy_queue_wait_seconds",
			"Time from the header section of a request to the slot acquisition or the removal from the queue.", seconds()).WithLabelValues()},
		app: histogramsOf(r.histograms("queue_proxy_app_duration_seconds",
			"Time from acquiring a slot to the end of the request.",
			seconds(), "code"), code),
		replays: r.counters("queue_proxy_replays_total",
			"Number of request retries after a connection failure or a refused request.").WithLabelValues(),
		kubelet: countersOf(r.counters("queue_proxy_kubelet_probes_total",
			"Number of liveness and startup probes that were forwarded to the user container. These probes are not included in other metrics.",
			"code", "reason"), code, why),
		exemplars: newExemplars(),
	}
	q.failures.all()
	return q
}

func (q *requests) observe(o *observation.Observation) {
	code, protocol, why := class(o.Status), protocol(o.Major, o.Minor), reason(o.Reason)
	q.total.at(code, method(o.Method), protocol, why).Inc()
	if why > 0 {
		q.failures.at(why - 1).Inc()
	}
	if o.Replayed {
		q.replays.Inc()
	}
	took := o.End.Sub(o.Start)
	q.duration.at(code, protocol).took(took)
	if o.Slot.IsZero() { // the request left the queue without a slot
		q.wait.took(took)
		return
	}
	waited := o.Slot.Sub(o.Start)
	q.wait.took(waited)
	q.exemplars.observe(q.app.at(code), code, took-waited, o)
}
