package knative

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	netheader "knative.dev/networking/pkg/http/header"
)

// A collector receives telemetry. It records the data that it receives in OTLP over HTTP. It
// acknowledges OTLP over gRPC and Zipkin spans, but does not decode them.
type collector struct {
	mu          sync.Mutex
	instruments map[string]Instrument
	tags        map[string]bool // values of kn.route.tag in server spans
	err         error
}

// startCollector listens on the addresses in the ConfigMaps of the Services.
func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{instruments: map[string]Instrument{}, tags: map[string]bool{}}
	var speaks http.Protocols
	speaks.SetHTTP1(true)
	speaks.SetUnencryptedHTTP2(true)
	for _, address := range []string{"127.0.0.1:4317", "127.0.0.1:4318", "127.0.0.1:9411"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: c, Protocols: &speaks, ErrorLog: log.New(io.Discard, "", 0)}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(make([]byte, 5)) // respond with an empty gRPC message
		w.Header().Set("Grpc-Status", "0")
		return
	}
	body, err := content(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
	case strings.HasSuffix(r.URL.Path, "/v1/metrics"):
		err = c.addMetrics(body)
	case strings.HasSuffix(r.URL.Path, "/v1/traces"):
		err = c.addSpans(body)
	}
	c.err = errors.Join(c.err, err)
}

func content(r *http.Request) ([]byte, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return io.ReadAll(r.Body)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// addMetrics decodes an ExportMetricsServiceRequest, which has the same encoding as
// MetricsData.
func (c *collector) addMetrics(body []byte) error {
	var data metricspb.MetricsData
	if err := proto.Unmarshal(body, &data); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	for _, r := range data.ResourceMetrics {
		for _, s := range r.ScopeMetrics {
			for _, m := range s.Metrics {
				c.instruments[m.Name] = form(m)
			}
		}
	}
	return nil
}

func form(m *metricspb.Metric) Instrument {
	switch d := m.Data.(type) {
	case *metricspb.Metric_Sum:
		return Instrument{Kind: "sum", Monotonic: d.Sum.IsMonotonic}
	case *metricspb.Metric_Gauge:
		return Instrument{Kind: "gauge"}
	case *metricspb.Metric_Histogram:
		return Instrument{Kind: "histogram"}
	default:
		return Instrument{Kind: fmt.Sprintf("%T", d)}
	}
}

func (c *collector) addSpans(body []byte) error {
	var data tracepb.TracesData
	if err := proto.Unmarshal(body, &data); err != nil {
		return fmt.Errorf("spans: %w", err)
	}
	for _, r := range data.ResourceSpans {
		for _, s := range r.ScopeSpans {
			for _, span := range s.Spans {
				for _, a := range span.Attributes {
					if span.Kind == tracepb.Span_SPAN_KIND_SERVER && a.Key == "kn.route.tag" {
						c.tags[a.Value.GetStringValue()] = true
					}
				}
			}
		}
	}
	return nil
}

// runtimeMetrics returns the received Go runtime metrics.
func (c *collector) runtimeMetrics() map[string]Instrument {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(c.instruments)
	maps.DeleteFunc(all, func(name string, _ Instrument) bool { return !strings.HasPrefix(name, "go.") })
	return all
}

// The Go runtime metrics have the same types as in Knative. For example, a metric that can decrease
// is a non-monotonic sum.
func runtimeMetricsHaveKnativeTypes(t *testing.T, r *Release) {
	want := r.RuntimeMetrics(t)
	c := startCollector(t)
	p := newPod(t, r.Name+"/otlp")
	p.start()
	startApp(p)
	p.waitUntilReady()
	p.get(p.url("/"))
	poll(t, "runtime metrics arrive", func() error {
		if len(c.runtimeMetrics()) == 0 {
			return errors.New("no runtime metrics were received")
		}
		return nil
	})
	got := c.runtimeMetrics()
	for name, form := range want {
		if got[name] != form {
			t.Errorf("%s: got %+v, want %+v", name, got[name], form)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		t.Error(c.err)
	}
}

// Server spans have the attribute kn.route.tag.
func serverSpanHasRouteTag(t *testing.T, r *Release) {
	c := startCollector(t)
	p := newPod(t, r.Name+"/otlp")
	p.start()
	startApp(p)
	p.waitUntilReady()
	p.get(p.url("/"), netheader.RouteTagKey+": blue")
	poll(t, "a span has the route tag", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.tags["blue"] {
			return fmt.Errorf("got %v, %v, want blue", c.tags, c.err)
		}
		return nil
	})
}
