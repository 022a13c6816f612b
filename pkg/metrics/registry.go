package metrics

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// A registry is client_golang's, with the names of all that we add to it: also of
// metrics that have no series yet.
type registry struct {
	*prometheus.Registry
	names    map[string]bool // true: of a histogram
	readings *readings
	fixed    prometheus.Labels // of every series that is added
}

func newRegistry() *registry {
	r := &registry{Registry: prometheus.NewRegistry(), names: map[string]bool{}, readings: &readings{}}
	r.MustRegister(r.readings)
	return r
}

// with returns r for metrics whose series all have labels, by names and values in turn.
// An empty value is the same as no label, and is left out.
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

// counters adds a metric.
func (r *registry) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: r.fixed}, labels)
	r.names[name] = false
	r.MustRegister(v)
	return v
}

// histograms adds a metric. The buckets are in the unit of its name.
func (r *registry) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: r.fixed}, labels)
	r.names[name] = true
	r.MustRegister(v)
	return v
}

// gauge adds a metric whose series are read at each scrape.
func (r *registry) gauge(name, help string, read read, labels ...string) {
	r.read(prometheus.GaugeValue, name, help, read, labels)
}

// counter adds a metric whose series are read at each scrape.
func (r *registry) counter(name, help string, read read, labels ...string) {
	r.read(prometheus.CounterValue, name, help, read, labels)
}

func (r *registry) read(kind prometheus.ValueType, name, help string, read read, labels []string) {
	r.names[name] = false
	*r.readings = append(*r.readings, reading{prometheus.NewDesc(name, help, labels, r.fixed), kind, read})
}

// A read adds the series of a metric as they are now. It may be called by several
// goroutines at once.
type read func(add func(value float64, labelValues ...string))

// always reads one series without labels.
func always(value func() float64) read {
	return func(add func(float64, ...string)) { add(value()) }
}

// sometimes reads one series without labels; false is absent.
func sometimes(value func() (float64, bool)) read {
	return func(add func(float64, ...string)) {
		if v, ok := value(); ok {
			add(v)
		}
	}
}

type reading struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read read
}

// readings are a collector of its own: client_golang has a goroutine for each at each
// scrape. It describes nothing beforehand, so that metrics can be added.
type readings []reading

// Describe implements prometheus.Collector.
func (all *readings) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (all *readings) Collect(series chan<- prometheus.Metric) {
	for _, r := range *all {
		r.read(func(value float64, labelValues ...string) {
			series <- prometheus.MustNewConstMetric(r.desc, r.kind, value, labelValues...)
		})
	}
}

// withoutEmpty leaves out labels without a value, which are the same as none.
type withoutEmpty struct{ prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g withoutEmpty) Gather() ([]*dto.MetricFamily, error) {
	empty := func(l *dto.LabelPair) bool { return l.GetValue() == "" }
	gathered, err := g.Gatherer.Gather()
	for _, f := range gathered {
		for _, s := range f.GetMetric() {
			if slices.ContainsFunc(s.GetLabel(), empty) {
				s.Label = slices.DeleteFunc(slices.Clone(s.GetLabel()), empty) // they belong to the series
			}
		}
	}
	return gathered, err
}

// A counter is one series of a vector.
type counter struct{ prometheus.Counter }

// A histogram is one series of a vector. What is below zero counts as zero.
type histogram struct{ prometheus.Observer }

// took notes a duration, in seconds.
func (h histogram) took(d time.Duration) { h.Observe(float64(max(0, d)) / float64(time.Second)) }

// size notes a number of bytes.
func (h histogram) size(n int64) { h.Observe(float64(max(0, n))) }

// A dimension is the values that series may have for one of their properties. Most have
// one label, some two.
type dimension [][]string

// dim makes a dimension of one label.
func dim(values ...string) dimension {
	d := make(dimension, len(values))
	for i := range values {
		d[i] = values[i : i+1]
	}
	return d
}

// A table keeps the series of a vector, so that a request looks none up by its labels. A
// series is made when it is first asked for. All lists of values are closed, so there
// are never more than its cells. It is safe for concurrent use; at takes no lock, and
// allocates once for each cell.
type table[T any] struct {
	child func(labelValues []string) *T
	dims  []dimension
	cells []atomic.Pointer[T]
}

// newTable makes a table. child makes a series; values of dimensions come in their order.
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

// at returns what stands at the places of the label values, one for each dimension.
func (t *table[T]) at(places ...int) *T {
	i := t.cell(places)
	if one := t.cells[i].Load(); one != nil {
		return one
	}
	return t.make(i)
}

// has reports whether at has made it.
func (t *table[T]) has(places ...int) bool { return t.cells[t.cell(places)].Load() != nil }

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

// all makes every series, so that each is there from zero on and the first event is an
// increase.
func (t *table[T]) all() {
	for i := range t.cells {
		t.make(i)
	}
}
