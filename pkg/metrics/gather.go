package metrics

import (
	"math"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// A Family is one metric at a moment, for those who push metrics instead of being
// scraped.
type Family struct {
	Name   string // as Prometheus spells it, or OpenTelemetry: see [Family.OTel]
	Help   string
	Unit   string // as UCUM writes it: s, By, ms or ""
	Kind   Kind
	Points []Point
}

// A Point is one series of a Family.
type Point struct {
	Labels []Label
	Value  float64 // of a counter, since the start, or of a gauge

	// Of a histogram, since the start: how many values there were, their sum, and how
	// many of them are above the bound before and not above their own. Counts has one
	// more element than Bounds, for those that are above all of them.
	Count  uint64
	Sum    float64
	Bounds []float64
	Counts []uint64
}

// A Label is one label of a Point.
type Label struct{ Name, Value string }

// Gather is what a scrape would show at this moment, the user container's metrics
// excepted, in the order of names. Summaries are left out.
func (m *Metrics) Gather() ([]Family, error) {
	gathered, err := m.gatherer.Gather()
	fs := make([]Family, 0, len(gathered))
	for _, g := range gathered {
		if g.GetType() == dto.MetricType_SUMMARY {
			continue // client_golang's own; nobody who is pushed to wants quantiles
		}
		f := Family{Name: g.GetName(), Help: g.GetHelp(), Unit: unitOf(g.GetName()), Kind: Gauge}
		for _, s := range g.GetMetric() {
			p := Point{Value: s.GetGauge().GetValue()}
			for _, l := range s.GetLabel() {
				p.Labels = append(p.Labels, Label{l.GetName(), l.GetValue()})
			}
			switch g.GetType() {
			case dto.MetricType_COUNTER:
				f.Kind, p.Value = Counter, s.GetCounter().GetValue()
			case dto.MetricType_HISTOGRAM:
				f.Kind = Histogram
				p.spread(s.GetHistogram())
			}
			f.Points = append(f.Points, p)
		}
		fs = append(fs, f)
	}
	return fs, err
}

// spread takes a histogram, whose buckets count all below them too.
func (p *Point) spread(h *dto.Histogram) {
	p.Count, p.Sum = h.GetSampleCount(), h.GetSampleSum()
	var before uint64
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			continue
		}
		p.Bounds = append(p.Bounds, b.GetUpperBound())
		p.Counts = append(p.Counts, b.GetCumulativeCount()-before)
		before = b.GetCumulativeCount()
	}
	p.Counts = append(p.Counts, p.Count-before)
}

// unitOf is the unit that a name ends in.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	case strings.HasSuffix(name, "_bytes"):
		return "By"
	case strings.HasSuffix(name, "_latencies"):
		return "ms"
	}
	return ""
}

// OTel is the family as OpenTelemetry spells it, which is what Knative's head
// pushes; false: it has no such name.
func (f Family) OTel() (Family, bool) {
	known, ok := otelNames[f.Name]
	if !ok {
		return f, false
	}
	f.Name, f.Unit, f.Kind = known.name, known.unit, known.kind
	points := make([]Point, len(f.Points))
	for i, p := range f.Points {
		points[i] = p
		points[i].Labels = nil
		for _, l := range p.Labels {
			if name := otelLabels[l.Name]; name != "" { // a scope stands elsewhere
				points[i].Labels = append(points[i].Labels, Label{name, l.Value})
			}
		}
	}
	f.Points = points
	return f, true
}

// otelNames are OpenTelemetry's names, units and kinds of instruments: those of go.*
// are its semantic conventions for Go runtime metrics. Values that are no distributions
// are whole numbers.
var otelNames = map[string]struct {
	name, unit string
	kind       Kind
}{
	"http_server_request_duration_seconds":   {"http.server.request.duration", "s", Histogram},
	"http_server_request_body_size_bytes":    {"http.server.request.body.size", "By", Histogram},
	"http_server_response_body_size_bytes":   {"http.server.response.body.size", "By", Histogram},
	"http_client_request_duration_seconds":   {"http.client.request.duration", "s", Histogram},
	"http_client_request_body_size_bytes":    {"http.client.request.body.size", "By", Histogram},
	"kn_serving_invocation_duration_seconds": {"kn.serving.invocation.duration", "s", Histogram},
	"kn_serving_queue_depth":                 {"kn.serving.queue.depth", "{request}", Gauge},
	"go_memory_used_bytes":                   {"go.memory.used", "By", UpDownCounter},
	"go_memory_limit_bytes":                  {"go.memory.limit", "By", UpDownCounter},
	"go_memory_allocated_bytes_total":        {"go.memory.allocated", "By", Counter},
	"go_memory_allocations_total":            {"go.memory.allocations", "{allocation}", Counter},
	"go_memory_gc_goal_bytes":                {"go.memory.gc.goal", "By", UpDownCounter},
	"go_goroutine_count":                     {"go.goroutine.count", "{goroutine}", UpDownCounter},
	"go_processor_limit":                     {"go.processor.limit", "{thread}", UpDownCounter},
	"go_config_gogc_percent":                 {"go.config.gogc", "%", UpDownCounter},
}

var otelLabels = map[string]string{
	"http_request_method":       "http.request.method",
	"http_response_status_code": "http.response.status_code",
	"url_scheme":                "url.scheme",
	"network_protocol_name":     "network.protocol.name",
	"network_protocol_version":  "network.protocol.version",
	"server_address":            "server.address",
	"server_port":               "server.port",
	"error_type":                "error.type",
	"kn_route_tag":              "kn.route.tag",
	"go_memory_type":            "go.memory.type",
}
