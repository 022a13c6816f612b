// Package transport defines the interface between the protocol engines and the proxy: [Handler], [State], [Exchange],
// [Canceler] and [Answer]. It also defines the errors of a failed exchange ([Error]), the names and roles of HTTP
// fields, and the rules for fields that apply to all versions of HTTP. The packages in its subdirectories implement
// connections and protocols.
//
// The package imports no other package of this module. Therefore it does not define failure reasons. A [Handler] maps
// an error to a failure reason.
package transport

// Hash is the field of a network probe whose value is copied to the response.
const Hash = "K-Network-Hash"

// UserAgent is the field that identifies the client.
const UserAgent = "User-Agent"

// OriginalHost is the field that contains the host that the client requested. The ingress sets it.
const OriginalHost = "K-Original-Host"

// Fields of HTTP.
const (
	Connection       = "Connection"
	ContentLength    = "Content-Length"
	ContentType      = "Content-Type"
	Cookie           = "Cookie"
	Date             = "Date"
	Expect           = "Expect"
	Forwarded        = "Forwarded"
	Host             = "Host"
	ProxyStatus      = "Proxy-Status"
	RetryAfter       = "Retry-After"
	ServerTiming     = "Server-Timing"
	TE               = "Te"
	Trailer          = "Trailer"
	TransferEncoding = "Transfer-Encoding"
	Upgrade          = "Upgrade"
	XForwardedFor    = "X-Forwarded-For"
	XForwardedProto  = "X-Forwarded-Proto"
)

// ProxyName is the name of the sidecar in Proxy-Status (RFC 9209).
const ProxyName = "queue-proxy"

// GRPC is the media type of gRPC requests.
const GRPC = "application/grpc"

// GRPCStatus is the field that contains the status of a gRPC call. It is usually in the trailer
// section.
const GRPCStatus = "Grpc-Status"

// GRPCTimeout is the field that contains the timeout of a gRPC call (gRPC over HTTP/2, section "Requests").
const GRPCTimeout = "Grpc-Timeout"
