package metrics

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// gathered is the family of a name.
func gathered(t *testing.T, m *Metrics, name string) Family {
	t.Helper()
	fs, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fs {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("got no %s, want one", name)
	return Family{}
}

func TestWhatIsPushedIsWhatIsScraped(t *testing.T) {
	m := newMetrics(t, options(All))
	o := observed("GET", 1, 1, 200, queue.OK)
	m.Observe(&o)

	f := gathered(t, m, RequestsTotal)
	f.Help = ""
	if want := (Family{Name: RequestsTotal, Kind: Counter, Points: []Point{{
		Labels: []Label{{"code", "2xx"}, {"method", "get"}, {"protocol", "http/1.1"}, {"reason", "ok"}},
		Value:  1,
	}}}); !reflect.DeepEqual(f, want) {
		t.Errorf("got %+v, want %+v", f, want)
	}

	if f := gathered(t, m, WaitingRequests); f.Kind != Gauge || len(f.Points) != 1 || f.Points[0].Value != 3 {
		t.Errorf("got %+v, want a gauge of 3", f)
	}

	o.End = o.Slot.Add(time.Hour)
	m.Observe(&o)
	f = gathered(t, m, AppDurationSeconds)
	p := f.Points[0]
	if f.Unit != "s" || f.Kind != Histogram || p.Count != 2 || math.Abs(p.Sum-3600.04) > 1e-9 {
		t.Errorf("got %+v, want a histogram of 2 values and 3600.04 s", f)
	}
	if got, want := len(p.Counts), len(p.Bounds)+1; got != want {
		t.Fatalf("got %d counts, want %d", got, want)
	}
	for i, n := range p.Counts {
		want := uint64(0)
		if i == len(p.Bounds) || p.Bounds[i] == 0.05 {
			want = 1
		}
		if n != want {
			t.Errorf("count %d: got %d, want %d", i, n, want)
		}
	}
}

func TestOpenTelemetrysNamesAreHerOwn(t *testing.T) {
	m := newMetrics(t, options(KnativeHead))
	o := observed("GET", 1, 1, 200, queue.OK)
	m.Observe(&o)
	f, ok := gathered(t, m, "http_server_request_duration_seconds").OTel()
	if !ok || f.Name != "http.server.request.duration" || f.Unit != "s" {
		t.Errorf("got %s in %s, want http.server.request.duration in s", f.Name, f.Unit)
	}
	want := []Label{
		{"http.request.method", "GET"}, {"http.response.status_code", "200"}, {"kn.route.tag", "kn:disabled"},
		{"network.protocol.name", "http"}, {"network.protocol.version", "1.1"}, {"url.scheme", "http"},
	}
	if !reflect.DeepEqual(f.Points[0].Labels, want) {
		t.Errorf("got %v, want %v", f.Points[0].Labels, want)
	}
	if _, ok := gathered(t, m, "go_goroutines").OTel(); ok {
		t.Error("got a name for go_goroutines, want none")
	}
	for _, f := range m.families.all {
		if _, ok := otelNames[f.name]; !ok && f.name != "target_info" {
			t.Errorf("%s: got no name in OpenTelemetry, want one", f.name)
		}
		for _, l := range f.labels {
			if otelLabels[l] == "" && l != "otel_scope_name" && l != "otel_scope_version" && f.name != "target_info" {
				t.Errorf("%s: got no name in OpenTelemetry for its label %s, want one", f.name, l)
			}
		}
	}
}
