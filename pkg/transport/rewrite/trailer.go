package rewrite

import (
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// headerOnly lists, in lower case, the fields without a role that a recipient must evaluate before the content. RFC
// 9110 section 6.5.1 lists the categories of such fields.
var headerOnly = []string{
	"authorization", "cookie", "set-cookie", "www-authenticate", // authentication
	"cache-control", "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since",
	"max-forwards", "pragma", "range", // request modifiers
	"age", "expires", "location", "retry-after", "vary", // response controls
	"content-encoding", "content-range", "content-type", // content format
}

// mayTrail reports whether a trailer field is forwarded. The fields in headerOnly, framing and routing fields,
// hop-by-hop fields and internal fields are not forwarded.
func mayTrail(name string) bool {
	if strings.HasPrefix(name, "grpc-") { // every gRPC response has trailer fields with this prefix
		return true
	}
	switch transport.RoleOf(name) {
	case transport.Plain, transport.ProxyStatusRole:
	default:
		return false
	}
	return !slices.ContainsFunc(headerOnly, func(n string) bool { return transport.EqualFold(name, n) })
}

// RequestTrailer returns the fields of a request's trailer section that the user container
// receives. It does not change fields.
func RequestTrailer(fields []wire.Field) []wire.Field {
	removed := func(f wire.Field) bool { return !mayTrail(wire.String(f.Name)) }
	if !slices.ContainsFunc(fields, removed) {
		return fields
	}
	return slices.DeleteFunc(slices.Clone(fields), removed)
}

// ResponseTrailer returns the fields of a response's trailer section that the client receives. It uses the memory of
// fields, removes the member for the sidecar from Proxy-Status (RFC 9209 section 2), and records the status of a gRPC
// call in state.
func ResponseTrailer(state transport.State, fields []wire.Field) []wire.Field {
	noteRPC(state, fields)
	kept := fields[:0]
	for _, f := range fields {
		if !mayTrail(wire.String(f.Name)) {
			continue
		}
		if transport.RoleOf(f.Name) == transport.ProxyStatusRole {
			if f.Value = []byte(WithoutOurs(string(f.Value))); len(f.Value) == 0 {
				continue
			}
		}
		kept = append(kept, f)
	}
	return kept
}
