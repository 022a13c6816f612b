// Package header holds what is spelt on the wire: the names, values and
// user-agent prefixes by which Knative and Kubernetes speak to a queue-proxy,
// and the rules for fields that every engine shares.
//
// It imports nothing of this project and keeps no state.
package header

// Probe is the field that marks a request as a probe, and Hash the field that a
// network probe carries (docs/promises.md section 1).
const (
	Probe        = "K-Network-Probe"
	Hash         = "K-Network-Hash"
	kubeletProbe = "K-Kubelet-Probe"
	UserAgent    = "User-Agent"
)

// Values of [Probe].
const (
	QueueValue   = "queue" // also the body of a good answer
	networkValue = "probe"
)

// Fields that the activator and the ingress set for us.
const (
	ProxyRequest   = "K-Proxy-Request"
	OriginalHost   = "K-Original-Host"
	ActivatorValue = "activator" // of ProxyRequest: the request came through the activator
)

// Prefixes of User-Agent, compared with case (docs/promises.md section 1).
const (
	kubeletAgent     = "kube-probe/"
	activatorAgent   = "Knative-Activator-Probe"
	autoscalingAgent = "Knative-Autoscaling-Probe"
)

// Fields of HTTP itself.
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

// ProxyName is the name by which the sidecar speaks of itself (RFC 9209).
const ProxyName = "queue-proxy"

// GRPC is the media type of gRPC requests.
const GRPC = "application/grpc"

// GRPCStatus is the field, nearly always of a trailer section, by which gRPC says how a
// call has ended.
const GRPCStatus = "Grpc-Status"

// GRPCTimeout contains the timeout of a gRPC call (gRPC's PROTOCOL-HTTP2, section "Requests").
const GRPCTimeout = "Grpc-Timeout"
