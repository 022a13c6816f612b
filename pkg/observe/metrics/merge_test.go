package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const openMetricsAccept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

// merged returns a Metrics that merges the metrics of the given app.
func merged(t *testing.T, app http.HandlerFunc, change ...func(*Merge)) *Metrics {
	t.Helper()
	server := httptest.NewServer(app)
	t.Cleanup(server.Close)
	return mergedAt(t, server.Listener.Addr(), change...)
}

func mergedAt(t *testing.T, app net.Addr, change ...func(*Merge)) *Metrics {
	t.Helper()
	o := options("default")
	o.Merge.Port = app.(*net.TCPAddr).Port
	o.Merge.Dial = netconn.DialLoopback
	for _, f := range change {
		f(&o.Merge)
	}
	return newMetrics(t, o)
}

// respond returns an app that responds with the content type and the body.
func respond(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

const (
	textType        = "text/plain; version=0.0.4; charset=utf-8"
	openMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8"
)

// split returns the part of a merged scrape that contains the metrics of the app, and the number of failed
// scrapes by reason. The test fails if our metrics are missing.
func split(t *testing.T, got string) (app string, errors map[string]string) {
	t.Helper()
	ours := "queue_proxy_build_info{"
	if !strings.Contains(got, ours) || !strings.Contains(got, "queue_proxy_running_requests 2") {
		t.Fatalf("got no metrics of the sidecar, want them in\n%s", got)
	}
	errors = map[string]string{}
	for series, n := range samples(got, "queue_proxy_app_scrape_errors_total{") {
		if n != "0" && n != "0.0" {
			reason, _ := strings.CutPrefix(series, `queue_proxy_app_scrape_errors_total{reason="`)
			errors[strings.TrimSuffix(reason, `"}`)] = n
		}
	}
	last := "queue_proxy_waiting_requests "
	_, app, _ = strings.Cut(got[strings.LastIndex(got, "\n"+last)+1:], "\n")
	return app, errors
}

func TestMergedScrapeContainsBothMetrics(t *testing.T) {
	asked := make(chan *http.Request, 1)
	m := merged(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		respond(textType, "# TYPE jobs_total counter\njobs_total 5\nprocess_cpu_seconds_total 7\n")(w, r)
	}, func(o *Merge) { o.Path = "/actuator/prometheus?all=1" })
	got := scrape(t, m.Handler(), text)
	app, errors := split(t, got)
	harness.Equal(t, app, "# TYPE jobs_total counter\njobs_total 5\nprocess_cpu_seconds_total 7\n", "metrics of the app")
	harness.Equal(t, errors, nil, "errors")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	_, err := parser.TextToMetricFamilies(strings.NewReader(got))
	harness.NoError(t, err, "parser of Prometheus")
	r := <-asked
	harness.Equal(t, r.RequestURI, "/actuator/prometheus?all=1", "request URI at the app")
	if got, want := r.Header.Get("Accept"), "text/plain"; !strings.HasPrefix(got, want) {
		t.Errorf("got Accept %q at the app, want it to begin with %q", got, want)
	}
}

func TestMergedScrapeUsesFormatOfScraper(t *testing.T) {
	const appText, appOpen = "# TYPE jobs_total counter\njobs_total 5\n", "# TYPE jobs counter\njobs_total 5\n"
	for _, c := range []struct{ name, accept, contentType, body, want string }{
		{"text from text", text, textType, appText, appText},
		{"text from OpenMetrics", text, openMetricsType, appOpen + "# EOF\n", appText},
		{"OpenMetrics from OpenMetrics", openMetricsAccept, openMetricsType, appOpen + "# EOF\n", appOpen + "# EOF\n"},
		{"OpenMetrics from text", openMetricsAccept, textType, appText, appOpen + "# EOF\n"},
		{"text without content type", text, "", appText, appText},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := merged(t, respond(c.contentType, c.body)).Handler()
			app, errors := split(t, scrape(t, h, c.accept))
			harness.Equal(t, app, c.want, "metrics of the app")
			harness.Equal(t, errors, nil, "errors")
		})
	}
}

func TestMergedScrapeRenamesMetricsOfApp(t *testing.T) {
	m := merged(t, respond(textType, lines("# TYPE queue_proxy_requests_total gauge", `queue_proxy_requests_total 1`, "# TYPE queue_proxy_queue_wait_seconds_count counter", "queue_proxy_queue_wait_seconds_count 2")))
	for accept, want := range map[string]string{
		text:              lines("# TYPE app_queue_proxy_requests_total gauge", "app_queue_proxy_requests_total 1", "# TYPE app_queue_proxy_queue_wait_seconds_count counter", "app_queue_proxy_queue_wait_seconds_count 2"),
		openMetricsAccept: lines("# TYPE app_queue_proxy_requests_total gauge", "app_queue_proxy_requests_total 1", "# TYPE app_queue_proxy_queue_wait_seconds_count unknown", "app_queue_proxy_queue_wait_seconds_count 2", "# EOF"),
	} {
		app, _ := split(t, scrape(t, m.Handler(), accept))
		harness.Equal(t, app, want, accept)
	}
}

// compressed returns an app that responds with the body in gzip format.
func compressed(body string) http.HandlerFunc {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, body)
	w.Close()
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(b.Bytes())
	}
}

func shortTimeout(o *Merge) { o.timeout = 50 * time.Millisecond }
func smallLimit(o *Merge)   { o.maxSize = 1000 }

// hang returns a function that blocks until the test ends or the client disconnects.
func hang(t *testing.T) func(r *http.Request) {
	t.Helper()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	return func(r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	}
}

// A brokenApp is an app that does not respond correctly to a scrape.
type brokenApp struct {
	name   string
	app    http.HandlerFunc
	change func(*Merge) // nil means a long timeout
	want   string       // expected reason
}

func brokenApps(hang func(r *http.Request)) []brokenApp {
	return []brokenApp{
		{"no response", func(_ http.ResponseWriter, r *http.Request) { hang(r) }, shortTimeout, scrapeTimeout},
		{"incomplete response", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "x 1\n")
			w.(http.Flusher).Flush()
			hang(r)
		}, shortTimeout, scrapeTimeout},
		{"status 403", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, nil, scrapeStatus},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, nil, scrapeStatus},
		{"HTML", respond("text/html", "<html></html>"), nil, scrapeGarbage},
		{"protobuf", respond("application/vnd.google.protobuf", "\x0a\x01x"), nil, scrapeGarbage},
		{"truncated OpenMetrics", respond(openMetricsType, "x 1\n"), nil, scrapeGarbage},
		{"invalid line", respond(textType, "x 1\ny\n"), nil, scrapeGarbage},
		{"one byte too long", respond(textType, strings.Repeat("xxxxx 1234\n", 91)), smallLimit, scrapeTooLarge},
		{"endless response", func(w http.ResponseWriter, r *http.Request) {
			page := strings.Repeat("x 1\n", 1000)
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, page)
			}
		}, nil, scrapeTooLarge},
		{"decompression bomb", compressed(strings.Repeat("x 1\n", mergeSize/4+1)), nil, scrapeTooLarge},
		{"wrong content encoding", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "x 1\nx 1\nx 1\n")
		}, nil, scrapeGarbage},
		{"unsupported content encoding", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "x 1\n")
		}, nil, scrapeGarbage},
		{"aborted connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil, scrapeUnreachable},
	}
}

func TestMergedScrapeSurvivesBrokenApp(t *testing.T) {
	for _, c := range brokenApps(hang(t)) {
		t.Run(c.name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(o *Merge) { o.timeout = time.Minute } // some megabytes take seconds on a slow machine
			}
			h := merged(t, c.app, c.change).Handler()
			for i, accept := range []string{text, openMetricsAccept} {
				app, errors := split(t, scrape(t, h, accept))
				if app != "" && app != "# EOF\n" {
					t.Errorf("got metrics of the app %q, want none", app)
				}
				if n, _ := strconv.ParseFloat(errors[c.want], 64); len(errors) != 1 || int(n) != i+1 {
					t.Errorf("got errors %v, want %d with the reason %s", errors, i+1, c.want)
				}
			}
		})
	}

	t.Run("refused connection", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		harness.NoError(t, err)
		ln.Close()
		_, errors := split(t, scrape(t, mergedAt(t, ln.Addr()).Handler(), text))
		harness.Equal(t, errors, map[string]string{scrapeUnreachable: "1"}, "errors")
	})

	long := strings.Repeat("xxxxx 123\n", 100) // exactly at the limit
	for want, app := range map[string]http.HandlerFunc{"x 1\n": compressed("x 1\n"), long: respond(textType, long)} {
		app, errors := split(t, scrape(t, merged(t, app, smallLimit).Handler(), text))
		harness.Equal(t, app, want, "metrics of a valid app")
		harness.Equal(t, errors, nil, "errors")
	}
}

func TestMergeConnectsOverIPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	harness.NoError(t, err)
	server := &httptest.Server{Listener: ln, Config: &http.Server{Handler: respond(textType, "x 1\n")}}
	server.Start()
	defer server.Close()
	app, errors := split(t, scrape(t, mergedAt(t, ln.Addr()).Handler(), text))
	harness.Equal(t, app, "x 1\n", "metrics of the app")
	harness.Equal(t, errors, nil, "errors")
}

func TestMergeRespectsScrapeTimeoutHeader(t *testing.T) {
	m := &merge{timeout: 5 * time.Second}
	for _, c := range []struct {
		header string
		want   time.Duration
	}{
		{"", 5 * time.Second}, {"x", 5 * time.Second}, {"NaN", 5 * time.Second}, {"-1", 5 * time.Second}, {"0", 5 * time.Second},
		{"1", 800 * time.Millisecond}, {"5", 4 * time.Second}, {"6.25", 5 * time.Second}, {"10", 5 * time.Second}, {"1e300", 5 * time.Second},
	} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", c.header)
		harness.Equal(t, m.appTimeout(r), c.want, c.header)
	}
}

func TestMergeLimitsConcurrentScrapes(t *testing.T) {
	inside, leave := make(chan struct{}, maxMerges+1), make(chan struct{})
	m := merged(t, func(w http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		<-leave
		respond(textType, "x 1\n")(w, r)
	}, func(o *Merge) { o.timeout = harness.Patience })
	h := m.Handler()
	answers := make(chan string, maxMerges)
	for range maxMerges {
		go func() { answers <- scrape(t, h, text) }()
	}
	for range maxMerges {
		<-inside
	}

	// Another scrape waits until its timeout and fails with the reason busy.
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "0.05")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if _, errors := split(t, w.Body.String()); errors[scrapeBusy] != "1" || len(inside) > 0 {
		t.Errorf("got errors %v and %d requests at the app, want 1 error with the reason %s and no request", errors, len(inside), scrapeBusy)
	}
	close(leave)
	for range maxMerges {
		app, _ := split(t, <-answers)
		harness.Equal(t, app, "x 1\n")
	}
}

func TestMergeIgnoresDisconnectedScraper(t *testing.T) {
	inside := make(chan struct{})
	gone := make(chan struct{})
	m := merged(t, func(_ http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-inside
		cancel()
	}()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx))
	<-gone // the request to the app was canceled
	f := gathered(t, m, "queue_proxy_app_scrape_errors_total")
	for _, s := range f.GetMetric() {
		harness.Equal(t, s.GetCounter().GetValue(), 0, s)
	}
}

func TestMergeLeavesNoGoroutines(t *testing.T) {
	server := httptest.NewServer(respond(textType, "x 1\n"))
	m := mergedAt(t, server.Listener.Addr())
	scrape(t, m.Handler(), text)
	server.Close()
	goleak.VerifyNone(t)
}

func TestNewRejectsInvalidMergePath(t *testing.T) {
	for _, path := range []string{"metrics", "http://elsewhere/metrics", "/a#b", "/%zz", "/a b\x7f"} {
		o := options("default")
		o.Merge = Merge{Port: 8080, Path: path}
		_, err := New(o)
		harness.Contains(t, fmt.Sprint(err), strconv.Quote(path))
	}
}
