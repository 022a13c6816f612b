package queue

import (
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/header"
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

// maxShown bounds what is shown of a method or a path, in bytes.
const maxShown = 512

// Shown returns what a log or a page may show of a string that a client chose: at
// most 512 bytes of UTF-8 without control characters and without U+2028 and U+2029,
// which some take for ends of lines. They become U+FFFD, and what is longer ends in
// an ellipsis. It may be kept.
func Shown(s string) string {
	var b strings.Builder
	whole := 0 // of b, with room for the ellipsis
	for _, r := range s {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			r = utf8.RuneError
		}
		if b.WriteRune(r); b.Len() > maxShown {
			return b.String()[:whole] + "…"
		}
		if b.Len() <= maxShown-len("…") {
			whole = b.Len()
		}
	}
	return b.String()
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
