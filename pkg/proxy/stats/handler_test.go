package stats

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// busy is a report in which all numbers are different.
var busy = Report{
	Last:   Window{Concurrency: 1.5, ProxiedConcurrency: 0.25, Requests: 12, ProxiedRequests: 3},
	Last6:  Window{Concurrency: 1.6, ProxiedConcurrency: 0.26, Requests: 12.6, ProxiedRequests: 3.6},
	Last60: Window{Concurrency: 1.1, ProxiedConcurrency: 0.1, Requests: 1e7, ProxiedRequests: 0.0625},
	Uptime: 100 * time.Second,
}

var labels = Labels{Namespace: "default", Configuration: "hello", Revision: "hello-00001", Pod: "pod1"}

func TestProtobufMatchesKnativeStat(t *testing.T) {
	for _, c := range []struct {
		name   string
		pod    string
		report Report
		want   string // hexadecimal
	}{
		{"idle", "pod1", Report{Uptime: 3 * time.Second}, "0a04706f6431" + "310000000000000840"},
		{"before the first second", "pod1", Report{InFlight: 3}, "0a04706f6431"},
		{"busy", "pod1", busy, "0a04706f6431" + "11000000000000f83f" + "19000000000000d03f" +
			"210000000000002840" + "290000000000000840" + "310000000000005940"},
		{"nothing proxied", "p", Report{Last: Window{Concurrency: 1, Requests: 1}, Uptime: time.Second},
			"0a0170" + "11000000000000f03f" + "21000000000000f03f" + "31000000000000f03f"},
		{"name of more than 127 bytes", strings.Repeat("p", 200), Report{}, "0ac801" + strings.Repeat("70", 200)},
		{"no name", "", Report{}, ""},
	} {
		harness.Equal(t, hex.EncodeToString(appendStat(nil, Labels{Pod: c.pod}, c.report)), c.want, c.name)
	}
}

// values contains the gauges of busy in all text formats.
var values = map[string]float64{
	"queue_average_concurrent_requests":             1.5,
	"queue_average_proxied_concurrent_requests":     0.25,
	"queue_requests_per_second":                     12,
	"queue_proxied_operations_per_second":           3,
	"process_uptime":                                100,
	"queue_average_concurrent_requests_6s":          1.6,
	"queue_average_proxied_concurrent_requests_6s":  0.26,
	"queue_requests_per_second_6s":                  12.6,
	"queue_proxied_operations_per_second_6s":        3.6,
	"queue_average_concurrent_requests_60s":         1.1,
	"queue_average_proxied_concurrent_requests_60s": 0.1,
	"queue_requests_per_second_60s":                 1e7,
	"queue_proxied_operations_per_second_60s":       0.0625,
}

func TestTextContainsEachGaugeOnce(t *testing.T) {
	const set = `{destination_namespace="default",destination_configuration="hello",destination_revision="hello-00001",destination_pod="pod1"}`
	text := string(appendPrometheus(nil, labels, busy))
	lines := strings.SplitAfter(text, "\n")
	got := map[string]float64{}
	for i := 0; i+2 < len(lines); i += 3 {
		name, value, ok := strings.Cut(lines[i+2], set+" ")
		number, err := strconv.ParseFloat(strings.TrimSuffix(value, "\n"), 64)
		if !ok || err != nil {
			t.Fatalf("got sample %q, want <name>%s <number>", lines[i+2], set)
		}
		if !strings.HasPrefix(lines[i], "# HELP "+name+" ") || len(lines[i]) < len("# HELP "+name+" ")+10 {
			t.Errorf("got %q, want a help line for %s", lines[i], name)
		}
		harness.Equal(t, lines[i+1], "# TYPE "+name+" gauge\n")
		if _, twice := got[name]; twice {
			t.Errorf("got %s twice, want it once", name)
		}
		got[name] = number
	}
	harness.Equal(t, got, values)
	harness.Equal(t, lines[len(lines)-1], "", "text after the last newline")
	harness.Equal(t, string(appendOpenMetrics(nil, labels, busy)), text+"# EOF\n", "OpenMetrics")
}

func TestJSONContainsGaugesAndLabels(t *testing.T) {
	body := appendJSON(nil, labels, busy)
	var got map[string]any
	harness.NoError(t, json.Unmarshal(body, &got), body)
	want := map[string]any{"destination_namespace": "default", "destination_configuration": "hello",
		"destination_revision": "hello-00001", "destination_pod": "pod1"}
	for name, value := range values {
		want[name] = value
	}
	harness.Equal(t, got, want)
}

func TestEmptyLabelsAreOmitted(t *testing.T) {
	for _, c := range []struct {
		labels     Labels
		text, json string
	}{
		{Labels{}, "process_uptime 100\n", `{"queue_average_concurrent_requests":1.5,`},
		{Labels{Pod: "p"}, `process_uptime{destination_pod="p"} 100` + "\n", `{"destination_pod":"p","queue_average`},
		{Labels{Namespace: "n", Revision: "r"}, `process_uptime{destination_namespace="n",destination_revision="r"} 100` + "\n",
			`{"destination_namespace":"n","destination_revision":"r","queue_average`},
	} {
		if got := string(appendPrometheus(nil, c.labels, busy)); !strings.Contains(got, "\n"+c.text) {
			t.Errorf("%+v: got %s, want a line %s", c.labels, got, c.text)
		}
		if got := string(appendJSON(nil, c.labels, busy)); !strings.HasPrefix(got, c.json) || !json.Valid([]byte(got)) {
			t.Errorf("%+v: got %s, want valid JSON that begins with %s", c.labels, got, c.json)
		}
	}
}

func FuzzLabelValues(f *testing.F) {
	for _, s := range []string{"pod-1", `a"b`, `a\b`, "a\nb", `\`, `\n`, `"} 1` + "\n", "é\u2028", "\xff\xfe", "\r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		want := strings.ToValidUTF8(value, "\uFFFD")
		if want == "" {
			return
		}
		h := Handler(New(time.Now()), Labels{Pod: value}, inProtobuf)

		text := get(h, "/metrics?format=prometheus", nil).Body.String()
		line := text[strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n')+1:]
		if !utf8.ValidString(text) {
			t.Errorf("got invalid UTF-8 %q", text)
		}
		rest, ok := strings.CutPrefix(line, `queue_proxied_operations_per_second_60s{destination_pod="`)
		got, rest := unquote(rest)
		if !ok || got != want || rest != "} 0\n" {
			t.Errorf("text: got value %q and rest %q in line %q, want value %q and a brace", got, rest, line, want)
		}

		var object map[string]any
		body := get(h, "/metrics?format=json", nil).Body.Bytes()
		if err := json.Unmarshal(body, &object); err != nil || object["destination_pod"] != want {
			t.Errorf("JSON: got %s (%v), want destination_pod %q", body, err, want)
		}

		message := get(h, "/metrics", nil).Body.Bytes()
		length, n := binary.Uvarint(message[1:])
		if got := string(message[1+n:]); got != want || length != uint64(len(want)) {
			t.Errorf("protobuf: got %q of length %d, want %q", got, length, want)
		}
	})
}

// unquote parses a label value until its closing quote, as specified for the text format. It returns the value and the
// text after it.
func unquote(s string) (value, rest string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:]
		case s[i] == '\n':
			return "unescaped newline", s[i:]
		case s[i] == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case '\\', '"':
				b.WriteByte(s[i])
			default:
				return "unknown escape", s[i:]
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "no closing quote", ""
}

func get(h http.Handler, target string, accept []string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	r.Header["Accept"] = accept
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	isProtobuf = "application/protobuf"
	isText     = "text/plain; version=0.0.4; charset=utf-8"
	isOpen     = "application/openmetrics-text; version=1.0.0; charset=utf-8"
	isOlder    = "application/openmetrics-text; version=0.0.1; charset=utf-8"
	isJSON     = "application/json"
)

func TestAcceptSelectsFormat(t *testing.T) {
	const prometheusOwn = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	for _, c := range []struct {
		name   string
		accept []string
		want   string
		asText string // expected format with STATS_FORMAT=prometheus, if it differs
	}{
		{"none", nil, isProtobuf, isText},
		{"empty", []string{""}, isProtobuf, isText},
		{"invalid", []string{"/;;=, ;"}, isProtobuf, isText},
		{"anything", []string{"*/*"}, isProtobuf, isText},
		{"any application", []string{"application/*"}, isProtobuf, ""},
		{"any text", []string{"text/*"}, isText, ""},
		{"autoscaler", []string{"application/protobuf"}, isProtobuf, ""},
		{"mixed case", []string{"Application/Protobuf"}, isProtobuf, ""},
		{"plain text", []string{"text/plain"}, isText, ""},
		{"OpenMetrics", []string{"application/openmetrics-text"}, isOpen, ""},
		{"OpenMetrics with version", []string{"application/openmetrics-text; version=1.0.0; charset=utf-8"}, isOpen, ""},
		{"JSON", []string{"application/json"}, isJSON, ""},
		{"only Prometheus protobuf", []string{prometheusOwn}, isText, ""},
		{"Prometheus with protobuf first", []string{prometheusOwn + ";q=0.7,application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"}, isOpen, ""},
		{"Prometheus 2", []string{"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}, isOpen, ""},
		{"Prometheus 2 before OpenMetrics 1.0", []string{"application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}, isOlder, ""},
		{"Prometheus 3", []string{"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"}, isOpen, ""},
		{"Prometheus 1", []string{"text/plain;version=0.0.4;q=1,*/*;q=0.1"}, isText, ""},
		{"browser", []string{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}, isProtobuf, isText},
		{"unsupported media type", []string{"text/html"}, isText, ""},
		{"several lines", []string{"text/plain;q=0.2", "application/protobuf;q=0.4"}, isProtobuf, ""},
		{"equal weights", []string{"text/plain, application/protobuf"}, isProtobuf, isText},
		{"anything but protobuf", []string{"application/protobuf;q=0, */*"}, isText, ""},
		{"most specific range", []string{"application/protobuf;q=0.1, application/*;q=0.9, text/plain;q=0.5, application/openmetrics-text;q=0.2, application/json;q=0"}, isText, ""},
		{"invalid weight above 1", []string{"application/protobuf;q=7, text/plain;q=0.5"}, isText, ""},
		{"nothing acceptable", []string{"*/*;q=0"}, isText, ""},
	} {
		for otherwise, want := range map[Format]string{
			inProtobuf: c.want, "": c.want, "xml": c.want, inPrometheus: c.asText,
		} {
			if want == "" {
				want = c.want
			}
			h := Handler(New(time.Now()), labels, otherwise)
			w := get(h, "/metrics", c.accept)
			if got := w.Header().Get("Content-Type"); w.Code != 200 || got != want {
				t.Errorf("%s, otherwise %q: got %d %s, want 200 %s", c.name, otherwise, w.Code, got, want)
			}
		}
	}
}

func TestFormatQueryOverridesAccept(t *testing.T) {
	h := Handler(New(time.Now()), labels, inProtobuf)
	for _, c := range []struct {
		query, accept, want string
	}{
		{"?format=prometheus", "application/protobuf", isText},
		{"?format=prometheus", "", isText},
		{"?format=json", "text/plain", isJSON},
		{"?format=protobuf", "text/plain", isProtobuf},
		{"?format=", "text/plain", isText},
		{"?other=1", "text/plain", isText},
	} {
		w := get(h, "/metrics"+c.query, []string{c.accept})
		if got := w.Header().Get("Content-Type"); w.Code != 200 || got != c.want {
			t.Errorf("%s, Accept %s: got %d %s, want 200 %s", c.query, c.accept, w.Code, got, c.want)
		}
	}
	for value, quoted := range map[string]string{"xml": `"xml"`, "Prometheus": `"Prometheus"`, "%0aset": `"\nset"`,
		strings.Repeat("x", 5000): `"` + strings.Repeat("x", 64) + `"`} {
		w := get(h, "/metrics?format="+value, nil)
		want := "format must be prometheus, json or protobuf, not " + quoted + "\n"
		if got := w.Body.String(); w.Code != 400 || got != want {
			t.Errorf("%.20s: got %d %q, want 400 %q", value, w.Code, got, want)
		}
	}
}

func TestHandlerServesOnlyMetricsPath(t *testing.T) {
	server := httptest.NewServer(Handler(New(time.Now()), Labels{Pod: "pod1"}, inProtobuf))
	defer server.Close()
	for _, c := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/metrics", 200, "\n\x04pod1"},
		{"POST", "/metrics", 200, "\n\x04pod1"},
		{"HEAD", "/metrics", 200, ""},
		{"OPTIONS", "/metrics", 200, "\n\x04pod1"},
		{"GET", "/metrics/", 404, "404 page not found\n"},
		{"GET", "//metrics", 404, "404 page not found\n"},
		{"GET", "/Metrics", 404, "404 page not found\n"},
		{"GET", "/", 404, "404 page not found\n"},
		{"GET", "/?format=xml", 404, "404 page not found\n"},
	} {
		r, err := http.NewRequest(c.method, server.URL+c.path, nil)
		harness.NoError(t, err)
		w, err := server.Client().Do(r)
		harness.NoError(t, err)
		var body [64]byte
		n, _ := w.Body.Read(body[:])
		w.Body.Close()
		if got := string(body[:n]); w.StatusCode != c.status || got != c.body {
			t.Errorf("%s %s: got %d %q, want %d %q", c.method, c.path, w.StatusCode, got, c.status, c.body)
		}
		if want := int64(len("\n\x04pod1")); c.status == 200 && w.ContentLength != want {
			t.Errorf("%s %s: Content-Length: got %d, want %d", c.method, c.path, w.ContentLength, want)
		}
	}
}

func TestHandlerServesCurrentReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(time.Now())
		h := Handler(s, Labels{Pod: "pod1"}, inProtobuf)
		s.In(time.Now(), false)
		scrape := func() string { return get(h, "/metrics", nil).Body.String() }

		harness.Equal(t, scrape(), "\n\x04pod1", "before the first full second")
		time.Sleep(time.Second)
		want := "\n\x04pod1\x11\x00\x00\x00\x00\x00\x00\xf0\x3f\x21\x00\x00\x00\x00\x00\x00\xf0\x3f\x31\x00\x00\x00\x00\x00\x00\xf0\x3f"
		harness.Equal(t, scrape(), want, "after 1 s")
		time.Sleep(999 * time.Millisecond)
		harness.Equal(t, scrape(), want, "in the same second")
	})
}
