//go:build soak

package soak

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// sums are the totals of the request log since the start. The keys are labels in the format of
// the metrics.
type sums struct {
	lines, traffic, activator, slots, replays int

	requests, failures, kubelet, duration, app map[string]int
	traces                                     map[string]int // number of requests by trace ID
}

func newSums() sums {
	return sums{requests: map[string]int{}, failures: map[string]int{}, kubelet: map[string]int{}, duration: map[string]int{},
		app: map[string]int{}, traces: map[string]int{}}
}

func (u *sums) add(l *ledger.Line) {
	u.lines++
	code := fmt.Sprintf(`code="%dxx"`, l.Status/100)
	reason := fmt.Sprintf(`reason="%s"`, l.Reason)
	if l.Kind == "kubelet probe" {
		u.kubelet[code+","+reason]++
		return
	}
	protocol := map[string]string{"HTTP/1.1": `protocol="http/1.1"`, "HTTP/2.0": `protocol="http/2"`}[l.Protocol]
	u.traffic++
	u.requests[code+`,method="`+strings.ToLower(l.Method)+`",`+protocol+","+reason]++
	u.duration[code+","+protocol]++
	u.traces[l.TraceID]++
	if l.Reason != "ok" {
		u.failures[reason]++
	}
	if l.AppMs != nil {
		u.slots++
		u.app[code]++
	}
	if l.Replayed {
		u.replays++
	}
	if l.Activator {
		u.activator++
	}
}

// disagreements compares all counters while no requests are in progress. It returns nil if they
// are equal.
func (s *soak) disagreements() error {
	text, err := s.get(s.port.metrics, "/metrics")
	if err != nil {
		return err
	}
	metrics := parse(text)
	asked, answered := float64(s.probes.sent.Load()), float64(s.probes.answered.Load())
	seconds, err := s.autos.total()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var wrong []error
	equal := func(what string, got, want float64) {
		if got != want {
			wrong = append(wrong, fmt.Errorf("%s: got %v, want %v", what, got, want))
		}
	}
	of := func(name string, want map[string]int) {
		for labels, n := range want {
			equal(name+"{"+labels+"}", metrics[name][labels], float64(n))
		}
		for labels, n := range metrics[name] {
			if want[labels] == 0 {
				equal(name+"{"+labels+"}", n, 0)
			}
		}
	}
	u := &s.sums
	of("queue_proxy_requests_total", u.requests)
	of("queue_proxy_request_failures_total", u.failures)
	of("queue_proxy_kubelet_probes_total", u.kubelet)
	of("queue_proxy_request_duration_seconds_count", u.duration)
	of("queue_proxy_app_duration_seconds_count", u.app)
	of("queue_proxy_queue_wait_seconds_count", map[string]int{"": u.traffic})
	of("queue_proxy_replays_total", map[string]int{"": u.replays})
	equal("revision_request_count", metrics.sum("revision_request_count"), float64(u.traffic))
	equal("http_server_request_duration_seconds_count", metrics.sum("http_server_request_duration_seconds_count"), float64(u.traffic))
	for _, name := range []string{
		"queue_proxy_running_requests", "queue_proxy_waiting_requests", "queue_proxy_oldest_waiter_age_seconds",
		"revision_queue_depth", "kn_serving_queue_depth",
		"queue_proxy_log_lines_dropped_total", "queue_proxy_spans_dropped_total", "queue_proxy_draining",
	} {
		if metrics[name] == nil {
			wrong = append(wrong, fmt.Errorf("%s: metric not found, want 0", name))
		}
		equal(name, metrics.sum(name), 0)
	}
	if n := metrics.sum("queue_proxy_readiness_answer_seconds_count"); n < answered || n > asked {
		wrong = append(wrong, fmt.Errorf("queue_proxy_readiness_answer_seconds_count: got %v, want %v to %v", n, answered, asked))
	}
	equal("the autoscaler's requests", seconds.requests, float64(u.traffic))
	equal("the autoscaler's requests through the activator", seconds.proxied, float64(u.activator))
	wrong = append(wrong, s.collector.disagreements(u)...)
	return errors.Join(wrong...)
}

// An exposition contains the values of a scrape by name and labels.
type exposition map[string]map[string]float64

func parse(text string) exposition {
	x := exposition{}
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			continue
		}
		if x[name] == nil {
			x[name] = map[string]float64{}
		}
		x[name][strings.TrimSuffix(labels, "}")] = value
	}
	return x
}

func (x exposition) sum(name string) (n float64) {
	for _, v := range x[name] {
		n += v
	}
	return n
}

// An autoscaler reads the statistics four times per second and adds up the requests that
// arrived in each second.
type autoscaler struct {
	stop func() // stop stops the goroutine and waits for it

	mu     sync.Mutex
	steps  map[int]step // known differences between the total arrivals at the ends of two seconds
	newest int
	err    error
}

// arrivals is a number of requests and the number of these requests that came through the
// activator.
type arrivals struct{ requests, proxied float64 }

func (a arrivals) plus(b arrivals) arrivals {
	return arrivals{a.requests + b.requests, a.proxied + b.proxied}
}

func (a arrivals) minus(b arrivals) arrivals {
	return arrivals{a.requests - b.requests, a.proxied - b.proxied}
}

// A step is the difference in total arrivals between the end of one second and the end of the
// second in the field from.
type step struct {
	from int
	more arrivals
}

// root follows the steps from second k until there is no further step. It returns the second that it
// reaches, and the number of arrivals between that second and k.
func (a *autoscaler) root(k int) (from int, more arrivals) {
	for {
		s, ok := a.steps[k]
		if !ok {
			return k, more
		}
		k, more = s.from, more.plus(s.more)
	}
}

// recordArrivals records the number of arrivals between the ends of two seconds.
func (a *autoscaler) recordArrivals(from, to int, more arrivals) {
	r, before := a.root(from)
	q, after := a.root(to)
	switch {
	case r < q:
		a.steps[q] = step{r, before.plus(more).minus(after)}
	case q < r:
		a.steps[r] = step{q, after.minus(before).minus(more)}
	case after.minus(before) != more:
		a.err = fmt.Errorf("seconds %d to %d: got %v arrivals in one window and %v in other windows, want equal numbers", from, to, more, after.minus(before))
	}
}

func (a *autoscaler) follow(s *soak) {
	a.steps = map[int]step{}
	ended, done := make(chan struct{}), make(chan struct{})
	a.stop = sync.OnceFunc(func() {
		close(ended)
		<-done
	})
	s.t.Cleanup(a.stop)
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			s.looking.Lock()
			if n%4 == 0 { // read at the rates of Knative's autoscaler and of Prometheus
				_, err := s.get(s.port.autoscaler, "/metrics", [2]string{"Accept", "application/protobuf"})
				a.fail(err)
			}
			if n%20 == 0 {
				_, err := s.get(s.port.metrics, "/metrics", [2]string{"Accept", "application/openmetrics-text; version=1.0.0"})
				a.fail(err)
			}
			a.read(s)
			s.looking.Unlock()
			select {
			case <-ended:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	}()
}

func (a *autoscaler) fail(err error) {
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.err = err
	}
}

// read records the values of the three windows that end at the current second. If the test is
// not scheduled for some seconds, a longer window covers the gap.
func (a *autoscaler) read(s *soak) {
	text, err := s.get(s.port.autoscaler, "/metrics?format=json")
	var now struct {
		Uptime    float64 `json:"process_uptime"`
		Last      float64 `json:"queue_requests_per_second"`
		Proxied   float64 `json:"queue_proxied_operations_per_second"`
		Last6     float64 `json:"queue_requests_per_second_6s"`
		Proxied6  float64 `json:"queue_proxied_operations_per_second_6s"`
		Last60    float64 `json:"queue_requests_per_second_60s"`
		Proxied60 float64 `json:"queue_proxied_operations_per_second_60s"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &now)
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := int(now.Uptime)
	if k == a.newest {
		return
	}
	a.newest = k
	for _, w := range []struct {
		seconds           int
		requests, proxied float64
	}{{1, now.Last, now.Proxied}, {6, now.Last6, now.Proxied6}, {60, now.Last60, now.Proxied60}} {
		n := min(w.seconds, k) // the windows are shorter in a new process
		a.recordArrivals(k-n, k, arrivals{math.Round(w.requests * float64(n)), math.Round(w.proxied * float64(n))})
	}
}

// total returns all arrivals until the end of the last full second.
func (a *autoscaler) total() (arrivals, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	from, all := a.root(a.newest)
	if from != 0 && a.err == nil {
		return all, fmt.Errorf("the windows do not cover the time from the start to second %d", from)
	}
	return all, a.err
}

// A collector receives OTLP spans.
type collector struct {
	*httptest.Server

	mu         sync.Mutex
	servers    map[string]int // number of request spans by trace
	waits, app int            // number of spans of queue waits and of requests to the app
}

func newCollector(t *testing.T) *collector {
	c := &collector{servers: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var data otlp.TracesData
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(b, &data)
		}
		if err != nil {
			t.Errorf("got an invalid OTLP request: %v", err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range data.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					switch span.Kind {
					case otlp.Span_SPAN_KIND_SERVER:
						c.servers[hex.EncodeToString(span.TraceId)]++
					case otlp.Span_SPAN_KIND_CLIENT:
						c.app++
					default:
						c.waits++
					}
				}
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// disagreements compares the spans with the request log. It removes traces that are contained
// in both.
func (c *collector) disagreements(u *sums) (wrong []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.app != u.slots {
		wrong = append(wrong, fmt.Errorf("spans of requests to the app: got %d, want %d", c.app, u.slots))
	}
	if c.waits != u.traffic {
		wrong = append(wrong, fmt.Errorf("spans of queue waits: got %d, want %d", c.waits, u.traffic))
	}
	for id, n := range c.servers {
		if u.traces[id] == n {
			delete(u.traces, id)
			delete(c.servers, id)
		}
	}
	if len(u.traces) > 0 || len(c.servers) > 0 {
		wrong = append(wrong, fmt.Errorf("got %d traces that are not in the log, and %d log lines without a trace, want 0", len(c.servers), len(u.traces)))
	}
	return wrong
}
