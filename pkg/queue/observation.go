package queue

import (
	"net/http"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// Observation is what there is to say about a request that has ended. It is
// valid until Observe returns.
type Observation struct {
	Exchange Exchange
	Line
	Kind     header.Kind // Traffic or KubeletRequest
	TraceID  string      // "": not traced
	Excluded bool        // by EXCLUDE_*: neither counted nor logged (docs/promises.md 3.10)
	Proxied  bool        // came through the activator
	Start    time.Time   // when the request had been read
	Slot     time.Time   // when it got a slot; zero: it never did
	Stream   bool        // an upgraded connection, or an event stream that answers a GET
	RPCError bool        // the user container's grpc-status says that it has failed
	End      time.Time
	Phase    Phase // how far it came
	Result
}

// maxShown is the maximum length of a method or a path in logs and on pages, in bytes.
const maxShown = 512

// Shown returns a string of a client for logs and pages. It has at most 512 bytes, and the characters
// that are not printable are replaced. The result is a copy.
func Shown(s string) string {
	s = printable.Text(s[:min(len(s), maxShown+1)])
	return strings.Clone(printable.Truncate(s, maxShown))
}

// AppFailed reports whether the user container's response says that it has failed, by its
// status or by that of gRPC.
func (o *Observation) AppFailed() bool { return o.Status >= 500 || o.RPCError }

// loadFailed reports whether the response is an error that load can cause. A rejection for
// overload is one. A method that is not implemented is not.
func (o *Observation) loadFailed() bool {
	switch o.Status {
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	case http.StatusTooManyRequests:
		return true
	}
	return o.AppFailed()
}

// Queued returns how long the request waited for a slot.
func (o *Observation) Queued() time.Duration {
	if o.Slot.IsZero() {
		return o.End.Sub(o.Start)
	}
	return o.Slot.Sub(o.Start)
}
