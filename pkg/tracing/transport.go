package tracing

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
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

// A signal is what OTLP calls traces or metrics: where each goes.
type signal struct {
	path   string // of OTLP/HTTP
	method string // of OTLP/gRPC
}

var (
	traceSignal  = signal{"/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"}
	metricSignal = signal{"/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"}
)

const (
	zipkinPath = "/api/v2/spans"

	defaultTimeout = 10 * time.Second // OpenTelemetry's
	maxAfter       = giveUp           // of a Retry-After
)

// A transport is how bodies get to the other end.
type transport struct {
	exporter Exporter
	endpoint string
	header   http.Header
	timeout  time.Duration // 0: 10 s
	tls      *tls.Config
	version  string
	signal   signal
	ownPorts []int  // of this process
	ownIP    string // of the pod; "": unknown
}

// newSender returns a sender, and a func that closes its connections.
func newSender(t *transport) (sender, func(), error) {
	target, err := resolve(t.endpoint)
	if err != nil {
		return nil, nil, err
	}
	if t.isOurs(target) {
		return nil, nil, fmt.Errorf("endpoint %q: it is a port of this sidecar", target.Redacted())
	}
	if t.timeout <= 0 {
		t.timeout = defaultTimeout
	}
	fields := t.header.Clone()
	if fields == nil {
		fields = http.Header{}
	}
	fields.Set(header.UserAgent, strings.TrimSuffix(header.ProxyName+"/"+t.version, "/"))
	e := &end{fields: fields, timeout: t.timeout}
	export, proxied := e.post, true
	var protocols http.Protocols
	protocols.SetHTTP1(t.exporter != OTLPGRPC)
	protocols.SetHTTP2(true) // inside TLS
	switch t.exporter {
	case OTLPGRPC:
		protocols.SetUnencryptedHTTP2(true)
		proxied = target.Scheme == "https" // proxies speak HTTP/1.1 to plain targets
		target.Path, target.RawPath, target.RawQuery = t.signal.method, "", ""
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
		return nil, nil, fmt.Errorf("exporter %q: not one of zipkin, http/protobuf, http/json, grpc, stdout, none", t.exporter)
	}
	if target.Path == "" {
		target.Path = t.signal.path
	}
	e.target = target.String()
	var proxy *url.URL
	if proxied {
		if proxy, err = http.ProxyFromEnvironment(&http.Request{URL: target}); err != nil {
			return nil, nil, fmt.Errorf("the proxy of the environment: %w", err)
		}
	}
	conn := newConnection(proxy, &protocols, t.tls)
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
func (t *transport) isOurs(target *url.URL) bool {
	port, _ := strconv.Atoi(target.Port()) // "" is no port of ours: they would have to be below 1024
	if !slices.Contains(t.ownPorts, port) {
		return false
	}
	host := target.Hostname()
	ip, _ := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || ip.IsLoopback() || ip.IsUnspecified() || host == t.ownIP
}

func hasScheme(endpoint string) bool { return strings.Contains(endpoint, "://") }

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
		return nil, nil, &refusal{err: err}
	}
	for name, values := range e.fields {
		req.Header[name] = values
	}
	res, err := e.client.Do(req)
	if err != nil {
		return nil, nil, &refusal{err: shortError(plainError(err)), again: true}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, nil, &refusal{err: shortError(err), again: true}
	}
	return res, answer, nil
}

// plainError is an error without the URL, which may hold a password.
func plainError(err error) error {
	var where *url.Error
	if errors.As(err, &where) {
		return where.Err
	}
	return err
}

// shortError is an error that can be logged: net/http's quote what the collector sent,
// and a certificate's all of its names.
func shortError(err error) error {
	if s := err.Error(); len(s) > maxText {
		return errors.New(text(s) + "...")
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
	r := &refusal{err: fmt.Errorf("the collector answered %d %s", res.StatusCode, http.StatusText(res.StatusCode))}
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.again = true
		r.after = retryAfter(res.Header.Get(header.RetryAfter))
	}
	return r
}

// retryAfter reads a Retry-After (RFC 9110 section 10.2.3).
func retryAfter(s string) time.Duration {
	if s == "" {
		return 0
	}
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxAfter)
	}
	at, err := http.ParseTime(s)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxAfter)
}

// call is a sender by a unary gRPC call (grpc/doc/PROTOCOL-HTTP2.md).
func (e *end) call(ctx context.Context, body []byte) (int, error) {
	frame := make([]byte, 0, frameHead+len(body))
	frame = append(frame, 0) // not compressed
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(body)))
	frame = append(frame, body...)
	res, answer, err := e.roundTrip(ctx, frame)
	if err != nil {
		return 0, err
	}
	status, message := res.Trailer.Get(grpcStatus), res.Trailer.Get(grpcMessage)
	if status == "" { // a server without an answer puts it into the head
		status, message = res.Header.Get(grpcStatus), res.Header.Get(grpcMessage)
	}
	switch {
	case status == "" && len(answer) == maxAnswer:
		return 0, &refusal{err: errors.New("the collector's answer is longer than 64 KiB")}
	case status == "":
		return 0, refused(res)
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		return 0, &refusal{err: fmt.Errorf("the collector's grpc-status is %.32q", status)}
	}
	if code == 0 {
		if len(answer) < frameHead || answer[0] != 0 {
			return 0, nil // it said yes in whatever words
		}
		return rejectedProto(answer[frameHead:]), nil
	}
	r := &refusal{err: fmt.Errorf("the collector answered grpc-status %d: %.256q", code, message)}
	switch code {
	case grpcCancelled, grpcDeadlineExceeded, grpcAborted, grpcOutOfRange, grpcUnavailable, grpcDataLoss:
		r.again = true
	}
	return 0, r
}

const (
	frameHead   = 5 // bytes before a gRPC message
	grpcStatus  = "Grpc-Status"
	grpcMessage = "Grpc-Message"
)

// Codes of gRPC after which OTLP tries again (OTLP 1.x, "Failures"). Exhausted is not
// among them: a server that means it to be says so in a detail that we do not read.
const (
	grpcCancelled        = 1
	grpcDeadlineExceeded = 4
	grpcAborted          = 10
	grpcOutOfRange       = 11
	grpcUnavailable      = 14
	grpcDataLoss         = 15
)

// rejectedJSON is rejectedProto of OTLP/HTTP with JSON.
func rejectedJSON(answer []byte) int {
	var v struct {
		PartialSuccess struct {
			RejectedSpans      json.Number `json:"rejectedSpans"` // a string by protobuf's rules, a number by some
			RejectedDataPoints json.Number `json:"rejectedDataPoints"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &v) != nil {
		return 0
	}
	for _, s := range []json.Number{v.PartialSuccess.RejectedSpans, v.PartialSuccess.RejectedDataPoints} {
		if n, err := s.Int64(); err == nil && n > 0 {
			return int(n)
		}
	}
	return 0
}
