package metrics

import (
	"bytes"
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
)

// Merge configures where the user container serves metrics. These metrics are appended to our metrics, so
// that a single scrape returns both.
type Merge struct {
	// Dial opens connections to the user container. If it is nil, the default dialer of net/http is used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Port    int           // port on the loopback address; 0 disables merging
	Path    string        // path with an optional query; "" means /metrics
	timeout time.Duration // maximum time to read the metrics; 0 means 5 s; a scraper may request a shorter time
	maxSize int64         // maximum size in bytes after decompression; 0 means 8 MiB
}

const (
	mergeTimeout = 5 * time.Second // default of Merge.timeout
	mergeSize    = 8 << 20         // default of Merge.maxSize in bytes

	// mergeShare is the fraction of the scraper's timeout that is available to the user container.
	mergeShare = 0.8

	// maxMerges is the maximum number of concurrent merges. Each merge holds the metrics of the user container
	// in memory until they are written.
	maxMerges = 2

	maxAppHead = 64 << 10 // maximum length of the response header section in bytes
)

// Reasons why a scrape does not contain the metrics of the user container.
const (
	scrapeUnreachable = "unreachable" // the connection was refused or closed
	scrapeTimeout     = "timeout"     // the response was not complete in time
	scrapeStatus      = "status"      // the status code is not 200
	scrapeTooLarge    = "too-large"   // the response is larger than maxSize
	scrapeGarbage     = "garbage"     // the response is not in a supported format
	scrapeBusy        = "busy"        // too many concurrent scrapes
)

// merge is an http.Handler that serves our metrics and the metrics of the user container.
type merge struct {
	url         *url.URL
	timeout     time.Duration
	size        int64
	transport   *http.Transport // a transport does not follow redirects to other URLs
	slots       chan struct{}
	failed      *prometheus.CounterVec // failed scrapes by reason
	openMetrics bool                   // OpenMetrics is allowed
	registry    *registry
	gatherer    prometheus.Gatherer
}

// newMerge returns a handler for the metrics of gatherer and the metrics of the user container.
func newMerge(r *registry, o *Merge, gatherer prometheus.Gatherer, openMetrics bool) (*merge, error) {
	appPath := cmp.Or(o.Path, path)
	app, err := url.Parse("http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)) + appPath)
	if err != nil || !strings.HasPrefix(appPath, "/") || app.Fragment != "" {
		return nil, fmt.Errorf("%q: the metrics path must start with / and must not contain a fragment", o.Path)
	}
	m := &merge{
		registry:    r,
		gatherer:    gatherer,
		openMetrics: openMetrics,
		url:         app,
		timeout:     cmp.Or(o.timeout, mergeTimeout),
		size:        cmp.Or(o.maxSize, mergeSize),
		slots:       make(chan struct{}, maxMerges),
		failed:      r.counters("queue_proxy_app_scrape_errors_total", "Number of failed scrapes of the user container, by reason.", "reason"),
		transport: &http.Transport{
			DialContext:            o.Dial,
			DisableKeepAlives:      true, // the app may close an idle connection before the next scrape
			DisableCompression:     true, // compression has no benefit on the loopback interface
			MaxResponseHeaderBytes: maxAppHead,
		},
	}
	for _, reason := range []string{scrapeUnreachable, scrapeTimeout, scrapeStatus, scrapeTooLarge, scrapeGarbage, scrapeBusy} {
		m.failed.WithLabelValues(reason) // the counter is exported from the start
	}
	return m, nil
}

// ServeHTTP implements http.Handler. It reads the metrics of the user container before it gathers our metrics,
// so that a failure is counted in the same scrape.
func (m *merge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	formats := []expfmt.Format{expfmt.FmtText}
	if m.openMetrics {
		formats = []expfmt.Format{expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1}
	}
	format := expfmt.NegotiateAccept(r.Header, append(formats, expfmt.FmtProtoDelim)...)
	textFormat := expfmt.NegotiateAccept(r.Header, formats...)
	openMetrics := textFormat.FormatType() == expfmt.TypeOpenMetrics

	app, reason, done := m.scrape(r, format.FormatType() == expfmt.TypeProtoDelim, openMetrics)
	defer done()
	if _, ok := app.(*exposition); ok {
		format = textFormat // a conversion to protobuf would need several times the memory of the text
	}
	if r.Context().Err() != nil {
		return // the scraper disconnected
	}
	if reason != "" {
		m.failed.WithLabelValues(reason).Inc()
	}
	ours, err := m.gatherer.Gather()
	if err != nil && len(ours) == 0 {
		http.Error(w, "failed to gather metrics", http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Vary", "Accept")
	encoder := expfmt.NewEncoder(w, format)
	for _, f := range ours {
		if encoder.Encode(f) != nil {
			return // the scraper disconnected
		}
	}
	if app != nil && app.write(w, openMetrics, m.taken(ours)) != nil {
		return
	}
	if end, ok := encoder.(expfmt.Closer); ok {
		_ = end.Close() // an error means that the scraper disconnected
	}
}

// scrape returns the metrics of the user container, or the reason why they are missing. The caller must call
// done after it has written the metrics.
func (m *merge) scrape(r *http.Request, protobuf, openMetrics bool) (app appMetrics, reason string, done func()) {
	ctx, cancel := context.WithTimeout(r.Context(), m.appTimeout(r))
	defer cancel()
	select {
	case m.slots <- struct{}{}:
		done = func() { <-m.slots }
	case <-ctx.Done():
		return nil, scrapeBusy, func() {}
	}
	app, reason = m.fetch(ctx, protobuf, openMetrics)
	if reason == scrapeUnreachable && ctx.Err() != nil {
		reason = scrapeTimeout
	}
	return app, reason, done
}

// appTimeout returns the timeout for the request to the user container.
func (m *merge) appTimeout(r *http.Request) time.Duration {
	const header = "X-Prometheus-Scrape-Timeout-Seconds"
	seconds, err := strconv.ParseFloat(r.Header.Get(header), 64)
	if err != nil || !(seconds > 0 && seconds < m.timeout.Seconds()/mergeShare) {
		return m.timeout
	}
	return time.Duration(mergeShare * seconds * float64(time.Second))
}

// fetch returns the metrics of the user container, or the reason why they are missing.
func (m *merge) fetch(ctx context.Context, protobuf, openMetrics bool) (app appMetrics, reason string) {
	accept := "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	if openMetrics {
		accept = "application/openmetrics-text;version=1.0.0;q=0.8," + accept
	}
	if protobuf {
		accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited," + accept
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
	case "gzip": // not requested, but supported
		if from, err = gzip.NewReader(a.Body); err != nil {
			return nil, readError(err)
		}
	default:
		return nil, scrapeGarbage
	}
	media, params, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	var text strings.Builder
	var messages bytes.Buffer
	body, grow := io.Writer(&text), text.Grow
	if protobuf = protobuf && isProtobuf(media, params); protobuf {
		body, grow = &messages, messages.Grow
	}
	grow(int(min(max(a.ContentLength, 0), m.size)))
	n, err := io.Copy(body, io.LimitReader(from, m.size+1))
	switch {
	case err != nil:
		return nil, readError(err)
	case n > m.size:
		return nil, scrapeTooLarge
	}
	if protobuf {
		app, err = readProtobuf(messages.Bytes())
	} else {
		app, err = readExposition(text.String(), media == expfmt.OpenMetricsType)
	}
	if err != nil {
		return nil, scrapeGarbage
	}
	return app, ""
}

// appMetrics are the metrics of the user container.
type appMetrics interface {
	// write writes the metrics. It renames metrics whose names are in taken. It must be called only once.
	write(out io.Writer, openMetrics bool, taken map[string]bool) error
}

// readError returns the reason for an error that occurred while the body was read.
func readError(err error) string {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	if corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return scrapeGarbage
	}
	return scrapeUnreachable
}

// taken returns the names of all our metrics in both formats. It includes metrics without series, because
// otherwise a metric of the user container would be renamed when a series is added later.
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
