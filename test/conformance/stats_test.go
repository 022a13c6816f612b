package conformance

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A stat is a decoded statistics message of Knative.
type stat struct {
	pod                                                     string
	concurrency, proxiedConcurrency, count, proxied, uptime float64
	numbers                                                 []int // field numbers in order
}

// decodeStat decodes the protobuf wire format without generated code.
func decodeStat(b []byte) (stat, error) {
	var s stat
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return s, errors.New("invalid tag")
		}
		b = b[n:]
		s.numbers = append(s.numbers, int(tag>>3))
		switch tag & 7 {
		case 1:
			if len(b) < 8 {
				return s, errors.New("truncated double")
			}
			v := math.Float64frombits(binary.LittleEndian.Uint64(b))
			b = b[8:]
			switch tag >> 3 {
			case 2:
				s.concurrency = v
			case 3:
				s.proxiedConcurrency = v
			case 4:
				s.count = v
			case 5:
				s.proxied = v
			case 6:
				s.uptime = v
			}
		case 2:
			size, n := binary.Uvarint(b)
			if n <= 0 || uint64(len(b)-n) < size {
				return s, errors.New("truncated string")
			}
			s.pod = string(b[n : n+int(size)])
			b = b[n+int(size):]
		default:
			return s, fmt.Errorf("field %d has wire type %d", tag>>3, tag&7)
		}
	}
	return s, nil
}

// scrape requests the statistics with the given fields ("Name: value").
func (p *proxy) scrape(path string, fields ...string) *message {
	p.t.Helper()
	c := dial(p.t, local(p.port.autoscaler))
	defer c.Close()
	return c.ask(path, fields...)
}

func (p *proxy) stat() stat {
	p.t.Helper()
	s, err := p.tryStat()
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// tryStat is like stat but can be called from any goroutine.
func (p *proxy) tryStat() (stat, error) {
	r, _ := http.NewRequest("GET", "http://"+local(p.port.autoscaler)+"/metrics", nil)
	r.Header.Set("Accept", "application/protobuf")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return stat{}, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return stat{}, err
	}
	return decodeStat(b)
}

func TestStatisticsMatchKnativeEncoding(t *testing.T) {
	p := newProxy(t)
	p.start()
	var body string
	p.poll("a full second has passed", func() error {
		m := p.scrape("/metrics", "Accept: application/protobuf")
		if got := m.get("Content-Type"); m.status() != 200 || got != "application/protobuf" {
			t.Fatalf("got %q with Content-Type %q, want 200 with application/protobuf", m.Start, got)
		}
		const name = "\x0a\x04pod1"
		if !strings.HasPrefix(m.Body, name) {
			t.Fatalf("got %q, want the pod name first", m.Body)
		}
		if body = m.Body[len(name):]; body == "" {
			return errNotYet // before the end of the first second, the message contains only the name
		}
		return nil
	})
	if len(body) != 9 || body[0] != 0x31 {
		t.Errorf("got % x after the name, want 31 and eight bytes of the uptime", body)
	} else if uptime := math.Float64frombits(binary.LittleEndian.Uint64([]byte(body[1:]))); uptime < 1 || uptime > 60 {
		t.Errorf("got an uptime of %v s, want 1 to 60 s", uptime)
	}
}

// checkStatistics checks that body has the format of the media type.
func checkStatistics(t *testing.T, media, body string) {
	t.Helper()
	switch media {
	case "application/protobuf":
		if s, err := decodeStat([]byte(body)); err != nil || s.pod != "pod1" {
			t.Errorf("got %+v, %v, want the pod name", s, err)
		}
		return
	case "application/json":
		if !json.Valid([]byte(body)) {
			t.Errorf("%q is not JSON", body)
		}
		return
	case "application/openmetrics-text":
		if !strings.HasSuffix(body, "# EOF\n") {
			t.Errorf("got OpenMetrics text %q, want # EOF at the end", body)
		}
	}
	checkExposition(t, body)
}

func TestStatisticsFormatNegotiation(t *testing.T) {
	inParallel(t)
	const (
		protobuf   = "application/protobuf"
		text       = "text/plain"
		open       = "application/openmetrics-text"
		either     = "text/plain or application/openmetrics-text"
		prometheus = "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7," +
			"application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5," +
			"text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
	)
	for _, format := range []string{"", "protobuf", "prometheus"} {
		t.Run("STATS_FORMAT="+format, func(t *testing.T) {
			p := newProxy(t)
			var env []string
			unsaid := protobuf
			if format != "" {
				env = append(env, "STATS_FORMAT="+format)
			}
			if format == "prometheus" {
				unsaid = text
			}
			p.start(env...)
			for _, row := range []struct{ accept, query, want string }{
				{"", "", unsaid},
				{"Accept: */*", "", unsaid},
				{"Accept: application/protobuf", "", protobuf},
				{"Accept: text/plain", "", text},
				{"Accept: text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "", text},
				{"Accept: application/openmetrics-text; version=1.0.0", "", open},
				{prometheus, "", either},
				{"", "?format=prometheus", text},
				{"Accept: application/protobuf", "?format=prometheus", text},
				{"", "?format=json", "application/json"},
				{"Accept: text/plain", "?format=json", "application/json"},
			} {
				t.Run(row.accept+row.query, func(t *testing.T) {
					var fields []string
					if row.accept != "" {
						fields = append(fields, row.accept)
					}
					m := p.scrape("/metrics"+row.query, fields...)
					got, _, _ := strings.Cut(m.get("Content-Type"), ";")
					if m.status() != 200 || !strings.Contains(row.want, got) || got == "" {
						t.Fatalf("got %q with Content-Type %q, want 200 with %s", m.Start, got, row.want)
					}
					checkStatistics(t, got, m.Body)
				})
			}
		})
	}
}

var sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)

// checkExposition fails the test unless the text contains the metrics that the autoscaler of
// Knative 0.9 to 0.16 reads and metrics for an HPA.
func checkExposition(t *testing.T, text string) {
	t.Helper()
	seen := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("line %q is not a sample", line)
			continue
		}
		if _, err := strconv.ParseFloat(m[3], 64); err != nil {
			t.Errorf("line %q has no number", line)
		}
		seen[m[1]] = m[2]
	}
	for _, name := range []string{
		"queue_requests_per_second", "queue_proxied_operations_per_second",
		"queue_average_concurrent_requests", "queue_average_proxied_concurrent_requests",
	} {
		for _, window := range []string{"", "_6s", "_60s"} {
			labels, found := seen[name+window]
			if !found {
				t.Errorf("no metric %s%s", name, window)
				continue
			}
			for _, label := range []string{
				`destination_namespace="ns"`, `destination_configuration="conf"`,
				`destination_revision="rev"`, `destination_pod="pod1"`,
			} {
				if !strings.Contains(labels, label) {
					t.Errorf("%s%s: got labels %s, want %s", name, window, labels, label)
				}
			}
		}
	}
}

func TestAutoscalerPortServesOnlyMetrics(t *testing.T) {
	p := newProxy(t)
	p.start()
	for _, path := range []string{"/", "/metrics/", "/debug/pprof/", "/metricsx"} {
		if m := p.scrape(path, "User-Agent: kube-probe/1.31", "K-Network-Probe: queue"); m.status() != 404 {
			t.Errorf("%s: got %q, want 404", path, m.Start)
		}
	}
	c := dial(t, local(p.port.autoscaler))
	c.send("POST /metrics HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n")
	if m := c.receive("POST"); m.status() != 200 {
		t.Errorf("POST /metrics: got %q, want 200 for all methods", m.Start)
	}
}

// Two requests run for several seconds, and one of them comes from the activator. The request
// with K-Kubelet-Probe is not counted. The averages of a full second are exactly 2 and 1.
func TestConcurrencyIsAveragedOverLastSecond(t *testing.T) {
	p := newProxy(t)
	p.start()
	h := p.holder()
	direct := p.sendGet("/direct")
	proxied := p.sendGet("/proxied", "K-Proxy-Request: activator")
	notQuite := p.sendGet("/not-quite", "K-Kubelet-Probe: x")
	for _, path := range []string{"/direct", "/proxied", "/not-quite"} {
		h.wait(t, path)
	}
	p.poll("the average is two, one proxied", func() error {
		if s := p.stat(); math.Abs(s.concurrency-2) > 1e-6 || math.Abs(s.proxiedConcurrency-1) > 1e-6 {
			return fmt.Errorf("got %+v", s)
		}
		return nil
	})
	for _, path := range []string{"/direct", "/proxied", "/not-quite"} {
		h.free(path)
	}
	for _, c := range []*client{direct, proxied, notQuite} {
		c.receive("GET")
	}
	p.poll("the average is zero", func() error {
		if s := p.stat(); s.concurrency != 0 || s.proxiedConcurrency != 0 || len(s.numbers) != 2 {
			return fmt.Errorf("got %+v", s)
		}
		return nil
	})
}

// Queued requests count as concurrency.
func TestQueuedRequestsCountAsConcurrency(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=1")
	h := p.holder()
	p.sendGet("/running")
	h.wait(t, "/running")
	for i := range 4 {
		p.sendGet("/" + strconv.Itoa(i))
	}
	p.poll("the average is five", func() error {
		if s := p.stat(); math.Abs(s.concurrency-5) > 1e-6 {
			return fmt.Errorf("got %+v", s)
		}
		return nil
	})
}

// Each request is counted once. A proxied request is also counted as proxied. Probes and excluded
// requests are not counted.
func TestStatisticsCountTraffic(t *testing.T) {
	p := newProxy(t)
	p.start("EXCLUDE_PATHS=/healthz,/internal/*", "EXCLUDE_USER_AGENTS=UptimeRobot/")
	p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }))
	stop, sum := make(chan struct{}), make(chan stat, 1)
	go func() {
		var all stat
		last := -1.0
		for {
			s, err := p.tryStat()
			if err != nil {
				close(sum) // a receive from the closed channel makes the test fail
				return
			}
			if s.uptime != last { // count each window once
				all.count += s.count
				all.proxied += s.proxied
				last = s.uptime
			}
			select {
			case <-stop:
				sum <- all
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	c := dial(t, p.addr())
	for _, fields := range [][]string{
		{}, {}, {}, // three requests
		{"K-Proxy-Request: activator"}, {"K-Proxy-Request: activator"}, // two proxied requests
		{"K-Proxy-Request: Activator"}, // traffic that is not proxied
		{"K-Network-Probe: queue"}, {"K-Network-Probe: probe", "K-Network-Hash: h"}, {"K-Network-Probe: x"},
		{"User-Agent: kube-probe/1.31"}, {"K-Kubelet-Probe: x"}, {"User-Agent: Knative-Activator-Probe"},
		{"User-Agent: UptimeRobot/2.0"},
	} {
		c.ask("/", fields...)
	}
	for _, path := range []string{"/healthz", "/internal/", "/internal/x"} {
		if m := c.ask(path); m.status() != 200 || m.Body != "ok" {
			t.Errorf("%s: got %q with %q, want the response from the app", path, m.Start, m.Body)
		}
	}
	c.ask("/healthz/more") // not excluded, because the path must match exactly
	c.ask("/internal")     // not excluded
	answered := p.stat().uptime
	p.poll("two more windows have passed", func() error {
		if p.stat().uptime < answered+2 {
			return errNotYet
		}
		return nil
	})
	close(stop)
	if got := receive(t, "the sum", sum); got.count != 8 || got.proxied != 2 {
		t.Errorf("got %v requests and %v proxied requests, want 8 and 2", got.count, got.proxied)
	}
}
