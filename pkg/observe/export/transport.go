// Package export sends telemetry to a collector. It supports OTLP over HTTP and gRPC, and the
// Zipkin API. It limits the size of a collector response, describes the sender, and rejects endpoints
// that are ports of its own process. Packages metrics and tracing encode the data.
package export

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// A Protocol is a protocol for sending telemetry. The values are the same as in the Knative
// configuration.
type Protocol string

// Values of Protocol.
const (
	None     Protocol = "none"
	Zipkin   Protocol = "zipkin"        // Zipkin v2 API, JSON over HTTP; spans only
	OTLP     Protocol = "http/protobuf" // OTLP/HTTP
	OTLPJSON Protocol = "http/json"     // OTLP/HTTP with JSON; spans only
	OTLPGRPC Protocol = "grpc"          // OTLP/gRPC, unary calls
	Stdout   Protocol = "stdout"        // one line of JSON for each span; not supported by [New]
)

// A Signal is an OTLP signal.
type Signal struct {
	path   string // URL path for OTLP/HTTP
	method string // path of the method for OTLP/gRPC
}

// The signals.
var (
	Traces  = Signal{"/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"}
	Metrics = Signal{"/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"}
)

const (
	zipkinPath = "/api/v2/spans"

	defaultTimeout = 10 * time.Second // the OpenTelemetry default
	maxAfter       = giveUp           // maximum delay from Retry-After
)

// A Target is the destination for one signal.
type Target struct {
	Protocol Protocol
	Endpoint string        // URL or host:port; host:port uses plain text for an IP address and TLS for a host name
	Header   http.Header   // sent with each export; may contain secrets
	Timeout  time.Duration // maximum duration of one attempt; 0 means 10 s
	TLS      *tls.Config   // used for https endpoints; nil means the default configuration with the system roots
	Signal   Signal
	Resource Resource // provides the version for User-Agent, and the pod IP for the check of OwnPorts
	OwnPorts []int    // ports of this process; New returns an error for an endpoint with such a port
}

// Address returns the scheme, host and port of the endpoint for messages. It omits the rest of the URL, which
// may contain secrets. The result is truncated.
func (t *Target) Address() string {
	if t.Protocol == Stdout {
		return "standard output"
	}
	target, err := resolve(t.Endpoint)
	if err != nil {
		return "an invalid endpoint"
	}
	return Text(target.Scheme + "://" + target.Host)
}

// A Sender exports body. It returns the number of spans or points that the collector rejected. If it returns an
// error, which is often a *[Refusal], the collector accepted no spans or points. The caller must not modify body
// afterwards, because an HTTP transport may read it after the Sender returns.
type Sender func(ctx context.Context, body []byte) (rejected int, err error)

// A Refusal is an export error that reports whether a later attempt may succeed. After any other
// error, a later attempt may succeed.
type Refusal struct {
	Err   error
	Again bool          // a later attempt may succeed
	After time.Duration // minimum delay before the next attempt; 0 if the collector did not specify it
}

// Error implements error.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r *Refusal) Unwrap() error { return r.Err }

// New returns a sender and a function that closes its connections. It returns an error if the
// protocol or the endpoint is invalid. The sender supports one export at a time.
func New(t Target) (Sender, func(), error) {
	target, err := resolve(t.Endpoint)
	if err != nil {
		return nil, nil, err
	}
	if t.isOurs(target) {
		return nil, nil, fmt.Errorf("endpoint %q: the port belongs to this sidecar", target.Redacted())
	}
	if t.Timeout <= 0 {
		t.Timeout = defaultTimeout
	}
	fields := t.Header.Clone()
	if fields == nil {
		fields = http.Header{}
	}
	fields.Set(transport.UserAgent, strings.TrimSuffix(transport.ProxyName+"/"+t.Resource.Version, "/"))
	e := &end{fields: fields, timeout: t.Timeout}
	export, proxied := e.post, true
	var protocols http.Protocols
	protocols.SetHTTP1(t.Protocol != OTLPGRPC)
	protocols.SetHTTP2(true) // used only over TLS
	switch t.Protocol {
	case OTLPGRPC:
		protocols.SetUnencryptedHTTP2(true)
		proxied = target.Scheme == "https" // proxies use HTTP/1.1 for plain-text targets
		target.Path, target.RawPath, target.RawQuery = t.Signal.method, "", ""
		fields.Set(transport.ContentType, transport.GRPC)
		fields.Set(transport.TE, "trailers")
		export = e.call
	case Zipkin:
		if strings.Trim(target.Path, "/") == "" {
			target.Path = zipkinPath
		}
		fields.Set(transport.ContentType, "application/json")
	case OTLP:
		fields.Set(transport.ContentType, "application/x-protobuf")
		e.rejected = rejectedProto
	case OTLPJSON:
		fields.Set(transport.ContentType, "application/json")
		e.rejected = rejectedJSON
	default:
		return nil, nil, fmt.Errorf("exporter %q: must be one of zipkin, http/protobuf, http/json, grpc, stdout, none", t.Protocol)
	}
	target.Path = cmp.Or(target.Path, t.Signal.path)
	e.target = target.String()
	var proxy *url.URL
	if proxied {
		if proxy, err = http.ProxyFromEnvironment(&http.Request{URL: target}); err != nil {
			return nil, nil, fmt.Errorf("invalid proxy in the environment: %w", err)
		}
	}
	conn := newConnection(proxy, &protocols, t.TLS)
	e.client = &http.Client{Transport: conn, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // do not send telemetry to the target of a redirect
	}}
	return export, conn.close, nil
}

// resolve parses an endpoint. If the endpoint has no scheme, resolve uses TLS for a host name, as Knative
// does for name:port. It uses plain text for an IP address, because certificates for IP addresses are
// rare. Knative rejects an IP address with a port.
func resolve(endpoint string) (*url.URL, error) {
	whole := strings.TrimSpace(endpoint)
	if whole == "" {
		return nil, errors.New("the endpoint is missing")
	}
	if !hasScheme(whole) {
		host, _, _ := strings.Cut(whole, "/")
		if isAddress(host) {
			whole = "http://" + whole
		} else {
			whole = "https://" + whole
		}
	}
	target, err := url.Parse(whole)
	if err != nil {
		return nil, fmt.Errorf("the endpoint is not a URL: %w", plainError(err))
	}
	switch {
	case target.Scheme != "http" && target.Scheme != "https":
		return nil, fmt.Errorf("endpoint %q: the scheme must be http or https", target.Redacted())
	case target.Hostname() == "":
		return nil, fmt.Errorf("endpoint %q: the host is missing", target.Redacted())
	}
	if port := target.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("endpoint %q: invalid port %s", target.Redacted(), port)
		}
	}
	target.Fragment, target.RawFragment = "", ""
	return target, nil
}

// isOurs reports whether target is a port of this process. An export to such a port would be a request
// that is itself exported. isOurs does not detect a host name that resolves to this pod. Such a host
// name causes one additional request per export.
func (t *Target) isOurs(target *url.URL) bool {
	port, _ := strconv.Atoi(target.Port()) // 0 if there is no port; the default ports 80 and 443 are not checked
	if !slices.Contains(t.OwnPorts, port) {
		return false
	}
	host := target.Hostname()
	ip, _ := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || ip.IsLoopback() || ip.IsUnspecified() || host == t.Resource.PodIP
}

func hasScheme(endpoint string) bool { return strings.Contains(endpoint, "://") }

// CheckEndpoint returns an error if the endpoint of a signal is invalid. remark is a warning if
// written has no scheme, and "" otherwise.
func CheckEndpoint(signal, endpoint, written string) (remark string, err error) {
	target, err := resolve(endpoint)
	if err == nil && !hasScheme(written) {
		remark = fmt.Sprintf("the %s endpoint has no scheme; using %s", signal, target.Redacted())
	}
	return remark, err
}

// isAddress reports whether host is an IP address with or without a port.
func isAddress(host string) bool {
	if _, err := netip.ParseAddrPort(host); err == nil {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// An end sends exports to one URL.
type end struct {
	client   *http.Client
	target   string
	fields   http.Header
	timeout  time.Duration
	rejected func(answer []byte) int // returns the number of rejected spans or points; may be nil
}

// roundTrip sends a body and returns the response and its body.
func (e *end) roundTrip(ctx context.Context, body []byte) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.target, bytes.NewReader(body))
	if err != nil {
		return nil, nil, &Refusal{Err: err}
	}
	req.Header = e.fields.Clone()
	res, err := e.client.Do(req)
	if err != nil {
		return nil, nil, &Refusal{Err: shortError(plainError(err)), Again: true}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, nil, &Refusal{Err: shortError(err), Again: true}
	}
	return res, answer, nil
}

// plainError removes the URL from an error, because a URL may contain a password.
func plainError(err error) error {
	if where, ok := errors.AsType[*url.Error](err); ok {
		return where.Err
	}
	return err
}

// shortError truncates an error for the log. net/http errors quote the response from the
// collector, and certificate errors list all names of the certificate.
func shortError(err error) error {
	if s := err.Error(); len(s) > MaxText {
		return errors.New(Text(s))
	}
	return err
}

// post is a Sender for HTTP. The error allows a retry for the status codes that OTLP defines as
// retryable (OTLP 1.x, "Retryable Response Codes").
func (e *end) post(ctx context.Context, body []byte) (int, error) {
	res, answer, err := e.roundTrip(ctx, body)
	switch {
	case err != nil:
		return 0, err
	case res.StatusCode/100 == 2 && e.rejected != nil:
		return e.rejected(answer), nil
	case res.StatusCode/100 == 2:
		return 0, nil
	}
	return 0, refused(res)
}

// refused returns the Refusal for an HTTP status.
func refused(res *http.Response) error {
	r := &Refusal{Err: fmt.Errorf("the collector returned %d %s", res.StatusCode, http.StatusText(res.StatusCode))}
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.Again = true
		r.After = retryAfter(res.Header.Get(transport.RetryAfter))
	}
	return r
}

// retryAfter parses Retry-After (RFC 9110 section 10.2.3). The result is 0 if s is invalid.
func retryAfter(s string) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxAfter)
	}
	at, _ := http.ParseTime(s) // if s is invalid, at is the zero time, and the result is 0
	return min(max(time.Until(at), 0), maxAfter)
}

// call is a Sender for unary gRPC calls (grpc/doc/PROTOCOL-HTTP2.md).
func (e *end) call(ctx context.Context, body []byte) (int, error) {
	res, answer, err := e.roundTrip(ctx, transport.GRPCFrame(body))
	if err != nil {
		return 0, err
	}
	status, message := transport.GRPCResult(res)
	switch {
	case status == "" && len(answer) == maxAnswer:
		return 0, &Refusal{Err: errors.New("the response of the collector exceeds 64 KiB")}
	case status == "":
		return 0, refused(res)
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		return 0, &Refusal{Err: fmt.Errorf("invalid grpc-status of the collector: %.32q", status)}
	}
	if code == 0 {
		response, _ := transport.GRPCMessage(answer) // the export is accepted even if the message is compressed
		return rejectedProto(response), nil
	}
	r := &Refusal{Err: fmt.Errorf("the collector returned grpc-status %d: %.256q", code, message)}
	switch code {
	case grpcCancelled, grpcDeadlineExceeded, grpcAborted, grpcOutOfRange, grpcUnavailable, grpcDataLoss:
		r.Again = true
	}
	return 0, r
}

// gRPC status codes that OTLP defines as retryable (OTLP 1.x, "Failures"). RESOURCE_EXHAUSTED is not included, because
// it is retryable only if the status details contain RetryInfo, which call does not parse.
const (
	grpcCancelled        = 1
	grpcDeadlineExceeded = 4
	grpcAborted          = 10
	grpcOutOfRange       = 11
	grpcUnavailable      = 14
	grpcDataLoss         = 15
)
