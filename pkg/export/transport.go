// Package export carries telemetry to a collector: OTLP over HTTP or gRPC, and Zipkin's
// spans. It bounds what a collector may answer, names who sends, and never sends to a
// port of its own process. What is in a body is the business of packages metrics and
// tracing.
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

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// A Protocol is how telemetry is sent. The values are those of Knative's configuration.
type Protocol string

// The protocols.
const (
	None     Protocol = "none"
	Zipkin   Protocol = "zipkin"        // Zipkin's v2 API, JSON over HTTP; spans only
	OTLP     Protocol = "http/protobuf" // OTLP/HTTP
	OTLPJSON Protocol = "http/json"     // OTLP/HTTP, the same as JSON; spans only
	OTLPGRPC Protocol = "grpc"          // OTLP/gRPC, unary calls
	Stdout   Protocol = "stdout"        // a line of JSON for each span; not for [New]
)

// A Signal is what OTLP calls traces or metrics.
type Signal struct {
	path   string // of OTLP/HTTP
	method string // of OTLP/gRPC
}

// The signals.
var (
	Traces  = Signal{"/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"}
	Metrics = Signal{"/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"}
)

const (
	zipkinPath = "/api/v2/spans"

	defaultTimeout = 10 * time.Second // OpenTelemetry's
	maxAfter       = giveUp           // of a Retry-After
)

// A Target is where one signal goes, and how.
type Target struct {
	Protocol Protocol
	Endpoint string        // a URL, or host:port: plain text to an address, TLS to a name
	Header   http.Header   // sent with each export; may hold secrets
	Timeout  time.Duration // of one export; 0: 10 s
	TLS      *tls.Config   // towards https endpoints; nil: the system's roots
	Signal   Signal
	Resource Resource // whose version is named, and to whose address nothing is sent
	OwnPorts []int    // of this process: nothing is sent there
}

// A Sender exports a body. It returns how many of the spans or points in it the
// collector has rejected; the error, often a *[Refusal], is why all of them are lost.
type Sender func(ctx context.Context, body []byte) (rejected int, err error)

// A Refusal is why an export failed, and whether it may succeed later. It may after any
// other error.
type Refusal struct {
	Err   error
	Again bool          // it may succeed later
	After time.Duration // not before; 0: the collector named no time
}

// Error implements error.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r *Refusal) Unwrap() error { return r.Err }

// New returns a sender, and a func that closes its connections. The error is about the
// protocol or the endpoint. The sender is for one export at a time.
func New(t Target) (Sender, func(), error) {
	target, err := resolve(t.Endpoint)
	if err != nil {
		return nil, nil, err
	}
	if t.isOurs(target) {
		return nil, nil, fmt.Errorf("endpoint %q: it is a port of this sidecar", target.Redacted())
	}
	if t.Timeout <= 0 {
		t.Timeout = defaultTimeout
	}
	fields := t.Header.Clone()
	if fields == nil {
		fields = http.Header{}
	}
	fields.Set(header.UserAgent, strings.TrimSuffix(header.ProxyName+"/"+t.Resource.Version, "/"))
	e := &end{fields: fields, timeout: t.Timeout}
	export, proxied := e.post, true
	var protocols http.Protocols
	protocols.SetHTTP1(t.Protocol != OTLPGRPC)
	protocols.SetHTTP2(true) // inside TLS
	switch t.Protocol {
	case OTLPGRPC:
		protocols.SetUnencryptedHTTP2(true)
		proxied = target.Scheme == "https" // proxies speak HTTP/1.1 to plain targets
		target.Path, target.RawPath, target.RawQuery = t.Signal.method, "", ""
		fields.Set(header.ContentType, header.GRPC)
		fields.Set(header.TE, "trailers")
		export = e.call
	case Zipkin:
		if strings.Trim(target.Path, "/") == "" {
			target.Path = zipkinPath
		}
		fields.Set(header.ContentType, "application/json")
	case OTLP:
		fields.Set(header.ContentType, "application/x-protobuf")
		e.rejected = rejectedProto
	case OTLPJSON:
		fields.Set(header.ContentType, "application/json")
		e.rejected = rejectedJSON
	default:
		return nil, nil, fmt.Errorf("exporter %q: not one of zipkin, http/protobuf, http/json, grpc, stdout, none", t.Protocol)
	}
	target.Path = cmp.Or(target.Path, t.Signal.path)
	e.target = target.String()
	var proxy *url.URL
	if proxied {
		if proxy, err = http.ProxyFromEnvironment(&http.Request{URL: target}); err != nil {
			return nil, nil, fmt.Errorf("the proxy of the environment: %w", err)
		}
	}
	conn := newConnection(proxy, &protocols, t.TLS)
	e.client = &http.Client{Transport: conn, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // what we send is not for others
	}}
	return export, conn.close, nil
}

// resolve reads an endpoint. Knative takes name:port for TLS and stops at an address
// with a port; an address hardly ever has a certificate, so that means plain text.
func resolve(endpoint string) (*url.URL, error) {
	whole := strings.TrimSpace(endpoint)
	if whole == "" {
		return nil, errors.New("there is no endpoint")
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
		return nil, fmt.Errorf("endpoint %q: neither http nor https", target.Redacted())
	case target.Hostname() == "":
		return nil, fmt.Errorf("endpoint %q: it has no host", target.Redacted())
	}
	if port := target.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("endpoint %q: port %s is not between 1 and 65535", target.Redacted(), port)
		}
	}
	target.Fragment, target.RawFragment = "", ""
	return target, nil
}

// isOurs reports whether an endpoint is a port of this process: each export would be a
// request, of which there is something to export. One that leads here by another name
// cannot be known; it costs a request for each export.
func (t *Target) isOurs(target *url.URL) bool {
	port, _ := strconv.Atoi(target.Port()) // "" is no port of ours: they would have to be below 1024
	if !slices.Contains(t.OwnPorts, port) {
		return false
	}
	host := target.Hostname()
	ip, _ := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || ip.IsLoopback() || ip.IsUnspecified() || host == t.Resource.PodIP
}

func hasScheme(endpoint string) bool { return strings.Contains(endpoint, "://") }

// CheckEndpoint returns why nothing can be sent to the endpoint of a signal, and what to
// tell whoever wrote it without a scheme; "": nothing.
func CheckEndpoint(signal, endpoint, written string) (remark string, err error) {
	target, err := resolve(endpoint)
	if err == nil && !hasScheme(written) {
		remark = fmt.Sprintf("the %s endpoint has no scheme; it is taken for %s", signal, target.Redacted())
	}
	return remark, err
}

// isAddress reports whether a host, with or without a port, is an IP address.
func isAddress(host string) bool {
	if _, err := netip.ParseAddrPort(host); err == nil {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// An end is the other end of an HTTP connection.
type end struct {
	client   *http.Client
	target   string
	fields   http.Header
	timeout  time.Duration
	rejected func(answer []byte) int // reads how much of an accepted export was refused; may be nil
}

// roundTrip sends a body and returns the answer with its body read.
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

// plainError is an error without the URL, which may hold a password.
func plainError(err error) error {
	if where, ok := errors.AsType[*url.Error](err); ok {
		return where.Err
	}
	return err
}

// shortError truncates an error for the log. Errors of net/http quote the response of the collector,
// and errors about certificates contain all of their names.
func shortError(err error) error {
	if s := err.Error(); len(s) > maxText {
		return errors.New(Text(s))
	}
	return err
}

// post is a sender over HTTP. It tries again on what OTLP calls retryable
// (OTLP 1.x, "Retryable Response Codes").
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

// refused is the refusal that an HTTP status means.
func refused(res *http.Response) error {
	r := &Refusal{Err: fmt.Errorf("the collector answered %d %s", res.StatusCode, http.StatusText(res.StatusCode))}
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.Again = true
		r.After = retryAfter(res.Header.Get(header.RetryAfter))
	}
	return r
}

// retryAfter reads a Retry-After (RFC 9110 section 10.2.3).
func retryAfter(s string) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxAfter)
	}
	at, _ := http.ParseTime(s) // what is no time is long ago
	return min(max(time.Until(at), 0), maxAfter)
}

// call is a sender by a unary gRPC call (grpc/doc/PROTOCOL-HTTP2.md).
func (e *end) call(ctx context.Context, body []byte) (int, error) {
	res, answer, err := e.roundTrip(ctx, header.GRPCFrame(body))
	if err != nil {
		return 0, err
	}
	status, message := header.GRPCResult(res)
	switch {
	case status == "" && len(answer) == maxAnswer:
		return 0, &Refusal{Err: errors.New("the collector's answer is longer than 64 KiB")}
	case status == "":
		return 0, refused(res)
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		return 0, &Refusal{Err: fmt.Errorf("the collector's grpc-status is %.32q", status)}
	}
	if code == 0 {
		response, _ := header.GRPCMessage(answer) // the export is accepted even if the message is compressed
		return rejectedProto(response), nil
	}
	r := &Refusal{Err: fmt.Errorf("the collector answered grpc-status %d: %.256q", code, message)}
	switch code {
	case grpcCancelled, grpcDeadlineExceeded, grpcAborted, grpcOutOfRange, grpcUnavailable, grpcDataLoss:
		r.Again = true
	}
	return 0, r
}

// Codes of gRPC after which OTLP tries again (OTLP 1.x, "Failures"). Exhausted is not
// among them: that it may be retried would be in a detail that we do not read.
const (
	grpcCancelled        = 1
	grpcDeadlineExceeded = 4
	grpcAborted          = 10
	grpcOutOfRange       = 11
	grpcUnavailable      = 14
	grpcDataLoss         = 15
)
