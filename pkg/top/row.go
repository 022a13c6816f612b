package top

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A State is what a sidecar can be.
type State string

// The states.
const (
	Ready    State = "ready"
	NotReady State = "not-ready"
	Draining State = "draining" // the pod is ending
	Unknown  State = "unknown"  // it was not asked, or did not answer: the note says why
)

// A Row is what is shown of one sidecar. A nil pointer is what is not known. Its names in JSON
// are a promise: they stay.
type Row struct {
	Namespace  string         `json:"namespace"`
	Pod        string         `json:"pod"`
	State      State          `json:"state"`
	Running    *int           `json:"running"`
	Waiting    *int           `json:"waiting"`
	Limit      *int           `json:"limit"`             // of running requests; 0 is any number
	QueueLimit *int           `json:"queueLimit"`        // of waiting requests
	Rate       *float64       `json:"requestsPerSecond"` // that ended in the window
	P99        *float64       `json:"p99Seconds"`        // of the window
	Failure    string         `json:"lastFailure"`       // reason; "" for none
	FailedAt   *time.Time     `json:"lastFailureAt"`     // nil: before the first sample
	Failures   map[string]int `json:"failures"`          // by reason, since the start of the sidecar
	Note       string         `json:"note"`
}

// Keys are what rows can be sorted by.
func Keys() []string {
	return []string{"waiting", "running", "requests", "p99", "limit", "failure", "ready", "name"}
}

// Sort sorts rows by one of [Keys]: what asks for attention first, then by names. What is not
// known comes last.
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
			order := []State{Unknown, NotReady, Draining, Ready}
			n = cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State))
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

// WriteJSON writes rows for programs.
func WriteJSON(w io.Writer, rows []Row, at time.Time) error {
	if rows == nil {
		rows = []Row{}
	}
	return printable.JSON(w, struct {
		At       time.Time `json:"at"`
		Sidecars []Row     `json:"sidecars"`
	}{at.UTC().Truncate(time.Millisecond), rows})
}
