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

// sums are what the request log amounts to, since the start. The keys are labels as
// the metrics have them.
type sums struct {
	lines, traffic, activator, slots, replays int

	requests, failures, kubelet, duration, app map[string]int
	traces                                     map[string]int // by id
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

// disagreements holds what everybody has counted against each other, when nothing
// runs any more; nil: all agree.
func (s *soak) disagreements() error {
	text, err := s.get(s.port.metrics, "/metrics")
	if err != nil {
		return err
	}
	told := parse(text)
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
			equal(name+"{"+labels+"}", told[name][labels], float64(n))
		}
		for labels, n := range told[name] {
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
	equal("revision_request_count", told.sum("revision_request_count"), float64(u.traffic))
	equal("http_server_request_duration_seconds_count", told.sum("http_server_request_duration_seconds_count"), float64(u.traffic))
	for _, name := range []string{
		"queue_proxy_running_requests", "queue_proxy_waiting_requests", "queue_proxy_oldest_waiter_age_seconds",
		"revision_queue_depth", "kn_serving_queue_depth",
		"queue_proxy_log_lines_dropped_total", "queue_proxy_spans_dropped_total", "queue_proxy_draining",
	} {
		if told[name] == nil {
			wrong = append(wrong, fmt.Errorf("%s: got none, want one that is 0", name))
		}
		equal(name, told.sum(name), 0)
	}
	if n := told.sum("queue_proxy_readiness_answer_seconds_count"); n < answered || n > asked {
		wrong = append(wrong, fmt.Errorf("queue_proxy_readiness_answer_seconds_count: got %v, want from %v to %v", n, answered, asked))
	}
	equal("the autoscaler's requests", seconds.requests, float64(u.traffic))
	equal("the autoscaler's requests through the activator", seconds.proxied, float64(u.activator))
	wrong = append(wrong, s.collector.disagreements(u)...)
	return errors.Join(wrong...)
}

// exposition is what a scrape says: the value of each series by name and labels.
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

// An autoscaler reads the statistics four times a second, and adds up how many
// requests arrived in each of them.
type autoscaler struct {
	stop func() // and waits until it has

	mu     sync.Mutex
	steps  map[int]step // what is known of how many had come by the end of a second
	newest int
	err    error
}

// arrivals are requests, and those of them that came through the activator.
type arrivals struct{ requests, proxied float64 }

func (a arrivals) plus(b arrivals) arrivals {
	return arrivals{a.requests + b.requests, a.proxied + b.proxied}
}

func (a arrivals) minus(b arrivals) arrivals {
	return arrivals{a.requests - b.requests, a.proxied - b.proxied}
}

// A step says how many more had come by the end of one second than by that of
// another.
type step struct {
	from int
	more arrivals
}

// root follows the steps from a second to the last that is known, and returns by how
// many more had come since.
func (a *autoscaler) root(k int) (from int, more arrivals) {
	for {
		s, ok := a.steps[k]
		if !ok {
			return k, more
		}
		k, more = s.from, more.plus(s.more)
	}
}

// learn notes that so many came between the ends of two seconds.
func (a *autoscaler) learn(from, to int, more arrivals) {
	r, before := a.root(from)
	q, after := a.root(to)
	switch {
	case r < q:
		a.steps[q] = step{r, before.plus(more).minus(after)}
	case q < r:
		a.steps[r] = step{q, after.minus(before).minus(more)}
	case after.minus(before) != more:
		a.err = fmt.Errorf("from second %d to %d: got %v arrivals by one window and %v by others", from, to, more, after.minus(before))
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
			if n%4 == 0 { // as Knative's does, and as Prometheus
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

// read learns what the three windows say that end with the newest second. When the
// test is not heard for some seconds, one of the longer ones bridges them.
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
		n := min(w.seconds, k) // of a young process the windows are shorter
		a.learn(k-n, k, arrivals{math.Round(w.requests * float64(n)), math.Round(w.proxied * float64(n))})
	}
}

// total returns all arrivals up to the last full second.
func (a *autoscaler) total() (arrivals, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	from, all := a.root(a.newest)
	if from != 0 && a.err == nil {
		return all, fmt.Errorf("no window leads from second %d back to the start yet", from)
	}
	return all, a.err
}

// A collector takes spans, over OTLP.
type collector struct {
	*httptest.Server

	mu         sync.Mutex
	servers    map[string]int // spans of requests, by trace
	waits, app int            // spans of waits, and of exchanges with the app
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
			t.Errorf("what was sent is not OTLP: %v", err)
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

// disagreements holds the spans against the request log. Traces on which both agree
// are forgotten.
func (c *collector) disagreements(u *sums) (wrong []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.app != u.slots {
		wrong = append(wrong, fmt.Errorf("spans of exchanges with the app: got %d, want %d", c.app, u.slots))
	}
	if c.waits != u.traffic {
		wrong = append(wrong, fmt.Errorf("spans of waits: got %d, want %d", c.waits, u.traffic))
	}
	for id, n := range c.servers {
		if u.traces[id] == n {
			delete(u.traces, id)
			delete(c.servers, id)
		}
	}
	if len(u.traces) > 0 || len(c.servers) > 0 {
		wrong = append(wrong, fmt.Errorf("traces: got %d that the log does not know, and it has %d more", len(c.servers), len(u.traces)))
	}
	return wrong
}
