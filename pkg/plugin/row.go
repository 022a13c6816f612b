package plugin

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A State is the state of a sidecar.
type State string

// Values of State.
const (
	Ready    State = "ready"
	NotReady State = "not-ready"
	Draining State = "draining" // the pod is terminating
	Unknown  State = "unknown"  // the sidecar did not respond; the note contains the reason
)

// A Row is a row of the table. It contains the values of one sidecar, or the values of a workload, which are computed
// from the values of all its sidecars. A nil pointer means that the value is unknown. The JSON names are stable.
type Row struct {
	Namespace  string         `json:"namespace"`
	Pod        string         `json:"pod,omitempty"`       // name of the pod; "" in the row of a workload
	Workload   string         `json:"workload"`            // kind and name, such as "deployment/web"
	Pods       int            `json:"pods,omitempty"`      // number of pods in a row of a workload
	ReadyPods  int            `json:"readyPods,omitempty"` // number of ready pods in a row of a workload
	State      State          `json:"state"`
	Running    *int           `json:"running"`
	Waiting    *int           `json:"waiting"`
	Limit      *int           `json:"limit"`             // maximum number of running requests; 0 means no limit
	QueueLimit *int           `json:"queueLimit"`        // maximum number of queued requests
	Rate       *float64       `json:"requestsPerSecond"` // completed requests per second in the window
	P99        *float64       `json:"p99Seconds"`        // 99th percentile of request durations in the window, in seconds
	Failure    string         `json:"lastFailure"`       // reason of the last failure, or ""
	FailedAt   *time.Time     `json:"lastFailureAt"`     // time of the last failure; nil if it happened before the first sample
	Failures   map[string]int `json:"failures"`          // failures since the start of the sidecar, by reason
	Note       string         `json:"note"`
}

// Keys returns the valid keys for [Sort].
func Keys() []string {
	return []string{"waiting", "running", "requests", "p99", "limit", "failure", "ready", "name"}
}

// Sort sorts rows by one of [Keys], worst first, and then by name.
// Unknown values are last. If the key is "ready", sidecars in an unknown state are first.
func Sort(rows []Row, by string) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		n := 0
		switch by {
		case "waiting":
			n = cmp.Or(highest(a.Waiting, b.Waiting), highest(a.Running, b.Running))
		case "running":
			n = cmp.Or(highest(a.Running, b.Running), highest(a.Waiting, b.Waiting))
		case "requests":
			n = highest(a.Rate, b.Rate)
		case "p99":
			n = highest(a.P99, b.P99)
		case "limit":
			n = highest(a.Limit, b.Limit)
		case "failure":
			n = cmp.Or(latest(a.FailedAt, b.FailedAt), first(a.Failure != "", b.Failure != ""))
		case "ready":
			n = cmp.Compare(slices.Index(states(), a.State), slices.Index(states(), b.State))
		}
		return cmp.Or(n, byName(a, b))
	})
}

func highest[T int | float64](a, b *T) int {
	if a == nil || b == nil {
		return first(a != nil, b != nil)
	}
	return cmp.Compare(*b, *a)
}

func latest(a, b *time.Time) int {
	if a == nil || b == nil {
		return first(a != nil, b != nil)
	}
	return b.Compare(*a)
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// WriteJSON writes rows and the time as a JSON object.
func WriteJSON(w io.Writer, rows []Row, at time.Time) error {
	if rows == nil {
		rows = []Row{}
	}
	return message.JSON(w, struct {
		At       time.Time `json:"at"`
		Sidecars []Row     `json:"sidecars"`
	}{at.UTC().Truncate(time.Millisecond), rows})
}
