package tracing

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"
)

// MetricKind is what OpenTelemetry has to know of a metric.
type MetricKind uint8

// The kinds.
const (
	Gauge         MetricKind = iota // a value of now
	Counter                         // a sum since the start that only grows
	UpDownCounter                   // a sum of now: points with different labels may be added
	Histogram                       // a distribution since the start
)

// A Metric is one metric with its points, one for each set of labels.
type Metric struct {
	Name, Unit, Help string // Unit in UCUM: s, By, {request}
	Kind             MetricKind
	Points           []Point
}

// A Point is what a metric says at one moment.
type Point struct {
	Labels map[string]string
	Value  float64   // the sum of a histogram; of the other kinds, a whole number
	Bounds []float64 // of a histogram: the upper bounds of its buckets, but the last's
	Counts []uint64  // of a histogram: in each bucket alone, one more than Bounds
}

// PushOptions say which metrics are pushed where. [ExporterConfig.PushOptions] makes them from
// the settings of Knative and OpenTelemetry.
type PushOptions struct {
	Exporter Exporter // OTLP or OTLPGRPC; None: nothing is pushed
	Endpoint string   // as in Options
	Header   http.Header
	Timeout  time.Duration // of one push; 0: 10 s
	TLS      *tls.Config
	Interval time.Duration // between pushes; 0: 60 s
	Resource Resource
	OwnPorts []int // as in Options

	// Collect returns the metrics of now. It is called by one goroutine.
	Collect func() []Metric

	// Report is called with the reason why a push failed, once until one succeeds and
	// once in 10 s at most. It may be nil.
	Report func(error)
}

const (
	defaultInterval = time.Minute // OpenTelemetry's
	minInterval     = time.Second // a push costs a millisecond of processor time
)

// A MetricsPush pushes metrics over OTLP. What it pushes is counted from the start, so
// that a push that fails loses nothing that the next one does not have: it is not
// tried again. The nil MetricsPush does nothing.
type MetricsPush struct {
	options PushOptions
	head    []byte // the resource, encoded
	start   time.Time
	send    sender
	release func()
	outcome outcome // of run alone

	closeOnce sync.Once
	closing   chan context.Context // Close's, for the last push
	cut       context.CancelFunc   // ends a push that is under way
	done      chan struct{}
	last      error // of the last push; read after done
}

// NewMetricsPush starts pushing. It returns nil when nothing is to be pushed. The
// error is about the exporter or its endpoint.
func NewMetricsPush(o PushOptions) (*MetricsPush, error) {
	switch o.Exporter {
	case None, "":
		return nil, nil
	case OTLP, OTLPGRPC:
	default:
		return nil, fmt.Errorf("metrics push: exporter %q: neither http/protobuf nor grpc", o.Exporter)
	}
	send, release, err := newSender(&transport{
		exporter: o.Exporter, endpoint: o.Endpoint, header: o.Header, timeout: o.Timeout, tls: o.TLS,
		version: o.Resource.Version, signal: metricSignal, ownPorts: o.OwnPorts, ownIP: o.Resource.PodIP,
	})
	if err != nil {
		return nil, fmt.Errorf("metrics push: %w", err)
	}
	return startPush(o, send, release), nil
}

// startPush starts the goroutine that pushes.
func startPush(o PushOptions, send sender, release func()) *MetricsPush {
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	ctx, cut := context.WithCancel(context.Background())
	p := &MetricsPush{
		cut: cut, options: o, head: resourceProto(&o.Resource), start: time.Now(), send: send, release: release,
		closing: make(chan context.Context, 1), done: make(chan struct{}),
	}
	go p.run(ctx)
	return p
}

// run pushes until Close.
func (p *MetricsPush) run(ctx context.Context) {
	defer close(p.done)
	defer p.cut()
	defer p.release()
	ticker := time.NewTicker(p.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = p.push(ctx) // it was reported
		case last := <-p.closing:
			p.last = p.push(last)
			return
		}
	}
}

// push pushes what Collect returns.
func (p *MetricsPush) push(ctx context.Context) error {
	metrics := p.options.Collect()
	if len(metrics) == 0 {
		return nil
	}
	rejected, err := p.send(ctx, p.encode(metrics, time.Now()))
	if err == nil && rejected > 0 {
		err = fmt.Errorf("%d points were refused", rejected)
	}
	if p.outcome.isNews(err) && p.options.Report != nil {
		p.options.Report(fmt.Errorf("metrics push: %w", err))
	}
	return err
}

// Close pushes a last time, until ctx ends, and stops. The error is that of the last
// push.
func (p *MetricsPush) Close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.closeOnce.Do(func() { p.closing <- ctx })
	defer context.AfterFunc(ctx, p.cut)()
	<-p.done
	if p.last != nil {
		return fmt.Errorf("metrics push: the last one: %w", p.last)
	}
	return nil
}

// cumulative is AGGREGATION_TEMPORALITY_CUMULATIVE (metrics/v1/metrics.proto).
const cumulative = 2

// encode makes an ExportMetricsServiceRequest (collector/metrics/v1/metrics_service.proto).
func (p *MetricsPush) encode(metrics []Metric, now time.Time) []byte {
	start, end := uint64(p.start.UnixNano()), uint64(p.start.UnixNano()+int64(now.Sub(p.start)))
	var m message
	m.nested(1, func(m *message) { // ResourceMetrics
		*m = append(*m, p.head...)
		m.nested(2, func(m *message) { // ScopeMetrics
			m.nested(1, scopeProto(&p.options.Resource))
			for i := range metrics {
				m.nested(2, func(m *message) { metricProto(m, &metrics[i], start, end) })
			}
		})
	})
	return m
}

func metricProto(m *message, metric *Metric, start, end uint64) {
	m.string(1, text(metric.Name))
	m.string(2, text(metric.Help))
	m.string(3, text(metric.Unit))
	points := func(m *message) {
		for i := range metric.Points {
			m.nested(1, func(m *message) {
				if metric.Kind == Histogram {
					histogramProto(m, &metric.Points[i], start, end)
				} else {
					numberProto(m, &metric.Points[i], start, end)
				}
			})
		}
	}
	switch metric.Kind {
	case Gauge:
		m.nested(5, points)
	case Counter, UpDownCounter:
		m.nested(7, func(m *message) {
			points(m)
			m.uint(2, cumulative)
			if metric.Kind == Counter {
				m.uint(3, 1) // is_monotonic
			}
		})
	case Histogram:
		m.nested(9, func(m *message) {
			points(m)
			m.uint(2, cumulative)
		})
	}
}

// numberProto writes a NumberDataPoint.
func numberProto(m *message, p *Point, start, end uint64) {
	m.fixed64(2, start)
	m.fixed64(3, end)
	m.fixed64Always(6, uint64(int64(p.Value))) // as_int, as OpenTelemetry's instruments of these names
	labelsProto(m, 7, p.Labels)
}

// histogramProto writes a HistogramDataPoint.
func histogramProto(m *message, p *Point, start, end uint64) {
	var count uint64
	for _, n := range p.Counts {
		count += n
	}
	bounds := make([]uint64, len(p.Bounds))
	for i, b := range p.Bounds {
		bounds[i] = math.Float64bits(b)
	}
	m.fixed64(2, start)
	m.fixed64(3, end)
	m.fixed64Always(4, count)
	m.doubleAlways(5, p.Value)
	m.packedFixed64(6, p.Counts)
	m.packedFixed64(7, bounds)
	labelsProto(m, 9, p.Labels)
}

func labelsProto(m *message, field int, labels map[string]string) {
	attributes := make(map[string]any, len(labels))
	for name, value := range labels {
		attributes[text(name)] = text(value)
	}
	attributesProto(m, field, attributes)
}

// PushOptions makes one choice of all settings about pushing metrics. They are pushed
// where Protocol says so, or where it is unset and there is an endpoint for metrics
// alone; everywhere else they are scraped.
func (c ExporterConfig) PushOptions() (o PushOptions, warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	o = PushOptions{Exporter: None, Timeout: c.Timeout, Resource: Resource{ServiceName: c.ServiceName, Attributes: c.Attributes}}
	if c.Disabled {
		return o, nil
	}
	var way Options
	switch c.Protocol {
	case "none", "prometheus":
		return o, nil
	case string(OTLP), string(OTLPGRPC):
		way.Exporter, way.Endpoint, o.Interval = Exporter(c.Protocol), c.Endpoint, c.DefaultInterval
	case "":
		if c.Collector.Endpoint == "" {
			return o, nil
		}
		way.Exporter = OTLP
	default:
		warn("metrics protocol %q: not one of none, prometheus, grpc, http/protobuf; nothing is pushed", c.Protocol)
		return o, warnings
	}
	written := first(c.Collector.Endpoint, c.Collector.BaseEndpoint, way.Endpoint)
	c.Collector.choose(&way, metricSignal)
	if way.Exporter == OTLPJSON {
		warn("metrics are not pushed as JSON; they are as http/protobuf")
		way.Exporter = OTLP
	}
	if c.Interval > 0 {
		o.Interval = c.Interval
	}
	if o.Interval > 0 && o.Interval < minInterval {
		warn("metrics push: an interval of %v is too short; it is %v", o.Interval, minInterval)
		o.Interval = minInterval
	}
	target, err := resolve(way.Endpoint)
	if err != nil {
		warn("metrics push: %v; it is off", err)
		return o, warnings
	}
	if !hasScheme(written) {
		warn("the metrics endpoint has no scheme; it is taken for %s", target.Redacted())
	}
	o.Exporter, o.Endpoint, o.Header = way.Exporter, way.Endpoint, way.Header
	return o, warnings
}
