// Package header contains the names and values of HTTP fields, the User-Agent prefixes that Knative
// and Kubernetes use, and the rules for fields that all engines share.
//
// The package does not import other packages of this project and has no state.
package header

// Probe is the field that marks a request as a probe. Hash is a field of a network probe
// (docs/promises.md section 1).
const (
	Probe        = "K-Network-Probe"
	Hash         = "K-Network-Hash"
	kubeletProbe = "K-Kubelet-Probe"
	UserAgent    = "User-Agent"
)

// Values of [Probe].
const (
	QueueValue   = "queue" // also the body of a successful response
	networkValue = "probe"
)

// Fields that the activator and the ingress set.
const (
	ProxyRequest   = "K-Proxy-Request"
	OriginalHost   = "K-Original-Host"
	ActivatorValue = "activator" // value of ProxyRequest if the request came through the activator
)

// Prefixes of User-Agent. The comparison is case-sensitive (docs/promises.md section 1).
const (
	kubeletAgent     = "kube-probe/"
	activatorAgent   = "Knative-Activator-Probe"
	autoscalingAgent = "Knative-Autoscaling-Probe"
)

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

// GRPCTimeout is the field that contains the timeout of a gRPC call (gRPC's PROTOCOL-HTTP2, section
// "Requests").
const GRPCTimeout = "Grpc-Timeout"
