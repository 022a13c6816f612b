package metrics

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// seconds are the buckets of every duration of ours, in microseconds: from a cached
// page to a model that thinks for minutes. The waits behind a limit have the same
// ones, so that panels can be laid over each other.
func seconds() *buckets {
	return newBuckets(1e6,
		1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
		1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000, 300_000_000)
}

// requests is what our own metrics say about requests.
type requests struct {
	total    *vector[counter]
	failures *vector[counter]
	kubelet  *vector[counter]
	replays  *counter
	duration *vector[histogram]
	wait     *histogram
	app      *vector[histogram]
}

func newRequests(fs *families) *requests {
	code, protocol, why := dim("code", classes...), dim("protocol", protocols...), dim("reason", reasons...)
	b := seconds()
	r := &requests{
		total: fs.add(Default, Counter, RequestsTotal,
			"Requests that have ended, by class of status, class of method, the client's protocol, and the reason why they ended so: ok, or whose fault it was.",
			"code", "method", "protocol", "reason").
			counters(code, dim("method", methods...), protocol, why),
		failures: fs.add(Default, Counter, RequestFailuresTotal,
			"Requests that did not get the whole of the user container's answer, by reason; every reason is there from zero on.",
			"reason").
			counters(dim("reason", reasons[1:]...)),
		duration: fs.add(Default, Histogram, RequestDurationSeconds,
			"From the request's head to the end of the exchange, waiting included; an upgraded connection is a 1xx and lasts until it is closed.",
			"code", "protocol").
			histograms(b, code, protocol),
		wait: fs.add(Default, Histogram, QueueWaitSeconds,
			"From the request's head until it got a slot, or gave up.").
			histograms(b).at(),
		app: fs.add(Default, Histogram, AppDurationSeconds,
			"From the slot to the end of the exchange with the user container, for requests that got one.",
			"code").
			histograms(b, code),
		replays: fs.add(Default, Counter, ReplaysTotal,
			"Requests that were sent to the user container a second time because it had closed the kept connection.").
			counters().at(),
		kubelet: fs.add(Default, Counter, KubeletProbesTotal,
			"Liveness and startup probes that came through us to the user container. They are in no other metric of requests.",
			"code", "reason").
			counters(code, why),
	}
	r.failures.all()
	return r
}

func (r *requests) observe(o *queue.Observation) {
	code, protocol, why := class(o.Status), protocol(o.Major, o.Minor), reason(o.Why)
	r.total.at(code, method(o.Method), protocol, why).n.Add(1)
	if why > 0 {
		r.failures.at(why - 1).n.Add(1)
	}
	if o.Replayed {
		r.replays.n.Add(1)
	}
	r.duration.at(code, protocol).observe(o.End.Sub(o.Start).Microseconds())
	r.wait.observe(waited(o).Microseconds())
	if !o.Slot.IsZero() {
		r.app.at(code).observe(o.End.Sub(o.Slot).Microseconds())
	}
}

// waited is how long a request waited for a slot, or until it gave up.
func waited(o *queue.Observation) time.Duration {
	if o.Slot.IsZero() {
		return o.End.Sub(o.Start)
	}
	return o.Slot.Sub(o.Start)
}
