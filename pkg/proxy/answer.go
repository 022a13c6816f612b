package proxy

import (
	"cmp"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/knative"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Limits on the parts of a request that a response repeats (docs/promises.md section 1).
const (
	maxHash      = 4 << 10 // maximum length of the hash of a network probe in bytes
	maxEchoValue = 256     // maximum length of the value of an unknown probe in bytes
	maxMediaType = 64      // maximum length of the media type of a gRPC call in bytes
)

// The range of a pushback in milliseconds. The value is random, because clients retry UNAVAILABLE
// by their own policies, often immediately, and must not all retry at the same time.
const (
	minPushback = 500
	maxPushback = 1500
)

// answerFor returns the response to a request that failed. A gRPC client ignores HTTP errors, so it
// receives the status 200 and a grpc-status.
func answerFor(o *observation.Observation, x transport.Exchange) transport.Answer {
	reason := o.Reason
	if contentType := x.Header(transport.ContentType); transport.IsGRPC(contentType) {
		a := transport.Answer{Status: 200, Reason: reason, GRPC: cmp.Or(o.GRPC, reason.GRPC())}
		a.ContentType, _, _ = strings.Cut(contentType, ";")
		a.ContentType = strings.TrimSpace(a.ContentType)
		if len(a.ContentType) > maxMediaType {
			a.ContentType = ""
		}
		if reason.IsApp() && grpcExpired(x.Header(transport.GRPCTimeout), time.Since(o.Start)) {
			a.GRPC = grpcDeadlineExceeded
		}
		if reason == observation.QueueFull || reason == observation.QueueTimeout {
			a.Pushback = minPushback + rand.IntN(maxPushback-minPushback+1)
		}
		return a
	}
	return transport.Answer{Status: reason.Status(), Body: reason.Body(), Reason: reason, GRPC: -1}
}

// canceledAtDeadline reports whether the user container canceled a gRPC call because the timeout of
// the client expired. Servers such as grpc-go reset the stream with CANCEL in this case, often
// before the RST_STREAM of the client arrives.
func canceledAtDeadline(o *observation.Observation, x transport.Exchange) bool {
	return o.GRPC == grpcCancelled && transport.IsGRPC(x.Header(transport.ContentType)) &&
		grpcExpired(x.Header(transport.GRPCTimeout), time.Since(o.Start))
}

// gRPC status codes.
const (
	grpcCancelled        = 1
	grpcDeadlineExceeded = 4
)

// grpcUnits contains the units of grpc-timeout (gRPC's PROTOCOL-HTTP2, section "Requests").
var grpcUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second,
	'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// grpcExpired reports whether a grpc-timeout has expired after the given time. A missing or invalid
// timeout never expires.
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

// answerProbe returns the response to a probe for the sidecar.
func (p *Proxy) answerProbe(kind observation.Kind, x transport.Exchange) transport.Answer {
	if p.Drain.Draining() {
		return plain(observation.Draining)
	}
	switch kind {
	case observation.QueueProbe:
		ctx, cancel := p.Drain.while(x.Request().Context())
		defer cancel()
		err := p.Ready(ctx)
		if p.Drain.Draining() { // the drain began during the call of Ready
			return plain(observation.Draining)
		}
		if err != nil {
			a := plain(observation.NotReady)
			a.Body = err.Error() + "\n"
			return a
		}
		return transport.Answer{Status: 200, Body: knative.QueueValue, GRPC: -1}
	case observation.NetworkProbe:
		hash := x.Header(transport.Hash)
		switch {
		case hash == "":
			return badProbe("a probe request must contain a non-empty \"" + transport.Hash + "\" header\n")
		case len(hash) > maxHash:
			return badProbe("the \"" + transport.Hash + "\" header is longer than 4 KiB\n")
		}
		return transport.Answer{Status: 200, Hash: strings.Clone(hash), GRPC: -1}
	default:
		value := x.Header(knative.Probe)
		return badProbe("unexpected probe header value: " + value[:min(len(value), maxEchoValue)] + "\n")
	}
}

// plain returns the HTTP response to a probe. The media type of the probe does not matter.
func plain(reason observation.Reason) transport.Answer {
	return transport.Answer{Status: reason.Status(), Body: reason.Body(), Reason: reason, GRPC: -1}
}

func badProbe(body string) transport.Answer {
	return transport.Answer{Status: 400, Body: body, Reason: observation.BadRequest, GRPC: -1}
}
