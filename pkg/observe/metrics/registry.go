package metrics

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// A registry is a prometheus.Registry that also stores the names of our metrics, including metrics without
// series.
type registry struct {
	*prometheus.Registry
	names    map[string]bool // metric names; the value is true for a histogram
	readings *readings
	fixed    prometheus.Labels // labels that are added to all series
	start    time.Time         // start time of the counters in readings
	native   bool              // histograms of durations are also native histograms
}

func newRegistry(start time.Time) *registry {
	r := &registry{Registry: prometheus.NewRegistry(), names: map[string]bool{}, readings: &readings{}, start: start}
	r.MustRegister(r.readings)
	return r
}

// with returns a registry that shares the metrics of r and adds the given labels to the series of each new
// metric. The arguments are alternating names and values. A label with an empty value is omitted, because it is
// equivalent to a missing label.
func (r *registry) with(namesAndValues ...string) *registry {
	labelled := *r
	labelled.fixed = prometheus.Labels{}
	for i := 0; i < len(namesAndValues); i += 2 {
		if value := strings.ToValidUTF8(namesAndValues[i+1], "\uFFFD"); value != "" {
			labelled.fixed[namesAndValues[i]] = value
		}
	}
	return &labelled
}

// counters adds a counter with variable labels.
func (r *registry) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: r.fixed}, labels)
	r.names[name] = false
	r.MustRegister(v)
	return v
}

// histograms adds a histogram with variable labels. buckets contains upper bounds in the unit of the observed
// values.
func (r *registry) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return r.histogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// durations adds a histogram of durations in seconds with variable labels. If r.native is true, a scrape in
// the protobuf format also contains native buckets, whose width is at most 10 %. If there are more than 100
// native buckets, client_golang resets the histogram or merges buckets.
func (r *registry) durations(name, help string, labels ...string) *prometheus.HistogramVec {
	o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds()}
	if r.native {
		o.NativeHistogramBucketFactor = 1.1
		o.NativeHistogramMaxBucketNumber, o.NativeHistogramMinResetDuration = 100, time.Hour
		o.NativeHistogramMaxExemplars = -1 // the classic buckets have exemplars
	}
	return r.histogramVec(o, labels)
}

func (r *registry) histogramVec(options prometheus.HistogramOpts, labels []string) *prometheus.HistogramVec {
	options.ConstLabels = r.fixed
	v := prometheus.NewHistogramVec(options, labels)
	r.names[options.Name] = true
	r.MustRegister(v)
	return v
}

// gauge adds a gauge. Its value is read for each scrape.
func (r *registry) gauge(name, help string, read read, labels ...string) {
	r.read(prometheus.GaugeValue, name, help, read, labels)
}

// counter adds a counter. Its value is read for each scrape.
func (r *registry) counter(name, help string, read read, labels ...string) {
	r.read(prometheus.CounterValue, name, help, read, labels)
}

func (r *registry) read(kind prometheus.ValueType, name, help string, read read, labels []string) {
	r.names[name] = false
	*r.readings = append(*r.readings, reading{prometheus.NewDesc(name, help, labels, r.fixed), kind, r.start, read})
}

// A read calls add for each current series of a metric. It must be safe for concurrent use.
type read func(add func(value float64, labelValues ...string))

// always returns a read function that adds one series without labels.
func always(value func() float64) read {
	return func(add func(float64, ...string)) { add(value()) }
}

// sometimes returns a read function that adds one series without labels, or no series if value returns false.
func sometimes(value func() (float64, bool)) read {
	return func(add func(float64, ...string)) {
		if v, ok := value(); ok {
			add(v)
		}
	}
}

type reading struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	start time.Time // created timestamp of a counter
	read  read
}

// metric returns a series with its current value.
func (r *reading) metric(value float64, labelValues []string) prometheus.Metric {
	if r.kind == prometheus.CounterValue {
		return prometheus.MustNewConstMetricWithCreatedTimestamp(r.desc, r.kind, value, r.start, labelValues...)
	}
	return prometheus.MustNewConstMetric(r.desc, r.kind, value, labelValues...)
}

// readings is a collector for all metrics that are read during a scrape. There is only one such collector,
// because client_golang starts a goroutine for each collector. It does not describe its metrics in advance,
// so that metrics can be added later.
type readings []reading

// Describe implements prometheus.Collector.
func (all *readings) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (all *readings) Collect(series chan<- prometheus.Metric) {
	for _, r := range *all {
		r.read(func(value float64, labelValues ...string) {
			series <- r.metric(value, labelValues)
		})
	}
}

// withoutEmpty removes labels with an empty value, which are equivalent to missing labels.
type withoutEmpty struct{ prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g withoutEmpty) Gather() ([]*dto.MetricFamily, error) {
	empty := func(l *dto.LabelPair) bool { return l.GetValue() == "" }
	gathered, err := g.Gatherer.Gather()
	for _, f := range gathered {
		for _, s := range f.GetMetric() {
			if slices.ContainsFunc(s.GetLabel(), empty) {
				s.Label = slices.DeleteFunc(slices.Clone(s.GetLabel()), empty) // the original slice belongs to the series
			}
		}
	}
	return gathered, err
}

// A counter is one series of a CounterVec.
type counter struct{ prometheus.Counter }

// A histogram is one series of a HistogramVec. Negative values are recorded as 0.
type histogram struct{ prometheus.Observer }

// took records a duration in seconds.
func (h histogram) took(d time.Duration) { h.Observe(float64(max(0, d)) / float64(time.Second)) }

// size records a number of bytes.
func (h histogram) size(n int64) { h.Observe(float64(max(0, n))) }

// A dimension contains the possible values of one or more labels. Each element contains one value for each
// label.
type dimension [][]string

// dim returns a dimension with one label.
func dim(values ...string) dimension {
	d := make(dimension, len(values))
	for i := range values {
		d[i] = values[i : i+1]
	}
	return d
}

// A table stores the series of a vector, so that they need not be looked up by labels for each request. A series
// is created by the first call to at. The number of series is limited, because the dimensions are fixed lists.
// A table is safe for concurrent use. The method at does not use locks and allocates only for new series.
type table[T any] struct {
	child func(labelValues []string) *T
	dims  []dimension
	cells []atomic.Pointer[T]
}

// newTable returns a table. child creates a series from label values in the order of dims.
func newTable[T any](child func(labelValues []string) *T, dims ...dimension) *table[T] {
	n := 1
	for _, d := range dims {
		n *= len(d)
	}
	return &table[T]{child: child, dims: dims, cells: make([]atomic.Pointer[T], n)}
}

func countersOf(v *prometheus.CounterVec, dims ...dimension) *table[counter] {
	return newTable(func(values []string) *counter { return &counter{v.WithLabelValues(values...)} }, dims...)
}

func histogramsOf(v *prometheus.HistogramVec, dims ...dimension) *table[histogram] {
	return newTable(func(values []string) *histogram { return &histogram{v.WithLabelValues(values...)} }, dims...)
}

// at returns the series for the given indexes of label values, one index for each dimension.
func (t *table[T]) at(places ...int) *T {
	i := t.cell(places)
	if one := t.cells[i].Load(); one != nil {
		return one
	}
	return t.make(i)
}

// known returns the series for the given indexes, or nil if it does not exist.
func (t *table[T]) known(places ...int) *T { return t.cells[t.cell(places)].Load() }

func (t *table[T]) cell(places []int) (i int) {
	for n, place := range places {
		i = i*len(t.dims[n]) + place
	}
	return i
}

func (t *table[T]) make(i int) *T {
	var values []string
	rest := i
	for _, d := range slices.Backward(t.dims) {
		values = slices.Concat(d[rest%len(d)], values)
		rest /= len(d)
	}
	t.cells[i].CompareAndSwap(nil, t.child(values))
	return t.cells[i].Load()
}

// all creates all series with the value 0, so that the first event is visible as an increase.
func (t *table[T]) all() {
	for i := range t.cells {
		t.make(i)
	}
}
