package transport

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// askersRetryAfter is the value of Retry-After if the queue or the memory is full, in seconds.
const askersRetryAfter = "1"

// Answer is a response that the sidecar generates. The Proxy-Status field distinguishes it from a
// response of the user container (RFC 9209; docs/promises.md 3.6).
type Answer struct {
	Status int
	Body   string             // "" for gRPC
	Reason observation.Reason // OK for a successful response to a probe
	Hash   string             // value of K-Network-Hash; "" if there is no such field
	GRPC   int                // grpc-status, sent in a response without a body; -1 if the request is not a gRPC call

	// ContentType is the media type of a gRPC call. Clients of connect-go reject a response with a
	// different media type.
	ContentType string

	// Pushback is the time after which a gRPC client retries, in milliseconds. It is sent in
	// grpc-retry-pushback-ms (gRPC proposal A6). 0 means that the field is not sent.
	Pushback int
}

// Size returns the length of the content that the client receives, in bytes.
func (a *Answer) Size(method string) int64 {
	if method == http.MethodHead {
		return 0
	}
	return int64(len(a.Body))
}

// Fields calls yield with each field of the response, except the fields that frame the body.
func (a *Answer) Fields(yield func(name, value string)) {
	status := ProxyName
	if a.Reason != observation.OK {
		status += "; error=" + a.Reason.ErrorType() + `; details="` + a.Reason.String() + `"`
	}
	yield(ProxyStatus, status)
	if a.Hash != "" {
		yield(Hash, a.Hash)
	}
	if a.Reason == observation.QueueFull || a.Reason == observation.QueueTimeout || a.Reason == observation.Overload && a.GRPC < 0 {
		yield(RetryAfter, askersRetryAfter)
	}
	if a.GRPC >= 0 {
		yield(ContentType, cmp.Or(a.ContentType, GRPC))
		yield("Grpc-Status", strconv.Itoa(a.GRPC))
		yield("Grpc-Message", a.Reason.String())
		if a.Pushback > 0 {
			yield("Grpc-Retry-Pushback-Ms", strconv.Itoa(a.Pushback))
		}
		return
	}
	if a.Body != "" {
		yield(ContentType, "text/plain; charset=utf-8")
		if a.Reason != observation.OK {
			yield("X-Content-Type-Options", "nosniff")
		}
	}
}
