package rewrite

import (
	"fmt"
	"net/http"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// MaxInfos is the number of informational responses to one request that the user container can send before a rate limit
// applies. See [TooManyInfos].
const MaxInfos = 100

// EachResponseField passes to e the fields of a final or informational response that are forwarded to the client.
// It does not pass Content-Length, because the engine frames the body. It removes the member for the sidecar from
// Proxy-Status.
func EachResponseField(fields []wire.Field, e Encoder) {
	var room [namesRoom]string
	named := names(room[:0])
	for _, f := range fields {
		if transport.RoleOf(f.Name) == transport.ConnectionRole {
			named = named.add(wire.String(f.Value))
		}
	}
	for _, f := range fields {
		name, value := wire.String(f.Name), wire.String(f.Value)
		role := transport.RoleOf(name)
		if role.IsHop() || role == transport.LengthRole {
			continue
		}
		if role == transport.ProxyStatusRole {
			if value = WithoutOurs(value); value == "" {
				continue
			}
		}
		if !named.has(name) {
			e.Field(name, value)
		}
	}
}

// AppendUpgrade appends the Upgrade fields of a 426 response and reports whether there are any.
// They list the protocols that the user container requires (RFC 9110 section 15.5.22). The caller
// adds Connection: Upgrade. Upgrade fields of other final responses are not forwarded, because no
// client of the sidecar can switch to their protocols.
func AppendUpgrade(b []byte, head *wire.Response) ([]byte, bool) {
	begin := len(b)
	for _, f := range head.Fields {
		if head.Status == http.StatusUpgradeRequired && len(f.Value) > 0 && transport.EqualFold(f.Name, transport.Upgrade) {
			b = wire.AppendField(b, f.Name, f.Value)
		}
	}
	return b, len(b) > begin
}

// AnnouncedLength returns the Content-Length of a response to the client, or -1 if there is no such field. length
// is the length of the body in bytes, or -1. A response without a body may have the Content-Length of the response
// to GET or of the response with status 200 (RFC 9110 section 8.6).
func AnnouncedLength(head *wire.Response, length int64) int64 {
	if length < 0 || head.Status == http.StatusNoContent {
		return -1
	}
	return head.ContentLength
}

// Respond records that the final response with these fields has begun.
func Respond(state transport.State, fields []wire.Field) {
	contentType, _ := wire.Find(fields, transport.ContentType)
	state.Respond(wire.String(contentType))
	if transport.IsGRPC(wire.String(contentType)) {
		noteRPC(state, fields) // a response without content and trailers contains the status in its header section
	}
}

// noteRPC records the result of a gRPC call if the fields contain it.
func noteRPC(state transport.State, fields []wire.Field) {
	if status, ok := wire.Find(fields, transport.GRPCStatus); ok {
		state.EndRPC(wire.String(status))
	}
}

// AppendTiming appends the value of a Server-Timing field (W3C Server Timing) for a response that begins now. The
// value contains the time that the request waited for its slot and the time since it acquired the slot, in
// milliseconds.
func AppendTiming(b []byte, state transport.State) []byte {
	queued, slot := state.Waited()
	return fmt.Appendf(b, "queue;dur=%.1f, app;dur=%.1f",
		float64(queued)/float64(time.Millisecond), float64(time.Since(slot))/float64(time.Millisecond))
}
