package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	dto "github.com/prometheus/client_model/go"
)

// A Kind is what the values of a family mean.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// A family is one name: what docs/metrics.md says about it, and its series at a
// scrape.
type family struct {
	set    Names // the set that it belongs to
	name   string
	kind   Kind
	labels []string // every name that a series of it may have
	help   string

	series func(add func(*dto.Metric)) // adds those of this moment
}

// families are all of ours, made in New. They are a registry of their own: one of
// client_golang's compares each series with all others at every scrape, which costs
// as much as all the rest. A test has it do so.
type families struct {
	all    []*family // in the order of their names
	before []func()  // take a look at what several families tell, before they do
	mu     sync.Mutex
}

// add makes a family. Its series are set by the caller.
func (fs *families) add(set Names, kind Kind, name, help string, labels ...string) *family {
	f := &family{set: set, kind: kind, name: name, help: help, labels: labels}
	i, _ := slices.BinarySearchFunc(fs.all, f, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	fs.all = slices.Insert(fs.all, i, f)
	return f
}

// look has f called before the families are asked, at each scrape and never by two
// at once.
func (fs *families) look(f func()) { fs.before = append(fs.before, f) }

// Gather implements [prometheus.Gatherer]. Families without a series are left out.
func (fs *families) Gather() ([]*dto.MetricFamily, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, look := range fs.before {
		look()
	}
	gathered := make([]*dto.MetricFamily, 0, len(fs.all))
	for _, f := range fs.all {
		g := &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: types[f.kind]}
		f.series(func(m *dto.Metric) { g.Metric = append(g.Metric, m) })
		if len(g.Metric) > 0 {
			gathered = append(gathered, g)
		}
	}
	return gathered, nil
}

var types = map[Kind]*dto.MetricType{
	Counter:   dto.MetricType_COUNTER.Enum(),
	Gauge:     dto.MetricType_GAUGE.Enum(),
	Histogram: dto.MetricType_HISTOGRAM.Enum(),
}

// read makes f a family of one series without labels, whose value is asked for at
// each scrape; false is absent.
func (f *family) read(value func() (float64, bool)) {
	f.series = func(add func(*dto.Metric)) {
		if v, ok := value(); ok {
			add(f.sample(nil, v))
		}
	}
}

// always is read for a value that is never absent.
func (f *family) always(value func() float64) {
	f.read(func() (float64, bool) { return value(), true })
}

// sample is a series of a counter or a gauge. The labels are in the order of their
// names and stay as they are.
func (f *family) sample(labels []*dto.LabelPair, value float64) *dto.Metric {
	if f.kind == Counter {
		return &dto.Metric{Label: labels, Counter: &dto.Counter{Value: &value}}
	}
	return &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: &value}}
}

// pairs makes labels of names and values in turn, in the order of their names.
// An empty value is the same as no label, and is left out.
func pairs(namesAndValues ...string) []*dto.LabelPair {
	var all []*dto.LabelPair
	for i := 0; i < len(namesAndValues); i += 2 {
		value := strings.ToValidUTF8(namesAndValues[i+1], "\uFFFD")
		if value != "" {
			all = append(all, &dto.LabelPair{Name: &namesAndValues[i], Value: &value})
		}
	}
	return sorted(all)
}

func sorted(labels []*dto.LabelPair) []*dto.LabelPair {
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return labels
}

// A dimension is the labels that a series may have for one of its properties, by the
// place of the value in its list. Most have one label, some none or two.
type dimension [][]*dto.LabelPair

// dim makes a dimension of one label. The value "" is a series without it.
func dim(name string, values ...string) dimension {
	d := make(dimension, len(values))
	for i, v := range values {
		d[i] = pairs(name, v)
	}
	return d
}

// A vector holds something for each combination of label values, made when it is
// first asked for. All lists are closed, so it cannot grow beyond its cells. It is
// safe for concurrent use; at takes no lock, and allocates once for each cell.
type vector[T any] struct {
	dims      []dimension
	construct func(labels []*dto.LabelPair) *T
	fixed     []*dto.LabelPair // labels of every series
	cells     []atomic.Pointer[T]
}

func newVector[T any](construct func([]*dto.LabelPair) *T, fixed []*dto.LabelPair, dims ...dimension) *vector[T] {
	n := 1
	for _, d := range dims {
		n *= len(d)
	}
	return &vector[T]{dims: dims, construct: construct, fixed: fixed, cells: make([]atomic.Pointer[T], n)}
}

// at returns what stands at the places of the label values, one for each dimension.
func (v *vector[T]) at(places ...int) *T {
	i := v.cell(places)
	if t := v.cells[i].Load(); t != nil {
		return t
	}
	return v.create(i)
}

// has reports whether at has made it.
func (v *vector[T]) has(places ...int) bool { return v.cells[v.cell(places)].Load() != nil }

func (v *vector[T]) cell(places []int) (i int) {
	for n, place := range places {
		i = i*len(v.dims[n]) + place
	}
	return i
}

func (v *vector[T]) create(i int) *T {
	labels := slices.Clone(v.fixed)
	rest := i
	for _, d := range slices.Backward(v.dims) {
		labels = append(labels, d[rest%len(d)]...)
		rest /= len(d)
	}
	v.cells[i].CompareAndSwap(nil, v.construct(sorted(labels)))
	return v.cells[i].Load()
}

// all makes every series, so that each is there from zero on and the first event
// is an increase.
func (v *vector[T]) all() {
	for i := range v.cells {
		v.create(i)
	}
}

// each calls f for everything that has been made.
func (v *vector[T]) each(f func(*T)) {
	for i := range v.cells {
		if t := v.cells[i].Load(); t != nil {
			f(t)
		}
	}
}

// A counter is a series that counts. It is safe for concurrent use.
type counter struct {
	labels []*dto.LabelPair
	n      atomic.Uint64
}

// counters makes f a family of counters.
func (f *family) counters(dims ...dimension) *vector[counter] {
	v := newVector(func(labels []*dto.LabelPair) *counter { return &counter{labels: labels} }, nil, dims...)
	f.series = func(add func(*dto.Metric)) {
		v.each(func(c *counter) { add(f.sample(c.labels, float64(c.n.Load()))) })
	}
	return v
}

// buckets are the upper bounds of a histogram in whole units, ascending, and how
// many units make one of what is shown.
type buckets struct {
	bounds []int64
	upper  []float64 // the bounds as they are shown
	units  float64
}

func newBuckets(units float64, bounds ...int64) *buckets {
	b := &buckets{bounds: bounds, units: units}
	for _, bound := range bounds {
		b.upper = append(b.upper, float64(bound)/units)
	}
	return b
}

// A histogram is a distribution without its names. It is safe for concurrent use;
// observe takes no lock and does not wait.
type histogram struct {
	*buckets
	labels []*dto.LabelPair
	counts []atomic.Uint64 // one for each bound and one for what is above
	sum    atomic.Int64    // in units
}

func newHistogram(b *buckets, labels []*dto.LabelPair) histogram {
	return histogram{buckets: b, labels: labels, counts: make([]atomic.Uint64, len(b.bounds)+1)}
}

// observe notes a value in units; one below zero counts as zero.
func (h *histogram) observe(v int64) {
	v = max(v, 0)
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(v)
}

// count returns how many values there were.
func (h *histogram) count() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// histograms makes f a family of histograms.
func (f *family) histograms(b *buckets, dims ...dimension) *vector[histogram] {
	v := newVector(func(labels []*dto.LabelPair) *histogram {
		h := newHistogram(b, labels)
		return &h
	}, nil, dims...)
	show(f, v.each, same)
	return v
}

// show makes f the family of a histogram of each series.
func show[T any](f *family, each func(func(*T)), which func(*T) *histogram) {
	f.series = func(add func(*dto.Metric)) {
		each(func(t *T) { add(which(t).show()) })
	}
}

// same is for series that are histograms.
func same(h *histogram) *histogram { return h }

// show is the histogram as it is now. The count is that of the buckets, so they
// agree whatever happens meanwhile.
func (h *histogram) show() *dto.Metric {
	var (
		memory     = make([]dto.Bucket, len(h.upper))
		shown      = make([]*dto.Bucket, len(h.upper))
		cumulative = make([]uint64, len(h.counts))
		n          uint64
	)
	for i := range h.counts {
		n += h.counts[i].Load()
		cumulative[i] = n
		if i < len(h.upper) {
			shown[i] = &memory[i]
			shown[i].CumulativeCount, shown[i].UpperBound = &cumulative[i], &h.upper[i]
		}
	}
	sum := float64(h.sum.Load()) / h.units
	return &dto.Metric{Label: h.labels, Histogram: &dto.Histogram{SampleCount: &n, SampleSum: &sum, Bucket: shown}}
}
