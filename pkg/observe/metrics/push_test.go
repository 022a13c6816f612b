package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// nothing is a Gatherer without metrics.
type nothing struct{}

func (nothing) Gather() ([]*dto.MetricFamily, error) { return nil, nil }

// pushed returns the metrics that m pushes on Close, and the path of the request.
func pushed(t *testing.T, m *Metrics, o PushOptions) (got *metricspb.ResourceMetrics, path string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		body, _ := io.ReadAll(r.Body)
		var all metricspb.MetricsData // has the same fields as ExportMetricsServiceRequest
		harness.Equal(t, proto.Unmarshal(body, &all), nil)
		got = all.ResourceMetrics[0]
	}))
	defer s.Close()
	o.Protocol, o.Endpoint = export.OTLP, s.URL
	p, err := m.Push(o)
	harness.NoError(t, err, "Push")
	harness.NoError(t, p.Close(t.Context()), "Close")
	return got, path
}

func TestPushSendsMetricsOverHTTP(t *testing.T) {
	o := PushOptions{Target: export.Target{Resource: export.Resource{Service: "svc", Version: "v1"}}}
	got, path := pushed(t, filled(t, "knative-head"), o)
	harness.Equal(t, path, "/v1/metrics", "path")
	harness.Equal(t, attributesOf(got.Resource.Attributes)["service.name"], "svc", "service.name")
	scope := got.ScopeMetrics[0]
	if scope.Scope.Name != "github.com/queue-proxy/queue-proxy" || scope.Scope.Version != "v1" || len(scope.Metrics) == 0 {
		t.Errorf("got scope %v with %d metrics, want the scope of the sidecar with metrics", scope.Scope, len(scope.Metrics))
	}
}

func TestPushRepeatsAfterInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pushes atomic.Int32
		var reports []error
		p := startPush(PushOptions{
			Target:   export.Target{Resource: export.Resource{}},
			Interval: 10 * time.Second, Report: func(err error) { reports = append(reports, err) },
		}, nothing{}, func(context.Context, []byte) (int, error) {
			if pushes.Add(1) > 3 {
				return 0, errors.New("no route")
			}
			return 0, nil
		}, func() {})
		time.Sleep(35 * time.Second) // fake time of synctest
		synctest.Wait()
		harness.Equal(t, pushes.Load(), 3, "pushes in 35s")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		harness.Equal(t, len(reports), 1, "reports", reports, "(2 failures)")
		if err := p.Close(t.Context()); err == nil {
			t.Error("Close: got no error, want the error of the last push")
		}
		harness.Equal(t, pushes.Load(), 6, "pushes, including the push of Close")
		_ = p.Close(t.Context()) // a second Close returns immediately
	})
}

func TestPushCloseStopsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := PushOptions{Target: export.Target{Resource: export.Resource{}}, Interval: time.Second}
		p := startPush(o, nothing{}, func(ctx context.Context, _ []byte) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}, func() {})
		time.Sleep(1500 * time.Millisecond) // a push is blocked
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: got %v, want a deadline error", err)
		}
		harness.Equal(t, time.Since(began), 2*time.Second, "Close")
	})
}

func TestPushIsNilWithoutProtocol(t *testing.T) {
	m := newMetrics(t, options("knative-head"))
	p, err := m.Push(PushOptions{Target: export.Target{Protocol: export.None}})
	if p != nil || err != nil || p.Close(t.Context()) != nil {
		t.Errorf("got %v, %v, want nil, nil", p, err)
	}
	for _, target := range []export.Target{
		{Protocol: export.Zipkin, Endpoint: "http://z"}, {Protocol: export.OTLP},
		{Protocol: export.OTLP, Endpoint: "http://127.0.0.1:8012", OwnPorts: []int{8012}},
	} {
		if p, err := m.Push(PushOptions{Target: target}); err == nil || p != nil {
			t.Errorf("%+v: got %v, error %v, want an error", target, p, err)
		}
	}
}

func TestPushConfigOptions(t *testing.T) {
	const second = time.Second
	otel := func(endpoint, base string) export.Collector {
		return export.Collector{Endpoint: endpoint, BaseEndpoint: base}
	}
	for _, c := range []struct {
		name   string
		config PushConfig
		want   string
		warns  string
	}{
		{"no settings", PushConfig{}, "none  0s", ""},
		{"head, prometheus", PushConfig{Settings: export.Settings{Protocol: "prometheus", Endpoint: ":9091", Collector: otel("http://c", "")}, DefaultInterval: 5 * second}, "none  0s", ""},
		{"head, none", PushConfig{Settings: export.Settings{Protocol: "none"}, DefaultInterval: 5 * second}, "none  0s", ""},
		{"head, gRPC", PushConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c:4317"}, DefaultInterval: 5 * second}, "grpc http://c:4317 5s", ""},
		{"head, HTTP", PushConfig{Settings: export.Settings{Protocol: "http/protobuf", Endpoint: "http://c/x"}, DefaultInterval: 5 * second, Interval: second}, "http/protobuf http://c/x 1s", ""},
		{"head, short interval", PushConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c:4317"}, DefaultInterval: 5 * second, Interval: time.Millisecond}, "grpc http://c:4317 1s", "1ms"},
		{"head, address", PushConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "10.0.0.1:4317"}, DefaultInterval: 5 * second}, "grpc 10.0.0.1:4317 5s", "using http://10.0.0.1:4317"},
		{"head, no endpoint", PushConfig{Settings: export.Settings{Protocol: "grpc"}, DefaultInterval: 5 * second}, "none  5s", "the endpoint is missing"},
		{"head, bad protocol", PushConfig{Settings: export.Settings{Protocol: "bogus"}, DefaultInterval: 5 * second}, "none  0s", "bogus"},
		{"OTEL, for metrics", PushConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c", BaseEndpoint: "http://d", Protocol: "http/json"}}}, "http/protobuf http://c/ 0s", "http/json"},
		{"OTEL, for all signals", PushConfig{Settings: export.Settings{Collector: otel("", "http://d")}}, "none  0s", ""},
		{"head and OTEL", PushConfig{Settings: export.Settings{Protocol: "http/protobuf", Collector: otel("", "http://d/o")}, DefaultInterval: 5 * second}, "http/protobuf http://d/o/v1/metrics 5s", ""},
		{"OTEL, disabled", PushConfig{Settings: export.Settings{Protocol: "grpc", Endpoint: "http://c", Disabled: true}, DefaultInterval: 5 * second}, "none  0s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, warnings := c.config.Options()
			harness.Equal(t, fmt.Sprintf("%s %s %v", o.Protocol, o.Endpoint, o.Interval), c.want, "options")
			if all := strings.Join(warnings, "|"); (c.warns == "") != (all == "") || !strings.Contains(all, c.warns) {
				t.Errorf("got warnings %q, want %q", all, c.warns)
			}
		})
	}
}

func TestPushConfigOptionsUsesCommonSettings(t *testing.T) {
	o, _ := PushConfig{Settings: export.Settings{Collector: export.Collector{Endpoint: "http://c/x", Header: http.Header{"X-Tenant": {"7"}}}, Timeout: 3 * time.Second, Resource: export.Resource{ServiceName: "shop", Attributes: map[string]string{"service.name": "lost", "team": "a,b"}}}}.Options()
	if o.Header.Get("X-Tenant") != "7" || o.Timeout != 3*time.Second {
		t.Errorf("got %v, %v, want X-Tenant and 3s", o.Header, o.Timeout)
	}
	if a := attributesOf(o.Resource.OTLP().Attributes); a["service.name"] != "shop" || a["team"] != "a,b" {
		t.Errorf("got attributes %v, want shop and a,b", a)
	}
}
