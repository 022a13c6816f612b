package forward

import (
	"fmt"
	"net/http"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// MaxInfos is the number of informational responses to one request that the user container can
// send at any rate. See [TooManyInfos].
const MaxInfos = 100

// EachResponseField passes to e the fields of a response, final or informational, that
// the user container has sent for the client. Content-Length is not among them: the
// framing is the engine's. Of Proxy-Status our own member is left out.
func EachResponseField(fields []wire.Field, e Encoder) {
	var room [namesRoom]string
	named := names(room[:0])
	for _, f := range fields {
		if header.RoleOf(f.Name) == header.ConnectionRole {
			named = named.add(wire.String(f.Value))
		}
	}
	for _, f := range fields {
		name, value := wire.String(f.Name), wire.String(f.Value)
		role := header.RoleOf(name)
		if role.IsHop() || role == header.LengthRole {
			continue
		}
		if role == header.ProxyStatusRole {
			if value = header.WithoutOurs(value); value == "" {
				continue
			}
		}
		if !named.has(name) {
			e.Field(name, value)
		}
	}
}

// AppendUpgrade appends the Upgrade fields of a 426 response, which list the protocols that
// the user container requires (RFC 9110 section 15.5.22), and reports whether there are any. The
// caller adds Connection: Upgrade. Other final responses offer protocols to which no client of
// the sidecar can switch.
func AppendUpgrade(b []byte, head *wire.Response) ([]byte, bool) {
	begin := len(b)
	for _, f := range head.Fields {
		if head.Status == http.StatusUpgradeRequired && len(f.Value) > 0 && header.EqualFold(f.Name, header.Upgrade) {
			b = wire.AppendField(b, f.Name, f.Value)
		}
	}
	return b, len(b) > begin
}

// AnnouncedLength returns what Content-Length says to the client of a response whose body
// has so many bytes; -1: it is not said. It is what it would be for GET, or with 200 (RFC 9110
// section 8.6), where there is no body.
func AnnouncedLength(head *wire.Response, length int64) int64 {
	if length < 0 || head.Status == http.StatusNoContent {
		return -1
	}
	return head.ContentLength
}

// Respond notes that the final response with these fields has begun.
func Respond(state *queue.RequestState, fields []wire.Field) {
	contentType, _ := wire.Find(fields, header.ContentType)
	state.Respond(wire.String(contentType))
	if queue.IsGRPC(wire.String(contentType)) {
		noteRPC(state, fields) // of a response that has nothing but a head
	}
}

// noteRPC notes how a gRPC call has ended, if the fields say that.
func noteRPC(state *queue.RequestState, fields []wire.Field) {
	if status, ok := wire.Find(fields, header.GRPCStatus); ok {
		state.EndRPC(wire.String(status))
	}
}

// AppendTiming appends the value of a Server-Timing field (W3C Server Timing): how long a
// request whose response begins now has waited for its slot, and then for the user
// container.
func AppendTiming(b []byte, state *queue.RequestState) []byte {
	queued, slot := state.Waited()
	return fmt.Appendf(b, "queue;dur=%.1f, app;dur=%.1f",
		float64(queued)/float64(time.Millisecond), float64(time.Since(slot))/float64(time.Millisecond))
}
