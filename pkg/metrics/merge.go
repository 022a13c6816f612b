package metrics

import (
	"cmp"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/queue-proxy/queue-proxy/pkg/loopback"
)

// Merge says where the user container's own metrics are, to be shown behind ours:
// one scrape instead of two.
type Merge struct {
	Port    int           // on the loopback address; 0: nothing is merged
	Path    string        // with a query, if it needs one; "": /metrics
	timeout time.Duration // for all of it; 0: 5 s. A scraper that says how long it waits gets an answer before that
	maxSize int64         // bytes, when unpacked; 0: 8 MiB
}

const (
	mergeTimeout = 5 * time.Second
	mergeSize    = 8 << 20

	// mergeShare is how much of a scraper's patience the user container gets.
	mergeShare = 0.8

	// maxMerges are at work at once. Each keeps the user container's metrics in memory
	// until they are rendered.
	maxMerges = 2

	maxAppHead = 64 << 10 // bytes of the head of the user container's response
)

// Why the user container's metrics are missing from a scrape.
const (
	scrapeUnreachable = "unreachable" // nothing listens, or the connection broke
	scrapeTimeout     = "timeout"
	scrapeStatus      = "status" // not 200
	scrapeTooLarge    = "too-large"
	scrapeGarbage     = "garbage" // neither text nor OpenMetrics
	scrapeBusy        = "busy"    // too many scrapes at once
)

// merge serves our metrics and the user container's.
type merge struct {
	url         *url.URL
	timeout     time.Duration
	size        int64
	transport   *http.Transport // which follows no redirects: another place is not the configured one
	slots       chan struct{}
	failed      *prometheus.CounterVec // by reason
	openMetrics bool                   // may be spoken
	registry    *registry
	gatherer    prometheus.Gatherer
}

// newMerge returns a handler that shows what gatherer has, and the user container's.
func newMerge(r *registry, o *Merge, gatherer prometheus.Gatherer, openMetrics bool) (*merge, error) {
	appPath := cmp.Or(o.Path, path)
	app, err := url.Parse("http://" + net.JoinHostPort(loopback.IPv4, strconv.Itoa(o.Port)) + appPath)
	if err != nil || !strings.HasPrefix(appPath, "/") || app.Fragment != "" {
		return nil, fmt.Errorf("%q is not the path of metrics: it must begin with / and have no fragment", o.Path)
	}
	m := &merge{
		registry:    r,
		gatherer:    gatherer,
		openMetrics: openMetrics,
		url:         app,
		timeout:     cmp.Or(o.timeout, mergeTimeout),
		size:        cmp.Or(o.maxSize, mergeSize),
		slots:       make(chan struct{}, maxMerges),
		failed:      r.counters("queue_proxy_app_scrape_errors_total", "Number of scrapes without the metrics of the user container, by reason.", "reason"),
		transport: &http.Transport{
			DialContext:            loopback.DialContext,
			DisableKeepAlives:      true, // between two scrapes the app closes it anyway
			DisableCompression:     true, // nothing is gained on the loopback device
			MaxResponseHeaderBytes: maxAppHead,
		},
	}
	for _, reason := range []string{scrapeUnreachable, scrapeTimeout, scrapeStatus, scrapeTooLarge, scrapeGarbage, scrapeBusy} {
		m.failed.WithLabelValues(reason) // is there from zero on
	}
	return m, nil
}

// ServeHTTP asks the user container first, so that its failure is counted in this
// very scrape.
func (m *merge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	formats := []expfmt.Format{expfmt.FmtText}
	if m.openMetrics {
		formats = []expfmt.Format{expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1}
	}
	format := expfmt.NegotiateAccept(r.Header, formats...)
	openMetrics := format.FormatType() == expfmt.TypeOpenMetrics

	app, reason, done := m.scrape(r, openMetrics)
	defer done()
	if r.Context().Err() != nil {
		return // the scraper has gone
	}
	if reason != "" {
		m.failed.WithLabelValues(reason).Inc()
	}
	ours, err := m.gatherer.Gather()
	if err != nil && len(ours) == 0 {
		http.Error(w, "the metrics could not be gathered", http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Vary", "Accept")
	encoder := expfmt.NewEncoder(w, format)
	for _, f := range ours {
		if encoder.Encode(f) != nil {
			return // the scraper has gone
		}
	}
	if app != nil && app.write(w, openMetrics, m.taken(ours)) != nil {
		return
	}
	if end, ok := encoder.(expfmt.Closer); ok {
		_ = end.Close() // who hangs up asks again
	}
}

// scrape reads the user container's metrics, or says why there are none. The caller
// calls done when it needs them no more.
func (m *merge) scrape(r *http.Request, openMetrics bool) (app *exposition, reason string, done func()) {
	ctx, cancel := context.WithTimeout(r.Context(), m.patience(r))
	defer cancel()
	select {
	case m.slots <- struct{}{}:
		done = func() { <-m.slots }
	case <-ctx.Done():
		return nil, scrapeBusy, func() {}
	}
	app, reason = m.ask(ctx, openMetrics)
	if reason == scrapeUnreachable && ctx.Err() != nil {
		reason = scrapeTimeout
	}
	return app, reason, done
}

// patience is how long the user container may take.
func (m *merge) patience(r *http.Request) time.Duration {
	const header = "X-Prometheus-Scrape-Timeout-Seconds"
	seconds, err := strconv.ParseFloat(r.Header.Get(header), 64)
	if err != nil || !(seconds > 0 && seconds < m.timeout.Seconds()/mergeShare) {
		return m.timeout
	}
	return time.Duration(mergeShare * seconds * float64(time.Second))
}

// ask makes the request.
func (m *merge) ask(ctx context.Context, openMetrics bool) (app *exposition, reason string) {
	accept := "text/plain;version=0.0.4,*/*;q=0.1"
	if openMetrics {
		accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	}
	q := &http.Request{Method: http.MethodGet, URL: m.url, Header: http.Header{
		"Accept": {accept}, "Accept-Encoding": {"identity"}, "User-Agent": {"queue-proxy"},
	}}
	a, err := m.transport.RoundTrip(q.WithContext(ctx))
	if err != nil {
		return nil, scrapeUnreachable
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return nil, scrapeStatus
	}

	var from io.Reader = a.Body
	switch strings.ToLower(a.Header.Get("Content-Encoding")) {
	case "", "identity":
	case "gzip": // unasked for, but understood
		if from, err = gzip.NewReader(a.Body); err != nil {
			return nil, broken(err)
		}
	default:
		return nil, scrapeGarbage
	}
	var body strings.Builder
	body.Grow(int(min(max(a.ContentLength, 0), m.size)))
	n, err := io.Copy(&body, io.LimitReader(from, m.size+1))
	switch {
	case err != nil:
		return nil, broken(err)
	case n > m.size:
		return nil, scrapeTooLarge
	}
	media, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if app, err = readExposition(body.String(), media == expfmt.OpenMetricsType); err != nil {
		return nil, scrapeGarbage
	}
	return app, ""
}

// broken is the reason for a body that cannot be read.
func broken(err error) string {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	if corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return scrapeGarbage
	}
	return scrapeUnreachable
}

// taken is every name that ours may have, in either format: also of those that have
// no series yet, so that the user container's do not change when they get one.
func (m *merge) taken(gathered []*dto.MetricFamily) map[string]bool {
	names := map[string]bool{}
	for name, histogram := range m.registry.names {
		take(names, name, histogram)
	}
	for _, f := range gathered {
		take(names, f.GetName(), f.GetType() == dto.MetricType_HISTOGRAM || f.GetType() == dto.MetricType_SUMMARY)
	}
	return names
}

func take(names map[string]bool, name string, distribution bool) {
	names[name] = true
	names[strings.TrimSuffix(name, "_total")] = true
	if distribution {
		for _, suffix := range suffixes["histogram"] {
			names[name+suffix] = true
		}
	}
}
