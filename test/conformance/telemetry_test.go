package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	zipkin "github.com/openzipkin/zipkin-go/model"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// The command "why" prints why a pod is not ready.
func TestWhyCommandPrintsReason(t *testing.T) {
	inParallel(t)
	const httpGet = `"httpGet":{"port":%d,"path":"/h"}`
	for name, v := range map[string]struct {
		probe string
		app   func(*proxy)
		then  func(*proxy)
		want  string
	}{
		"refused": {httpGet, func(*proxy) {}, nil, "refused"},
		"timed out": {httpGet, func(p *proxy) {
			p.appSpeaking(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "h1")
		}, nil, "timeout"},
		"wrong status": {httpGet, func(p *proxy) {
			p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }), "h1")
		}, nil, "status 500"},
		"TLS failure": {`"httpGet":{"port":%d,"path":"/h","scheme":"HTTPS"}`, func(p *proxy) {
			p.appSpeaking(http.NotFoundHandler(), "h1")
		}, nil, "tls"},
		"not serving": {`"grpc":{"port":%d}`, func(p *proxy) {
			s, h := grpc.NewServer(), health.NewServer()
			h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
			healthpb.RegisterHealthServer(s, h)
			l := p.listen()
			go s.Serve(l)
			t.Cleanup(s.Stop)
		}, nil, "not-serving"},
		"still starting": {httpGet + `,"timeoutSeconds":60`, func(p *proxy) { // the app does not send its first response
			p.appSpeaking(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "h1")
		}, nil, "starting: pending"},
		"draining": {httpGet, func(p *proxy) {
			p.appSpeaking(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "h1")
		}, func(p *proxy) { p.signal(syscall.SIGTERM) }, "draining"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			v.app(p)
			p.start("SERVING_READINESS_PROBE=" + fmt.Sprintf(`{`+v.probe+`,"periodSeconds":1}`, p.port.user))
			if v.then != nil {
				v.then(p)
			}
			p.poll("why prints "+v.want, func() error {
				out, code := command(t, p.environment(), "why")
				if code != 1 || !strings.HasPrefix(out, "not ready: ") || !strings.Contains(out, v.want) {
					return fmt.Errorf("got code %d and %q", code, out)
				}
				return nil
			})
			out, code := command(t, p.environment(), "why", "-o", "json")
			var answer struct {
				Ready  bool
				Reason string
			}
			if err := json.Unmarshal([]byte(out), &answer); err != nil || code != 1 || answer.Ready || !strings.Contains(answer.Reason, v.want) {
				t.Errorf("JSON: got code %d and %q, %v, want 1 and a reason with %q", code, out, err, v.want)
			}
		})
	}
}

func TestWhyCommandReturnsZeroWhenReady(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start(fmt.Sprintf(`SERVING_READINESS_PROBE={"tcpSocket":{"port":%d}}`, p.port.user))
	if out, code := command(t, p.environment(), "why"); code != 0 || !strings.HasPrefix(out, "ready for ") {
		t.Errorf("got code %d and %q, want 0 and ready", code, out)
	}
}

func TestWhyCommandWithoutSidecarReturnsError(t *testing.T) {
	p := newProxy(t)
	if out, code := command(t, p.environment(), "why"); code != 1 || !strings.Contains(out, "the sidecar does not respond") {
		t.Errorf("got code %d and %q, want 1 and an error", code, out)
	}
}

// The status page contains internal details, so it is served only on localhost and only for a
// local Host.
func TestStatusPageRejectsOtherHosts(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start()
	page := "http://" + local(p.port.status)
	if r, body := get(t, httpClient(t, "h1"), page+"/"); r.StatusCode != 200 || !strings.Contains(body, "queue-proxy") {
		t.Errorf("got status %d, want 200 with the page", r.StatusCode)
	}
	if r, _ := get(t, httpClient(t, "h1"), page+"/", "Host: evil.example"); r.StatusCode != 403 {
		t.Errorf("other Host: got %d, want 403", r.StatusCode)
	}
	if a := otherAddress(); a != "" {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(a, fmt.Sprint(p.port.status)), time.Second)
		if err == nil {
			c.Close()
			t.Errorf("the status port accepts connections on %s, want only localhost", a)
		}
	}
}

// otherAddress returns an IPv4 address of this host that is not a loopback address, or "" if
// there is none.
func otherAddress() string {
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

func TestMetricsCountRequests(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("METRICS_NAMES=default", "EXCLUDE_PATHS=/healthz")
	for _, protocol := range []string{"h1", "h2c"} {
		c := httpClient(t, protocol)
		get(t, c, p.url("/status/200"))
		get(t, c, p.url("/status/503"))
		get(t, c, p.url("/healthz"))
		get(t, c, p.url("/"), "K-Network-Probe: queue")
	}
	p.poll("the counters have their final values", func() error {
		r, body := get(t, httpClient(t, "h1"), "http://"+local(p.port.metrics)+"/metrics")
		if r.StatusCode != 200 {
			return fmt.Errorf("got status %d", r.StatusCode)
		}
		sum := 0.0
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "queue_proxy_requests_total{") {
				var n float64
				fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
				sum += n
			}
		}
		if sum != 4 || !strings.Contains(body, `protocol="http/2"`) || !strings.Contains(body, `code="5xx"`) {
			return fmt.Errorf("got %v requests in\n%s", sum, body)
		}
		return nil
	})
}

func TestRequestLogHasLineForEachRequest(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("REQUEST_LOG=true", "EXCLUDE_PATHS=/healthz")
	get(t, httpClient(t, "h1"), p.url(`/echo?q="\`), "User-Agent: a\"b\\c")
	get(t, httpClient(t, "h1"), p.url("/healthz"))
	get(t, httpClient(t, "h2c"), p.url("/status/404"))
	get(t, httpClient(t, "h1"), p.url("/"), "K-Network-Probe: queue")
	p.poll("the request log has two lines", func() error {
		var lines []map[string]any
		for line := range strings.Lines(p.out.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				return fmt.Errorf("%q is not JSON: %v", line, err)
			}
			if m["kind"] != nil && m["target"] != nil {
				lines = append(lines, m)
			}
		}
		if len(lines) != 2 {
			return fmt.Errorf("got %d lines", len(lines))
		}
		if lines[0]["userAgent"] != `a"b\c` || lines[0]["status"] != 200.0 || lines[1]["status"] != 404.0 || lines[1]["protocol"] != "HTTP/2.0" {
			return fmt.Errorf("got %v", lines)
		}
		return nil
	})
}

// All signals contain the exact size of responses from the sidecar, and these responses are not
// marked as truncated.
func TestTelemetryHasSizeOfSidecarResponses(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0", "REVISION_TIMEOUT_SECONDS=1", "CONNECT_RETRY=1ms", "METRICS_NAMES=knative-head",
		"SERVING_ENABLE_PROBE_REQUEST_LOG=true", "REQUEST_LOG=true")
	client := httpClient(t, "h1")
	get(t, client, p.url("/unreachable"))
	get(t, client, p.url("/not-ready"), "K-Network-Probe: unknown")
	h := p.holder()
	held := p.sendGet("/late")
	h.wait(t, "/late")
	get(t, client, p.url("/full"))
	held.receive("GET")
	p.poll("the log has a line with the size of each response", func() error {
		for _, words := range [][]string{
			{`"target":"/unreachable"`, `"status":502`, `"cutShort":false`, `"responseBytes":26`},
			{`"target":"/not-ready"`, `"status":400`, `"cutShort":false`, `"responseBytes":39`},
			{`"target":"/full"`, `"status":503`, `"cutShort":false`, `"responseBytes":27`},
			{`"target":"/late"`, `"status":504`, `"cutShort":false`, `"responseBytes":15`},
		} {
			if !p.out.HasLine(words...) {
				return fmt.Errorf("no line with %q", words)
			}
		}
		return nil
	})
	c := dial(t, local(p.port.metrics))
	metrics := c.ask("/metrics").Body
	want := regexp.MustCompile(`(?m)^http_server_response_body_size_bytes_sum\{[^}]*http_response_status_code="504"[^}]*\} 15$`)
	if !want.MatchString(metrics) {
		t.Errorf("no metric that matches %v", want)
	}
}

func TestKnativeTemplateHasSizeOfTimeoutResponse(t *testing.T) {
	p := newProxy(t)
	p.start("REVISION_TIMEOUT_SECONDS=1", "SERVING_ENABLE_REQUEST_LOG=true", "SERVING_REQUEST_LOG_TEMPLATE="+knativeTemplate)
	p.holder()
	get(t, httpClient(t, "h1"), p.url("/late"))
	p.awaitLog(`"status": 504, "responseSize": "15"`)
}

// collectSpans starts an OTLP/HTTP collector. It returns the URL of the collector and a
// function that returns the received spans.
func collectSpans(t *testing.T) (url string, collected func() []*otlp.Span) {
	t.Helper()
	var mu sync.Mutex
	var spans []*otlp.Span
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var data otlp.TracesData
		if err := proto.Unmarshal(b, &data); err != nil {
			t.Errorf("got an invalid OTLP request: %v", err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range data.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				spans = append(spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []*otlp.Span {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(spans)
	}
}

// The application receives a traced request with the client span as its parent in both
// propagation formats, and all spans belong to one trace.
func TestSpansHaveCorrectParents(t *testing.T) {
	inParallel(t)
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	formats := map[string][]string{
		"W3C": {"Traceparent: 00-" + trace + "-" + parent + "-01"},
		"B3":  {"X-B3-Traceid: " + trace, "X-B3-Spanid: " + parent, "X-B3-Sampled: 1"},
	}
	for name, fields := range formats {
		for _, protocol := range both {
			t.Run(name+" over "+protocol, func(t *testing.T) {
				collector, collected := collectSpans(t)
				p := newProxy(t)
				atApp := make(chan http.Header, 1)
				p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "GET" {
						atApp <- r.Header.Clone()
					}
				}))
				p.start("CONTAINER_CONCURRENCY=1", "OTEL_PROPAGATORS=tracecontext,b3multi",
					`OBSERVABILITY_CONFIG={"tracing":{"protocol":"http/protobuf","endpoint":"`+collector+`/v1/traces","samplingRate":1}}`)
				get(t, httpClient(t, protocol), p.url("/a"), fields...)
				get(t, httpClient(t, protocol), p.url("/"), append(fields, "K-Network-Probe: queue")...)
				got := receive(t, "the app's request", atApp)

				byName := map[string]*otlp.Span{}
				p.poll("the spans arrive", func() error {
					spans := collected()
					for _, s := range spans {
						byName[s.Kind.String()] = s
					}
					if len(spans) != 3 || byName["SPAN_KIND_SERVER"] == nil || byName["SPAN_KIND_CLIENT"] == nil {
						return fmt.Errorf("got %v", spans)
					}
					return nil
				})
				server, app := byName["SPAN_KIND_SERVER"], byName["SPAN_KIND_CLIENT"]
				if fmt.Sprintf("%x", server.TraceId) != trace || fmt.Sprintf("%x", server.ParentSpanId) != parent {
					t.Errorf("got server span with trace %x and parent %x, want %s and %s", server.TraceId, server.ParentSpanId, trace, parent)
				}
				if string(app.ParentSpanId) != string(server.SpanId) {
					t.Errorf("got client span with parent %x, want %x", app.ParentSpanId, server.SpanId)
				}
				want := fmt.Sprintf("00-%s-%x-01", trace, app.SpanId)
				if got.Get("Traceparent") != want || got.Get("X-B3-Spanid") != fmt.Sprintf("%x", app.SpanId) {
					t.Errorf("the app received traceparent %q and b3 span %q, want %q and %x", got.Get("Traceparent"), got.Get("X-B3-Spanid"), want, app.SpanId)
				}
			})
		}
	}
}

func TestZipkinExportOfKnative118(t *testing.T) {
	p := newProxy(t)
	arrived := make(chan []zipkin.SpanModel, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var spans []zipkin.SpanModel
		if err := json.NewDecoder(r.Body).Decode(&spans); err != nil {
			t.Errorf("got an invalid Zipkin request: %v", err)
		}
		arrived <- spans
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(collector.Close)
	p.sample()
	p.start("TRACING_CONFIG_BACKEND=zipkin", "TRACING_CONFIG_ZIPKIN_ENDPOINT="+collector.URL+"/api/v2/spans", "TRACING_CONFIG_DEBUG=true")
	get(t, httpClient(t, "h1"), p.url("/"))
	if spans := receive(t, "the spans", arrived); len(spans) == 0 || spans[0].LocalEndpoint == nil || spans[0].LocalEndpoint.ServiceName != "pod1" {
		t.Errorf("got %v, want spans from pod1", spans)
	}
}

// silent starts a collector that accepts connections and never responds.
func silent(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "http://" + l.Addr().String()
}

// docs/promises.md 3.5 and 3.9: telemetry that cannot be exported at shutdown is logged. The
// exit code is 0 because all requests were served.
func TestUnavailableCollectorDoesNotFailExit(t *testing.T) {
	inParallel(t)
	for name, collector := range map[string]func(*testing.T) string{
		"gone": func(t *testing.T) string {
			port, _ := harness.ClosedPort(t)
			return "http://" + local(port)
		},
		"silent": silent,
	} {
		for _, protocol := range []string{"http/protobuf", "grpc"} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				p := newProxy(t)
				p.sample()
				at := `"protocol":"` + protocol + `","endpoint":"` + collector(t) + `"`
				p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=2s",
					`OBSERVABILITY_CONFIG={"tracing":{`+at+`,"samplingRate":1},"requestMetrics":{`+at+`}}`)
				get(t, httpClient(t, "h1"), p.url("/"))
				began := time.Now()
				p.signal(syscall.SIGTERM)
				if got := p.code(); got != 0 {
					t.Errorf("got exit code %d, want 0", got)
				}
				if took, most := time.Since(began), 2*time.Second+slack; took > most {
					t.Errorf("the sidecar exited after %v, want at most %v", took, most)
				}
				p.awaitLog("tracing:")
				p.awaitLog("metrics push:")
			})
		}
	}
}

func TestLastMetricsArriveWithoutSpanCollector(t *testing.T) {
	p := newProxy(t)
	p.sample()
	var pushes atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { pushes.Add(1) }))
	t.Cleanup(collector.Close)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=2s",
		`OBSERVABILITY_CONFIG={"tracing":{"protocol":"http/protobuf","endpoint":"`+silent(t)+`","samplingRate":1},
			"requestMetrics":{"protocol":"http/protobuf","endpoint":"`+collector.URL+`"}}`)
	get(t, httpClient(t, "h1"), p.url("/"))
	p.signal(syscall.SIGTERM)
	p.code()
	if got := pushes.Load(); got != 1 {
		t.Errorf("got %d metric exports, want 1", got)
	}
}

// docs/promises.md 3.9: telemetry errors do not affect traffic.
func TestMetricsWithForeignAddressAreDisabled(t *testing.T) {
	inParallel(t)
	for _, host := range []string{"192.0.2.1", "no.such.host.invalid", "2001:db8::1"} {
		t.Run(host, func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			p.start("METRICS_NAMES=default", "METRICS_PROMETHEUS_HOST="+host)
			p.awaitLog("metrics are not served", "METRICS_PROMETHEUS_HOST", host)
			if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
				t.Errorf("request: got %q, want 200", m.Start)
			}
		})
	}
}

// The process that reads the log may be killed, for example because a container runtime is out
// of memory. By default, a Go program exits if it writes to standard output in this case.
func TestSidecarSurvivesEndOfLogReader(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("REQUEST_LOG=true")
	p.out.loseReader()
	after := 0 // number of successful requests after the reader of the log was closed
	p.poll("20 requests succeed after the reader of the log was closed", func() error {
		status := send(t, p.addr(), "GET /slow?ms=20 HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
		if status != http.StatusOK {
			t.Fatalf("got status %d after %d requests, want 200", status, after)
		}
		if p.out.isLost() {
			after++
		}
		if after < 20 {
			return fmt.Errorf("got %d", after)
		}
		return nil
	})
	if p.ended() {
		t.Errorf("the sidecar exited with code %d", p.code())
	}
}

// send sends a request on a new connection and returns the status of the response, or 0 if
// there is none.
func send(t *testing.T, addr, text string) int {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, text)
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	a.Body.Close()
	return a.StatusCode
}
