package metrics

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// protobufAccept is the Accept field of a Prometheus that scrapes native histograms.
const protobufAccept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6," +
	"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"

const protobufType = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"

// decoded returns the families in a response in the protobuf format.
func decoded(t *testing.T, body string) map[string]*dto.MetricFamily {
	t.Helper()
	all := map[string]*dto.MetricFamily{}
	decoder := expfmt.NewDecoder(strings.NewReader(body), expfmt.FmtProtoDelim)
	for {
		f := &dto.MetricFamily{}
		err := decoder.Decode(f)
		if err == io.EOF {
			return all
		}
		harness.NoError(t, err, "response in the protobuf format")
		if all[f.GetName()] != nil {
			t.Errorf("%s: got two families, want one", f.GetName())
		}
		all[f.GetName()] = f
	}
}

func TestProtobufScrapeContainsNativeHistograms(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		o := options("default")
		o.NativeHistograms = enabled
		m := newMetrics(t, o)
		done := observed(http.MethodGet, 1, 1, 200, observation.OK)
		m.Observe(&done)
		got := decoded(t, scrape(t, m.Handler(), protobufAccept))
		for _, name := range []string{"queue_proxy_request_duration_seconds", "queue_proxy_queue_wait_seconds", "queue_proxy_app_duration_seconds"} {
			var native, classic bool
			for _, series := range got[name].GetMetric() {
				native = native || len(series.GetHistogram().GetPositiveSpan()) > 0
				classic = classic || len(series.GetHistogram().GetBucket()) > 0
			}
			harness.Equal(t, [2]bool{native, classic}, [2]bool{enabled, true}, name, "has native and classic buckets if enabled is", enabled)
		}
	}
}

func TestMergedScrapeKeepsNativeHistograms(t *testing.T) {
	app := prometheus.NewRegistry()
	native := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "job_seconds", Help: "Jobs.", NativeHistogramBucketFactor: 1.1})
	taken := prometheus.NewCounter(prometheus.CounterOpts{Name: "queue_proxy_requests_total", Help: "Other requests."})
	app.MustRegister(native, taken)
	taken.Inc()
	for _, v := range []float64{0.001, 0.5, 70} {
		native.Observe(v)
	}
	m := merged(t, promhttp.HandlerFor(app, promhttp.HandlerOpts{}).ServeHTTP)
	got := decoded(t, scrape(t, m.Handler(), protobufAccept))
	h := got["job_seconds"].GetMetric()[0].GetHistogram()
	if len(h.GetPositiveSpan()) == 0 || len(h.GetPositiveDelta()) == 0 || h.GetSampleCount() != 3 {
		t.Errorf("got the histogram %v, want native buckets for 3 values", h)
	}
	if renamed := got["app_queue_proxy_requests_total"]; renamed.GetMetric()[0].GetCounter().GetValue() != 1 || renamed.GetHelp() != "Other requests." {
		t.Errorf("got %v, want the renamed counter of the app", renamed)
	}
	if got["queue_proxy_running_requests"] == nil {
		t.Error("got no metrics of the sidecar, want some")
	}

	// Other scrapers get text.
	appText, errors := split(t, scrape(t, m.Handler(), text))
	harness.Contains(t, appText, `job_seconds_bucket{le="+Inf"} 3`, "text")
	harness.Equal(t, errors, nil, "errors")
}

func TestMergedScrapeOfTextAppIsText(t *testing.T) {
	asked := make(chan string, 1)
	m := merged(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept")
		respond(textType, "# TYPE jobs_total counter\njobs_total 5\n")(w, r)
	})
	app, errors := split(t, scrape(t, m.Handler(), protobufAccept))
	harness.Equal(t, app, "# TYPE jobs counter\njobs_total 5\n# EOF\n", "metrics of the app")
	harness.Equal(t, errors, nil, "errors")
	if got := <-asked; !strings.HasPrefix(got, "application/vnd.google.protobuf;") {
		t.Errorf("got Accept %q at the app, want protobuf first", got)
	}
}

func TestProtobufScrapeWithoutOpenMetricsRequestsText(t *testing.T) {
	asked := make(chan string, 1)
	m := merged(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept")
		respond(textType, "jobs_total 5\n")(w, r)
	})
	scrape(t, m.Handler(), "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;version=0.0.4;q=0.5")
	got := <-asked
	if !strings.HasPrefix(got, "application/vnd.google.protobuf;") || strings.Contains(got, "openmetrics") || !strings.Contains(got, "text/plain") {
		t.Errorf("got Accept %q at the app, want protobuf and text", got)
	}
}

// encoded returns a family in the protobuf format.
func encoded(t testing.TB, f *dto.MetricFamily) string {
	t.Helper()
	message, err := proto.Marshal(f)
	harness.NoError(t, err)
	return string(protowire.AppendBytes(nil, message))
}

// withField returns an encoded family with an additional empty field.
func withField(t *testing.T, family string, tag []byte) string {
	t.Helper()
	message, n := protowire.ConsumeBytes([]byte(family))
	if n < 0 {
		t.Fatal("invalid family")
	}
	return string(protowire.AppendBytes(nil, protowire.AppendBytes(append(message, tag...), nil)))
}

// family returns a family with one series.
func family(name string, kind dto.MetricType, series *dto.Metric) *dto.MetricFamily {
	return &dto.MetricFamily{Name: proto.String(name), Help: proto.String("help"), Type: kind.Enum(), Metric: []*dto.Metric{series}}
}

func TestInvalidProtobufIsNotMerged(t *testing.T) {
	gauge := func(labels ...string) *dto.Metric {
		s := &dto.Metric{Gauge: &dto.Gauge{Value: proto.Float64(1)}}
		for _, name := range labels {
			s.Label = append(s.Label, &dto.LabelPair{Name: proto.String(name), Value: proto.String("v")})
		}
		return s
	}
	valid := encoded(t, family("jobs", dto.MetricType_GAUGE, gauge("a", "b")))
	badText := family("jobs", dto.MetricType_GAUGE, gauge())
	badText.Help = proto.String("\xff")
	for name, body := range map[string]string{
		"truncated":       valid[:len(valid)-1],
		"no name":         encoded(t, &dto.MetricFamily{Type: dto.MetricType_GAUGE.Enum()}),
		"invalid name":    encoded(t, family("a.b", dto.MetricType_GAUGE, gauge())),
		"repeated label":  encoded(t, family("jobs", dto.MetricType_GAUGE, gauge("a", "a"))),
		"reserved label":  encoded(t, family("jobs", dto.MetricType_GAUGE, gauge("__name__"))),
		"invalid label":   encoded(t, family("jobs", dto.MetricType_GAUGE, gauge("a-b"))),
		"invalid UTF-8":   encoded(t, badText),
		"invalid series":  string(protowire.AppendBytes(nil, append([]byte(valid[1:]), 0x22, 1, 0xff))),
		"invalid message": "\x02\x08",
		"wrong kind":      withField(t, valid, protowire.AppendTag(nil, familyType, protowire.BytesType)),
		"missing buckets": encoded(t, family("jobs", dto.MetricType_HISTOGRAM, &dto.Metric{Histogram: &dto.Histogram{
			PositiveSpan: []*dto.BucketSpan{{Length: proto.Uint32(2)}}, PositiveDelta: []int64{1}}})),
	} {
		m := merged(t, respond(protobufType, valid+body))
		got := decoded(t, scrape(t, m.Handler(), protobufAccept))
		if got["jobs"] != nil || got["queue_proxy_running_requests"] == nil {
			t.Errorf("%s: got the metrics of the app or no metrics of the sidecar, want only the metrics of the sidecar", name)
		}
		for _, s := range got["queue_proxy_app_scrape_errors_total"].GetMetric() {
			want := map[bool]float64{true: 1}[s.GetLabel()[0].GetValue() == scrapeGarbage]
			harness.Equal(t, s.GetCounter().GetValue(), want, name, s.GetLabel()[0].GetValue())
		}
	}
}

// FuzzReadProtobuf verifies that a valid exposition remains valid after families are renamed.
func FuzzReadProtobuf(f *testing.F) {
	f.Add([]byte(encoded(f, family("jobs", dto.MetricType_GAUGE, &dto.Metric{Gauge: &dto.Gauge{Value: proto.Float64(1)}}))))
	f.Add([]byte(encoded(f, family("jobs", dto.MetricType_HISTOGRAM, &dto.Metric{Histogram: &dto.Histogram{SampleCount: proto.Uint64(1)}}))))
	f.Fuzz(func(t *testing.T, body []byte) {
		x, err := readProtobuf(body)
		if err != nil {
			return
		}
		var out bytes.Buffer
		harness.NoError(t, x.write(&out, false, map[string]bool{"jobs": true}))
		decoder := expfmt.NewDecoder(&out, expfmt.FmtProtoDelim)
		for range x.families {
			var f dto.MetricFamily
			harness.NoError(t, decoder.Decode(&f))
			if f.GetName() == "jobs" {
				t.Error("got jobs, want another name")
			}
		}
	})
}
