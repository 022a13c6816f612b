package observation

import (
	"net/http"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// An Observation describes a completed request. It is valid until Observe returns.
type Observation struct {
	Exchange transport.Request
	transport.Line
	Kind     Kind       // Traffic or KubeletRequest when passed to Proxy.Observe; a probe when passed to Proxy.Probed
	TraceID  string     // "" if the request is not traced
	Sampled  bool       // the trace is exported
	Excluded bool       // the request matches EXCLUDE_*, and is neither counted nor logged (docs/promises.md 3.10)
	Proxied  bool       // the request came through the activator
	RPC      GRPCStatus // status of the gRPC response to the client; zero if the response does not use gRPC
	Start    time.Time  // time when the header section was complete
	Slot     time.Time  // time when the request got a slot; zero if it got no slot
	End      time.Time
	Phase    Phase  // the last phase of the request
	Reason   Reason // why the request failed; OK if the response was forwarded completely

	// Uploading reports whether the request ended before the response began, while the client was still sending the
	// body. It is false if the user container did not read the body during the last second.
	Uploading bool

	// Result is the result of the exchange with the user container. If the sidecar responded, Status and
	// Out describe the response from the sidecar. Err is nil if Reason describes the failure completely.
	transport.Result
}

// maxShown is the maximum length of a method or a path in logs and on pages, in bytes.
const maxShown = 512

// Shown returns a copy of a string from a client for logs and pages. The copy has at most 512 bytes, and
// nonprintable characters are replaced.
func Shown(s string) string { return message.Excerpt(s, maxShown) }

// AppFailed reports whether the response from the user container is an error, according to the HTTP
// status or the grpc-status.
func (o *Observation) AppFailed() bool { return o.Status >= 500 || o.RPC.Failed() }

// LoadFailed reports whether the response is an error that load can cause, such as a rejection because of
// overload. An error for an unimplemented method is not included.
func (o *Observation) LoadFailed() bool {
	switch o.Status {
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	case http.StatusTooManyRequests:
		return true
	}
	return o.AppFailed()
}

// LogTraceID returns the trace ID for logs. It is the ID of the trace, or the ID that the client sent if
// the request is not traced. LogTraceID returns "" if there is no valid ID. The string may reference the
// memory of the request.
func (o *Observation) LogTraceID() string {
	if o.TraceID != "" || o.Exchange == nil {
		return o.TraceID
	}
	_, w3c, _ := strings.Cut(o.Exchange.Header("Traceparent"), "-")
	w3c, _, _ = strings.Cut(w3c, "-")
	if isTraceID(w3c) {
		return w3c
	}
	if id := o.Exchange.Header("X-B3-Traceid"); isTraceID(id) {
		return id
	}
	if id, _, ok := strings.Cut(o.Exchange.Header("B3"), "-"); ok && isTraceID(id) { // a value without "-" contains only the sampling decision
		return id
	}
	return ""
}

// isTraceID reports whether id consists of 1 to 32 hexadecimal digits.
func isTraceID(id string) bool {
	const digits = 32
	return id != "" && len(id) <= digits && strings.Trim(id, "0123456789abcdefABCDEF") == ""
}

// Queued returns how long the request waited for a slot.
func (o *Observation) Queued() time.Duration {
	if o.Slot.IsZero() {
		return o.End.Sub(o.Start)
	}
	return o.Slot.Sub(o.Start)
}
