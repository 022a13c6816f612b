package proxy

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Maximum lengths of request values that are copied into a response (docs/promises.md section 1).
const (
	maxHash      = 4 << 10 // maximum length of a network probe's hash in bytes
	maxEchoValue = 256     // maximum length of an unknown probe's value in bytes
	maxMediaType = 64      // maximum length of a gRPC call's media type in bytes
)

// The range of a pushback in milliseconds. The value is random so that clients do not all retry at
// the same time. Without a pushback, clients retry UNAVAILABLE according to their own policies, often
// immediately.
const (
	minPushback = 500
	maxPushback = 1500
)

// retryAfter is the value of Retry-After in seconds. The field is sent if the queue is full, if there
// is not enough memory, or if the queue timeout has expired.
const retryAfter = "1"

// answer is a response that the sidecar generates. It implements [transport.Answer]. The Proxy-Status
// field distinguishes it from a response from the user container (RFC 9209; docs/promises.md 3.6).
type answer struct {
	status int
	body   string             // empty for a gRPC call
	reason observation.Reason // OK for a successful response to a probe
	hash   string             // value of K-Network-Hash; "" if there is no such field
	grpc   int                // grpc-status, sent in a response without a body; -1 if the request is not a gRPC call

	// contentType is the media type of a gRPC call. Clients of connect-go reject a response with a
	// different media type.
	contentType string

	// pushback is the time after which a gRPC client retries, in milliseconds. It is sent in
	// grpc-retry-pushback-ms (gRPC proposal A6). 0 means that the field is not sent.
	pushback int
}

// size returns the length of the content that the client receives, in bytes.
func (a *answer) size(method string) int64 {
	if method == http.MethodHead {
		return 0
	}
	return int64(len(a.body))
}

// Status implements transport.Answer.
func (a *answer) Status() int { return a.status }

// Body implements transport.Answer.
func (a *answer) Body() (content string, framed bool) { return a.body, a.grpc < 0 }

// Fields implements transport.Answer.
func (a *answer) Fields(yield func(name, value string)) {
	status := transport.ProxyName
	if a.reason != observation.OK {
		status += "; error=" + a.reason.ErrorType() + `; details="` + a.reason.String() + `"`
	}
	yield(transport.ProxyStatus, status)
	if a.hash != "" {
		yield(transport.Hash, a.hash)
	}
	if a.reason == observation.QueueFull || a.reason == observation.QueueTimeout || a.reason == observation.Overload && a.grpc < 0 {
		yield(transport.RetryAfter, retryAfter)
	}
	if a.grpc >= 0 {
		yield(transport.ContentType, cmp.Or(a.contentType, transport.GRPC))
		yield("Grpc-Status", strconv.Itoa(a.grpc))
		yield("Grpc-Message", a.reason.String())
		if a.pushback > 0 {
			yield("Grpc-Retry-Pushback-Ms", strconv.Itoa(a.pushback))
		}
		return
	}
	if a.body != "" {
		yield(transport.ContentType, "text/plain; charset=utf-8")
		if a.reason != observation.OK {
			yield("X-Content-Type-Options", "nosniff")
		}
	}
}

// answerFor returns the response to a request that failed. The response to a gRPC call has the
// status 200 and reports the error in grpc-status.
func answerFor(o *observation.Observation, x transport.Exchange) answer {
	reason := o.Reason
	if contentType := x.Header(transport.ContentType); transport.IsGRPC(contentType) {
		a := answer{status: 200, reason: reason, grpc: cmp.Or(grpcStatusOf(o.Err), reason.GRPC())}
		a.contentType, _, _ = strings.Cut(contentType, ";")
		a.contentType = strings.TrimSpace(a.contentType)
		if len(a.contentType) > maxMediaType {
			a.contentType = ""
		}
		if reason.IsApp() && grpcExpired(x.Header(transport.GRPCTimeout), time.Since(o.Start)) {
			a.grpc = grpcDeadlineExceeded
		}
		if reason == observation.QueueFull || reason == observation.QueueTimeout {
			a.pushback = minPushback + rand.IntN(maxPushback-minPushback+1)
		}
		return a
	}
	return plain(reason)
}

// canceledAtDeadline reports whether the user container canceled a gRPC call because the timeout of
// the client expired. Servers such as grpc-go reset the stream with CANCEL in this case, often
// before the RST_STREAM of the client arrives.
func canceledAtDeadline(o *observation.Observation, x transport.Exchange) bool {
	return grpcStatusOf(o.Err) == grpcCancelled && isExpiredCall(o, x)
}

// isExpiredCall reports whether the request is a gRPC call whose timeout has expired.
func isExpiredCall(o *observation.Observation, x transport.Exchange) bool {
	return transport.IsGRPC(x.Header(transport.ContentType)) && grpcExpired(x.Header(transport.GRPCTimeout), time.Since(o.Start))
}

// gRPC status codes.
const (
	grpcCancelled        = 1
	grpcDeadlineExceeded = 4
)

// grpcUnits maps the unit suffixes of grpc-timeout to durations (gRPC PROTOCOL-HTTP2, section "Requests").
var grpcUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second,
	'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// grpcExpired reports whether the grpc-timeout value has expired after the elapsed time. A missing
// or invalid timeout never expires.
func grpcExpired(timeout string, elapsed time.Duration) bool {
	const maxDigits = 8
	if len(timeout) < 2 || len(timeout) > maxDigits+1 {
		return false
	}
	last := len(timeout) - 1
	unit, known := grpcUnits[timeout[last]]
	n, err := strconv.ParseUint(timeout[:last], 10, 32)
	return known && err == nil && elapsed/unit >= time.Duration(n)
}

// answerProbe returns the response to a probe that is not forwarded.
func (p *Proxy) answerProbe(kind observation.Kind, x transport.Exchange) answer {
	if p.Drain.Draining() {
		return plain(observation.Draining)
	}
	switch kind {
	case observation.QueueProbe:
		ctx, cancel := p.Drain.while(x.Request().Context())
		defer cancel()
		err := p.Ready(ctx)
		if p.Drain.Draining() { // the drain began during the call to Ready
			return plain(observation.Draining)
		}
		if err != nil {
			a := plain(observation.NotReady)
			a.body = err.Error() + "\n"
			return a
		}
		return answer{status: 200, body: knative.QueueValue, grpc: -1}
	case observation.NetworkProbe:
		hash := x.Header(transport.Hash)
		switch {
		case hash == "":
			return badRequest(http.StatusBadRequest, "a probe request must contain a non-empty \""+transport.Hash+"\" header\n")
		case len(hash) > maxHash:
			return badRequest(http.StatusBadRequest, "the \""+transport.Hash+"\" header is longer than 4 KiB\n")
		}
		return answer{status: 200, hash: strings.Clone(hash), grpc: -1}
	default:
		value := x.Header(knative.Probe)
		return badRequest(http.StatusBadRequest, "unexpected probe header value: "+value[:min(len(value), maxEchoValue)]+"\n")
	}
}

// plain returns the HTTP response for a reason.
func plain(reason observation.Reason) answer {
	return answer{status: reason.Status(), body: reason.Body(), reason: reason, grpc: -1}
}

// badRequest returns the response to an invalid request or probe.
func badRequest(status int, body string) answer {
	return answer{status: status, body: body, reason: observation.BadRequest, grpc: -1}
}
