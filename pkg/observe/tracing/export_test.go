package tracing

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	zipkinmodel "github.com/openzipkin/zipkin-go/model"
	"go.opencensus.io/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A span contains the fields that all formats support.
type span struct {
	trace, id, parent, name, kind string
	micros                        uint64
	attributes                    map[string]string
	failed                        string // status message; empty if the span did not fail
	events                        []string
	resource                      map[string]string
}

// A collector is a test server that stores the received spans.
type collector struct {
	mu     sync.Mutex
	spans  []span
	header http.Header
	path   string
	answer func() (status int, body string) // HTTP response; nil means 200
	fail   func() error                     // gRPC error; may be nil
	reject uint64                           // number of spans that the gRPC server reports as rejected
	calls  int
}

func (c *collector) got() []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.header, c.path = r.Header, r.URL.Path
	if c.answer != nil {
		if code, text := c.answer(); code != 200 || text != "" {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
			return
		}
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/v2/spans"):
		c.spans = append(c.spans, zipkinSpans(body)...)
		w.WriteHeader(http.StatusAccepted)
	case r.Header.Get("Content-Type") == "application/json":
		c.spans = append(c.spans, otlpSpans(must(ofJSON(body)))...)
	default:
		c.spans = append(c.spans, otlpSpans(must(ofProto(body)))...)
	}
}

func ofProto(body []byte) (*tracepb.TracesData, error) {
	var m tracepb.TracesData
	return &m, proto.Unmarshal(body, &m)
}

func ofJSON(body []byte) (*tracepb.TracesData, error) {
	var m tracepb.TracesData
	return &m, protojson.Unmarshal(hexToBase64(body), &m)
}

// idInJSON matches an ID in OTLP JSON.
var idInJSON = regexp.MustCompile(`"(traceId|spanId|parentSpanId)": *"([0-9a-f]*)"`)

// hexToBase64 converts the hexadecimal IDs of OTLP to base64, which protojson requires.
func hexToBase64(body []byte) []byte {
	return idInJSON.ReplaceAllFunc(body, func(id []byte) []byte {
		parts := idInJSON.FindSubmatch(id)
		raw := must(hex.DecodeString(string(parts[2])))
		return fmt.Appendf(nil, `"%s":"%s"`, parts[1], base64.StdEncoding.EncodeToString(raw))
	})
}

// must returns v, or panics if err is not nil, because t.FailNow must not be called on the goroutine of a
// server.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func zipkinSpans(body []byte) (all []span) {
	var models []zipkinmodel.SpanModel
	if err := json.Unmarshal(body, &models); err != nil {
		panic(err)
	}
	for _, m := range models {
		s := span{
			trace: m.TraceID.String(), id: m.ID.String(), name: m.Name, kind: string(m.Kind), micros: uint64(m.Duration / time.Microsecond),
			attributes: m.Tags, failed: m.Tags["error"],
			resource: map[string]string{"service.name": m.LocalEndpoint.ServiceName, "ip": m.LocalEndpoint.IPv4.String()},
		}
		if m.ParentID != nil {
			s.parent = m.ParentID.String()
		}
		for _, a := range m.Annotations {
			s.events = append(s.events, a.Value)
		}
		all = append(all, s)
	}
	return all
}

func otlpSpans(m *tracepb.TracesData) (all []span) {
	for _, rs := range m.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, p := range ss.Spans {
				s := span{
					trace: hex.EncodeToString(p.TraceId), id: hex.EncodeToString(p.SpanId), parent: hex.EncodeToString(p.ParentSpanId), name: p.Name,
					kind: strings.TrimPrefix(p.Kind.String(), "SPAN_KIND_"), micros: (p.EndTimeUnixNano - p.StartTimeUnixNano) / 1000,
					attributes: attributesOf(p.Attributes), resource: attributesOf(rs.Resource.Attributes),
				}
				if p.TraceState != "" {
					s.attributes["tracestate"] = p.TraceState
				}
				if p.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
					s.failed = p.Status.Message
				}
				for _, e := range p.Events {
					s.events = append(s.events, e.Name)
				}
				all = append(all, s)
			}
		}
	}
	return all
}

func attributesOf(kvs []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range kvs {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		default:
			m[kv.Key] = strings.TrimSpace(strings.SplitN(kv.Value.String(), ":", 2)[1])
		}
	}
	return m
}

// partialSuccess returns the ExportTraceServiceResponse of a server that rejects spans.
func partialSuccess(rejected uint64) []byte {
	partial := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), rejected)
	partial = protowire.AppendString(protowire.AppendTag(partial, 2, protowire.BytesType), "no")
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial)
}

// serveGRPC starts a gRPC server, with TLS if there is a certificate.
func (c *collector) serveGRPC(t *testing.T, certificate *tls.Certificate) (address string) {
	t.Helper()
	var options []grpc.ServerOption
	if certificate != nil {
		options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(certificate)))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var m tracepb.TracesData // has the same fields as ExportTraceServiceRequest
			if err := decode(&m); err != nil {
				return nil, err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls++
			md, _ := metadata.FromIncomingContext(ctx)
			c.header = http.Header{"X-Token": md.Get("X-Token")}
			if c.fail != nil {
				if err := c.fail(); err != nil {
					return nil, err
				}
			}
			c.spans = append(c.spans, otlpSpans(&m)...)
			answer := &emptypb.Empty{}
			if c.reject > 0 {
				answer.ProtoReflect().SetUnknown(partialSuccess(c.reject))
			}
			return answer, nil
		}}},
	}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	return l.Addr().String()
}

// certificateFor returns a certificate for a test server and a pool that trusts it.
func certificateFor(t *testing.T) (*tls.Certificate, *tls.Config) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	client := s.Client().Transport.(*http.Transport).TLSClientConfig
	return &s.TLS.Certificates[0], client
}

func identity() export.Resource {
	return export.Resource{
		Namespace: "ns", Service: "svc", Configuration: "cfg", Revision: "rev", Pod: "pod-1", PodIP: "10.1.2.3", Version: "v1",
		Attributes: map[string]string{"deployment.environment": "test"},
	}
}

// An end describes a protocol and a transport for a collector.
type end struct {
	name  string
	start func(t *testing.T, c *collector) export.Target
}

func ends(t *testing.T) []end {
	t.Helper()
	certificate, trust := certificateFor(t)
	return []end{
		{"zipkin", func(t *testing.T, c *collector) export.Target {
			return export.Target{Protocol: export.Zipkin, Endpoint: c.serve(t) + "/api/v2/spans"}
		}},
		{"zipkin by address", func(t *testing.T, c *collector) export.Target {
			return export.Target{Protocol: export.Zipkin, Endpoint: strings.TrimPrefix(c.serve(t), "http://")}
		}},
		{"OTLP over HTTP", func(t *testing.T, c *collector) export.Target {
			return export.Target{Protocol: export.OTLP, Endpoint: c.serve(t)}
		}},
		{"OTLP as JSON over TLS", func(t *testing.T, c *collector) export.Target {
			s := httptest.NewTLSServer(c)
			t.Cleanup(s.Close)
			return export.Target{Protocol: export.OTLPJSON, Endpoint: s.URL, TLS: s.Client().Transport.(*http.Transport).TLSClientConfig}
		}},
		{"OTLP over gRPC", func(t *testing.T, c *collector) export.Target {
			return export.Target{Protocol: export.OTLPGRPC, Endpoint: "http://" + c.serveGRPC(t, nil)}
		}},
		{"OTLP over gRPC by address", func(t *testing.T, c *collector) export.Target {
			return export.Target{Protocol: export.OTLPGRPC, Endpoint: c.serveGRPC(t, nil)}
		}},
		{"OTLP over gRPC and TLS", func(t *testing.T, c *collector) export.Target {
			return export.Target{Protocol: export.OTLPGRPC, Endpoint: "https://" + c.serveGRPC(t, certificate), TLS: trust}
		}},
	}
}

// serve starts an HTTP server for the collector and returns its URL.
func (c *collector) serve(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	return s.URL
}

func TestExportedSpansHaveParents(t *testing.T) {
	parents := []struct {
		name   string
		in     http.Header
		parent string
	}{
		{"W3C", fields("traceparent: 00-"+tid+"-"+sid+"-01", "tracestate: a=1,b=2"), sid},
		{"B3", fields("X-B3-TraceId: "+tid, "X-B3-SpanId: "+sid, "X-B3-Sampled: 1"), sid},
		{"B3 single", fields("b3: " + tid + "-" + sid + "-1"), sid},
		{"none", http.Header{}, ""},
	}
	for _, e := range ends(t) {
		for _, p := range parents {
			t.Run(e.name+", parent "+p.name, func(t *testing.T) {
				c := &collector{}
				o := Options{Target: e.start(t, c), Sampling: always, Formats: inW3C | inB3, Limited: true, AppPort: 8080}
				o.Resource, o.Header = identity(), http.Header{"X-Token": {"secret"}}
				tracer, err := New(o)
				harness.NoError(t, err, "New")
				r := tracer.Begin(carrying(p.in))
				r.Enter(observation.Dialling)
				id, received := strings.Clone(r.ID()), strings.Clone(onwards(r, p.in).Get("Traceparent")[spanAt:spanEnd])
				r.Enter(observation.Streaming)
				request := httptest.NewRequest("GET", "http://app.example.com:81/a%20b?secret=1", nil)
				request.Header.Set("User-Agent", "curl/8")
				r.End(observe(request))
				harness.NoError(t, tracer.Close(t.Context()), "Close")
				harness.Equal(t, tracer.Dropped(), 0, "dropped")
				wantTheThreeSpans(t, c.got(), id, p.parent, received)
				harness.Equal(t, len(c.header["X-Token"]), 1, "X-Token in the header of exports", c.header)
			})
		}
	}
}

// wantTheThreeSpans checks the spans of a request. They must have the trace ID id, and the parent of the
// server span must be parent. received is the span ID that the user container received. It must be the
// ID of the app span.
func wantTheThreeSpans(t *testing.T, spans []span, id, parent, received string) {
	t.Helper()
	if len(spans) != 3 {
		t.Fatalf("spans: got %+v, want 3", spans)
	}
	wait, app, server := spans[0], spans[1], spans[2]
	for _, s := range spans {
		harness.Equal(t, s.trace, id, s.name, "trace")
	}
	harness.Equal(t, []string{server.parent, wait.parent, app.parent}, []string{parent, server.id, server.id}, "parents")
	harness.Equal(t, received, app.id, "the user container's parent")
	harness.Equal(t, []string{server.name, wait.name, app.name}, []string{"GET", waitName, "HTTP GET"}, "names")
	harness.Equal(t, server.kind+" "+app.kind, "SERVER CLIENT", "kinds")
	harness.Equal(t, app.events, []string{"first byte"}, "events")
	if strings.Contains(server.attributes["url.path"]+app.attributes["url.full"], "secret") {
		t.Errorf("got the query in %v or %v, want no query", server.attributes, app.attributes)
	}
}

func TestSpanAttributesDescribeRequest(t *testing.T) {
	c := &collector{}
	tracer, err := New(Options{Target: export.Target{Protocol: export.OTLP, Endpoint: c.serve(t), Resource: identity()}, Sampling: always, AppPort: 8080})
	harness.NoError(t, err)
	r := httptest.NewRequest("BREW", "http://[::1]:81/a%20b?secret=1", nil)
	r.RemoteAddr = "192.0.2.1:1234"
	r.Header.Set("User-Agent", "curl\xff"+strings.Repeat("é", export.MaxText))
	r.Header.Set("X-Forwarded-For", "192.0.2.9, 192.0.2.8")
	o := observe(r)
	o.Status, o.Reason, o.Proxied, o.Replayed = 502, observation.AppReset, true, true
	in := fields("traceparent: 00-"+tid+"-"+sid+"-01", "tracestate: a=1, b=2,,", "tracestate: c=3")
	brew := carrying(in)
	brew.r.Method = r.Method
	finish(tracer.Begin(brew), o)

	refused := get("/")
	refused.Slot, refused.FirstByte, refused.Phase = time.Time{}, time.Time{}, observation.Queued
	refused.Status, refused.Reason, refused.Begun = 503, observation.QueueFull, false
	finish(tracer.Begin(carrying(fields("traceparent: 00-"+tid+"-"+sid+"-01", "tracestate: BAD"))), refused)

	teapot := get("/")
	teapot.Status = 404
	finish(tracer.Begin(carrying(http.Header{})), teapot)
	harness.NoError(t, tracer.Close(t.Context()))

	spans := c.got()
	var names []string
	for _, s := range spans {
		names = append(names, s.name)
	}
	if got, want := strings.Join(names, ","), "HTTP,HTTP,"+waitName+",GET,HTTP GET,GET"; got != want {
		t.Fatalf("spans: got %s, want %s", got, want)
	}
	check := func(what string, got map[string]string, want map[string]string) {
		t.Helper()
		for name, value := range want {
			harness.Equal(t, got[name], value, what, name)
		}
	}
	check("server", spans[1].attributes, map[string]string{
		"http.request.method": "_OTHER", "http.request.method_original": "BREW", "url.path": "/a b", "url.scheme": "http",
		"server.address": "::1", "server.port": "81", "network.peer.address": "192.0.2.1", "network.peer.port": "1234",
		"client.address": "192.0.2.9", "network.protocol.version": "1.1", "http.response.status_code": "502",
		"http.request.body.size": "3", "http.response.body.size": "5", "error.type": "app-reset", "queueproxy.reason": "app-reset",
		"queueproxy.phase": "streaming", "queueproxy.activator": "true", "queueproxy.replayed": "true", "tracestate": "a=1,b=2,c=3",
		"user_agent.original": "curl\ufffd" + strings.Repeat("é", (export.MaxText-len("curl\ufffd…"))/2) + "…",
	})
	check("app", spans[0].attributes, map[string]string{
		"server.address": "127.0.0.1", "server.port": "8080", "url.full": "http://127.0.0.1:8080/a%20b", "http.response.status_code": "502",
		"http.request.resend_count": "1",
	})
	harness.Equal(t, spans[4].attributes["http.request.resend_count"], "", "resend count of a request that was not replayed")
	check("resource", spans[0].resource, map[string]string{
		"service.name": "svc", "service.version": "v1", "service.instance.id": "pod-1", "k8s.pod.name": "pod-1", "k8s.namespace.name": "ns",
		"container.name": "queue-proxy", "kn.service.name": "svc", "kn.configuration.name": "cfg", "kn.revision.name": "rev",
		"deployment.environment": "test", "telemetry.sdk.language": "go",
	})
	for i, want := range []string{"app-reset", "app-reset", "queue-full", "queue-full", "Not Found", ""} {
		harness.Equal(t, spans[i].failed, want, "span", i, "the error")
	}
	harness.Equal(t, spans[3].attributes["tracestate"], "", "a bad tracestate", "in the span")
}

// A client can send any valid characters in the Host field.
func TestSpanHostWithoutValidPort(t *testing.T) {
	for hostport, want := range map[string]attributes{
		"a:81":      {{name: "host", text: "a"}, {name: "port", kind: intKind, number: 81}},
		"[::1]:81":  {{name: "host", text: "::1"}, {name: "port", kind: intKind, number: 81}},
		"[::1]":     {{name: "host", text: "::1"}},
		"fe80::1:2": {{name: "host", text: "fe80::1:2"}},
		"a:http":    {{name: "host", text: "a"}},
		"a:99999":   {{name: "host", text: "a"}},
		"":          nil,
	} {
		var got attributes
		got.address("host", "port", hostport)
		harness.Equal(t, got, want, hostport)
	}
}

func TestSpanHostWithoutPortDoesNotAllocate(t *testing.T) {
	got := make(attributes, 0, 1)
	allocs := testing.AllocsPerRun(100, func() {
		got = got[:0]
		got.address("host", "port", "example.com")
	})
	harness.Equal(t, allocs, 0, "allocations")
}

func TestZipkinSpansHavePodAndShortID(t *testing.T) {
	c := &collector{}
	tracer, err := New(Options{Target: export.Target{Protocol: export.Zipkin, Endpoint: c.serve(t), Resource: identity()}, Sampling: follow})
	harness.NoError(t, err)
	failed := get("/")
	failed.Status = 500
	finish(tracer.Begin(carrying(fields("b3: "+short+"-"+sid+"-1"))), failed)
	harness.NoError(t, tracer.Close(t.Context()))
	spans := c.got()
	if len(spans) != 2 {
		t.Fatalf("spans: got %+v, want 2, because requests do not queue without a limit", spans)
	}
	if spans[0].trace != short || spans[0].resource["service.name"] != "pod-1" || spans[0].resource["ip"] != "10.1.2.3" {
		t.Errorf("got %+v, want trace %s of pod-1 at 10.1.2.3", spans[0], short)
	}
	harness.Equal(t, spans[1].failed, "Internal Server Error", "the error tag")
}

func TestStdoutWritesLinePerSpan(t *testing.T) {
	var out bytes.Buffer
	tracer, err := New(Options{Target: export.Target{Protocol: export.Stdout, Resource: identity()}, Output: &out, Sampling: always})
	harness.NoError(t, err)
	finish(tracer.Begin(carrying(http.Header{})), get("/"))
	finish(tracer.Begin(carrying(http.Header{})), get("/"))
	harness.NoError(t, tracer.Close(t.Context()))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("lines: got %d, want 4", len(lines))
	}
	for _, line := range lines {
		if spans := zipkinSpans([]byte("[" + line + "]")); len(spans) != 1 || spans[0].name == "" {
			t.Errorf("%s: got %v, want a span", line, spans)
		}
	}
}

// exported traces one request with the given options and closes the tracer.
func exported(t *testing.T, o Options) (tracer *Tracer, reports []error) {
	t.Helper()
	o.Sampling = always
	o.Report = func(err error) { reports = append(reports, err) }
	tracer, err := New(o)
	harness.NoError(t, err, "New")
	finish(tracer.Begin(carrying(http.Header{})), get("/"))
	harness.NoError(t, tracer.Close(t.Context()), "Close")
	return tracer, reports
}

func TestExportHandlesCollectorResponses(t *testing.T) {
	http200 := func(body string) func() (int, string) { return func() (int, string) { return 200, body } }
	statusThenFine := func(code int) func() (int, string) {
		first := true
		return func() (int, string) {
			if first {
				first = false
				return code, "no"
			}
			return 200, ""
		}
	}
	grpcThenFine := func(code codes.Code) func() error {
		answer := status.Error(code, "no")
		return func() (err error) { err, answer = answer, nil; return err }
	}
	for _, c := range []struct {
		name     string
		exporter export.Protocol
		c        *collector
		calls    int
		dropped  uint64
		says     string
	}{
		{"400 is not retried", export.OTLP, &collector{answer: func() (int, string) { return 400, "no" }}, 1, 2, "400 Bad Request"},
		{"503 is retried", export.OTLP, &collector{answer: statusThenFine(503)}, 2, 0, ""},
		{"429 is retried", export.Zipkin, &collector{answer: statusThenFine(429)}, 2, 0, ""},
		{"a redirect is not followed", export.OTLP, &collector{answer: func() (int, string) { return 307, "" }}, 1, 2, "307"},
		{"partial success", export.OTLP, &collector{answer: http200(string(partialSuccess(1)))}, 1, 1, "1 of 2 spans were rejected"},
		{"partial success in JSON", export.OTLPJSON, &collector{answer: http200(`{"partialSuccess":{"rejectedSpans":"2"}}`)}, 1, 2, "2 of 2"},
		{"partial success of a number", export.OTLPJSON, &collector{answer: http200(`{"partialSuccess":{"rejectedSpans":1}}`)}, 1, 1, "1 of 2"},
		{"a response that is not JSON", export.OTLPJSON, &collector{answer: http200("ok")}, 1, 0, ""},
		{"a response that is not protobuf", export.OTLP, &collector{answer: http200("\xff\xff\xff")}, 1, 0, ""},
		{"gRPC UNAVAILABLE is retried", export.OTLPGRPC, &collector{fail: grpcThenFine(codes.Unavailable)}, 2, 0, ""},
		{"gRPC INVALID_ARGUMENT is not retried", export.OTLPGRPC, &collector{fail: grpcThenFine(codes.InvalidArgument)}, 1, 2, "grpc-status 3"},
		{"gRPC partial success", export.OTLPGRPC, &collector{reject: 1}, 1, 1, "1 of 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Target: export.Target{Protocol: c.exporter}}
			if c.exporter == export.OTLPGRPC {
				o.Endpoint = c.c.serveGRPC(t, nil)
			} else {
				o.Endpoint = c.c.serve(t)
			}
			tracer, reports := exported(t, o)
			harness.Equal(t, c.c.calls, c.calls, "exports")
			harness.Equal(t, tracer.Dropped(), c.dropped, "dropped")
			if c.says == "" && len(reports) > 0 || c.says != "" && (len(reports) != 1 || !strings.Contains(reports[0].Error(), c.says)) {
				t.Errorf("reports: got %v, want %q", reports, c.says)
			}
		})
	}
}

func TestGRPCExportReportsHTTPStatus(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	tracer, reports := exported(t, Options{Target: export.Target{Protocol: export.OTLPGRPC, Endpoint: s.URL}})
	if tracer.Dropped() != 2 || len(reports) != 1 || !strings.Contains(reports[0].Error(), "404 Not Found") {
		t.Errorf("got %d dropped, %v, want 2 and the status 404", tracer.Dropped(), reports)
	}
}

func TestErrorsHideEndpointPassword(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	address := l.Addr().String()
	l.Close() // the address is now unused
	var reports []error
	tracer, err := New(Options{
		Target:   export.Target{Protocol: export.Zipkin, Endpoint: "http://user:hunter2@" + address},
		Sampling: always, Report: func(err error) { reports = append(reports, err) },
	})
	harness.NoError(t, err)
	finish(tracer.Begin(carrying(http.Header{})), get("/"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	harness.Contains(t, fmt.Sprint(tracer.Close(ctx)), "2 spans", "Close")
	for _, err := range reports {
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("report: got %v, want no password", err)
		}
	}
	for _, endpoint := range []string{"http://user:hunter2@host:99999", "ftp://user:hunter2@host", "http://user:hunter2@[::1", "http://user:hunter2@", "http://u:hunter2@%zz"} {
		if _, err := New(Options{Target: export.Target{Protocol: export.Zipkin, Endpoint: endpoint}, Sampling: always}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error without the password", endpoint, err)
		}
	}
}

func TestOwnPortEndpointReturnsError(t *testing.T) {
	for endpoint, refused := range map[string]bool{
		"http://127.0.0.1:8012": true, "127.0.0.2:8012": true, "http://[::1]:8012/v1/traces": true, "https://localhost:8112": true,
		"http://LOCALHOST:8012": true, "http://0.0.0.0:8012": true, "http://10.1.2.3:9091": true,
		"http://127.0.0.1:4318": false, "http://10.1.2.4:8012": false, "http://collector:8012": false, "http://127.0.0.1": false,
	} {
		for _, exporter := range []export.Protocol{export.OTLP, export.OTLPGRPC, export.Zipkin} {
			o := Options{Target: export.Target{Protocol: exporter, Endpoint: endpoint, OwnPorts: []int{8012, 8112, 9091}, Resource: identity()}, Sampling: always}
			tracer, err := New(o)
			harness.Equal(t, (err != nil), refused, exporter, endpoint, err)
			harness.Equal(t, tracer.Close(t.Context()), nil, exporter, endpoint, "Close")
		}
	}
}

func TestEndpointDefaultPath(t *testing.T) {
	for _, c := range []struct {
		exporter   export.Protocol
		path, want string
	}{
		{export.Zipkin, "", "/api/v2/spans"},
		{export.Zipkin, "/", "/api/v2/spans"},
		{export.Zipkin, "/api/v2/spans/custom", "/api/v2/spans/custom"},
		{export.OTLP, "", "/v1/traces"},
		{export.OTLP, "/", "/"},
		{export.OTLP, "/otlp/v1/traces", "/otlp/v1/traces"},
		{export.OTLPJSON, "", "/v1/traces"},
	} {
		s := &collector{answer: func() (int, string) { return 204, "" }}
		srv := httptest.NewServer(s)
		exported(t, Options{Target: export.Target{Protocol: c.exporter, Endpoint: srv.URL + c.path}})
		srv.Close()
		harness.Equal(t, s.path, c.want, c.exporter, c.path)
	}
}

// encodedBy returns the body of an export request with the spans of one request.
func encodedBy(t *testing.T, p export.Protocol, tracer *Tracer, x transport.Request, o *observation.Observation) []byte {
	t.Helper()
	f, err := formatOf(p, &tracer.options.Resource)
	harness.NoError(t, err)
	r := &encoder{format: f}
	tracer.sink = r
	finish(tracer.Begin(x), o)
	return f.body(r.spans)
}

// An encoder encodes all spans of a tracer.
type encoder struct {
	format format
	spans  []byte
}

func (e *encoder) exportSpan(r *record) {
	e.spans = e.format.appendSpan(e.spans, r)
}

// withoutIDs removes the values that differ between two requests.
func withoutIDs(m *tracepb.TracesData) *tracepb.TracesData {
	for _, s := range m.ResourceSpans[0].ScopeSpans[0].Spans {
		s.SpanId, s.ParentSpanId, s.StartTimeUnixNano, s.EndTimeUnixNano = nil, nil, 0, 0
		for _, e := range s.Events {
			e.TimeUnixNano = 0
		}
	}
	return m
}

// bothEncodings returns the decoded OTLP message and checks that protobuf and JSON are equal.
func bothEncodings(t *testing.T, tracer *Tracer, x transport.Request, o *observation.Observation) *tracepb.TracesData {
	t.Helper()
	a, err := ofProto(encodedBy(t, export.OTLP, tracer, x, o))
	harness.NoError(t, err)
	b, err := ofJSON(encodedBy(t, export.OTLPJSON, tracer, x, o))
	harness.NoError(t, err)
	if !proto.Equal(withoutIDs(a), withoutIDs(b)) {
		t.Errorf("got different spans in protobuf and JSON:\n%v\n%v\nwant the same spans", a, b)
	}
	return a
}

func TestProtobufAndJSONAreEqual(t *testing.T) {
	tracer := unstarted(Options{Target: export.Target{Resource: identity()}, Sampling: always, Formats: inW3C, Limited: true, AppPort: 8080})
	o := get("/" + strings.Repeat("a", 2*export.MaxText))
	o.Status, o.Replayed, o.RPC = 500, true, observation.GRPCStatusOf(14)
	a := bothEncodings(t, tracer, carrying(fields("traceparent: 00-"+tid+"-"+sid+"-01", "tracestate: a=1")), o)
	spans := a.ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 3 || spans[2].Flags != 0x301 || spans[1].Flags != 0x101 {
		t.Errorf("got %v, want 3 spans with the flags 0x301 and 0x101", a)
	}
	for _, s := range spans {
		if len(s.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("%s: got unknown fields %x, want none", s.Name, s.ProtoReflect().GetUnknown())
		}
		for _, kv := range s.Attributes {
			if len(kv.ProtoReflect().GetUnknown())+len(kv.GetValue().ProtoReflect().GetUnknown()) > 0 {
				t.Errorf("%s: got unknown fields in %v, want none", s.Name, kv)
			}
		}
	}
}

// An HTTP transport may read a body after the export, while the exporter reuses the memory of the spans.
func TestExportBodyIsCopy(t *testing.T) {
	for _, p := range []export.Protocol{export.Zipkin, export.OTLP, export.OTLPJSON, export.OTLPGRPC} {
		f, err := formatOf(p, &export.Resource{})
		harness.NoError(t, err)
		spans := f.appendSpan(nil, &record{span: trace.SpanData{Name: "GET"}})
		got := f.body(spans)
		want := bytes.Clone(got)
		clear(spans)
		harness.Equal(t, string(got), string(want), p)
	}
}

// The strings of a request refer to memory that an engine owns. The engine reuses this memory for the
// next request while the spans are still queued.
func TestSpansCopyRequestStrings(t *testing.T) {
	for method, state := range map[string]string{"GET": "a=1,b=2", "BREW": "a=1"} {
		c := &collector{}
		tracer, err := New(Options{Target: export.Target{Protocol: export.OTLP, Endpoint: c.serve(t)}, Sampling: always, Limited: true})
		harness.NoError(t, err)
		var memory [][]byte
		borrowed := func(s string) string {
			b := []byte(s)
			memory = append(memory, b)
			return unsafe.String(unsafe.SliceData(b), len(b))
		}
		x := carrying(http.Header{
			"Traceparent": {borrowed("00-" + tid + "-" + sid + "-01")}, "Tracestate": {borrowed(state)},
			"User-Agent": {borrowed("curl")}, "X-Forwarded-For": {borrowed("10.0.0.1, 10.0.0.2")}, "Knative-Serving-Tag": {borrowed("blue")},
		})
		o := get("/")
		o.Exchange, o.Method, o.Target = x, borrowed(method), borrowed("/a/b?c=d")
		o.Host, o.Remote = borrowed("example:80"), borrowed("10.0.0.3:4")
		x.r.Method = o.Method
		finish(tracer.Begin(x), o)
		for _, b := range memory {
			clear(b)
		}
		harness.NoError(t, tracer.Close(t.Context()))
		server := c.got()[2].attributes
		for name, want := range map[string]string{
			"url.path": "/a/b", "server.address": "example", "network.peer.address": "10.0.0.3", "client.address": "10.0.0.1",
			"user_agent.original": "curl", "kn.route.tag": "blue", "tracestate": state,
		} {
			harness.Equal(t, server[name], want, method, name)
		}
	}
}

func TestZipkinEndpointIPAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":        `{"ipv4":"10.0.0.1"}`,
		"::ffff:10.0.0.1": `{"ipv4":"10.0.0.1"}`,
		"fd00::1":         `{"ipv6":"fd00::1"}`,
		"fe80::1%eth0":    `{"ipv6":"fe80::1"}`,
		"":                `{}`,
		"pod":             `{}`,
	} {
		got := strings.Replace(newZipkin(&export.Resource{PodIP: in, Pod: "pod"}).local, `"serviceName":"pod"`, "", 1)
		harness.Equal(t, strings.Replace(got, "{,", "{", 1), want, in)
	}
}

func FuzzSpanEncoding(f *testing.F) {
	f.Add("GET", "/", "h:80", "1.2.3.4:5", "curl", "a=1", "1.1.1.1", 200, 0)
	f.Add("\xff", "/\xff", "[::", "\x00", "\xc3", "=", ",\xff", -1, 7)
	f.Fuzz(func(t *testing.T, method, path, host, remote, agent, state, forwarded string, code, why int) {
		tracer := unstarted(Options{
			Target: export.Target{Resource: export.Resource{Pod: agent, Service: host, Version: path}}, Sampling: always, Limited: true,
		})
		o := get("/")
		o.Target, o.Host, o.Remote, o.Method, o.Status, o.Reason = path, host, remote, method, code, observation.Reason(uint(why)%uint(observation.NumReasons))
		r := o.Exchange.Request()
		r.Method = method
		r.Header = http.Header{"User-Agent": {agent}, "X-Forwarded-For": {forwarded}, "Traceparent": {"00-" + tid + "-" + sid + "-01"}, "Tracestate": {state}}
		bothEncodings(t, tracer, o.Exchange, o)
		harness.Equal(t, len(zipkinSpans(encodedBy(t, export.Zipkin, tracer, o.Exchange, o))), 3, "zipkin", "spans")
	})
}
