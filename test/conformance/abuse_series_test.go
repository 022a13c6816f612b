package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// series scrapes the metrics on a port. It returns the set of all series with their labels, and
// the text.
func (p *proxy) series(port int) (names map[string]bool, text string) {
	p.t.Helper()
	answer, text := get(p.t, httpClient(p.t, "h1"), "http://"+local(port)+"/metrics?format=prometheus", "Accept: text/plain")
	if answer.StatusCode != 200 {
		p.t.Fatalf("got status %d, want 200", answer.StatusCode)
	}
	names = map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			name := line[:strings.LastIndexByte(line, ' ')]
			if names[name] {
				p.t.Errorf("duplicate series %s", name)
			}
			names[name] = true
		}
	}
	return names, text
}

// asker returns a function that sends requests on one connection. If the connection is closed,
// the function opens a new connection.
func (p *proxy) asker(t *testing.T) func(method, host, target string, fields ...string) {
	t.Helper()
	w := dial(t, p.addr())
	return func(method, host, target string, fields ...string) {
		w.send(method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n")
		m, err := readResponse(w.r, method)
		if err != nil || m.Cut != nil || strings.EqualFold(m.get("Connection"), "close") || m.status() == 101 {
			w.Close()
			w = dial(t, p.addr())
		}
	}
}

// createAllSeries sends requests for each status, with random text in all fields that a
// client can set.
func createAllSeries(r *rand.Rand, name func() string, ask func(method, host, target string, fields ...string)) {
	for status := 200; status < 1000; status++ {
		ask("GET", "a.test", "/", fmt.Sprint("X-Status: ", status))
	}
	known := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
	for i := range 600 {
		method := strings.ToUpper(name())
		if i%2 == 0 {
			method = known[i/2%len(known)]
		}
		ask(method, name()+".test", "/"+name()+"?"+name(),
			"X-Status: "+strconv.Itoa(200+r.IntN(400)),
			"User-Agent: "+name(), "Referer: "+name(), "X-Forwarded-For: "+name(), "X-Forwarded-Proto: "+name(), "X-Forwarded-Host: "+name(),
			"Knative-Serving-Namespace: "+name(), "Knative-Serving-Revision: "+name(), "Knative-Serving-Tag: "+name(), "Knative-Serving-Default-Route: "+[]string{"true", "false", name()}[r.IntN(3)],
			"K-Proxy-Request: "+name(), "K-Original-Host: "+name(), "K-Kubelet-Probe: "+[]string{"", name()}[r.IntN(2)], "Traceparent: "+name(), "Content-Type: "+name()+"/"+name())
		ask("GET", name(), "/", "K-Network-Probe: "+name())
	}
}

// The number of series is bounded for all requests and responses.
func TestSeriesAreBounded(t *testing.T) {
	for names, row := range map[string]struct {
		fresh int // maximum number of series before the first request
		most  int // maximum number of series after all requests
	}{
		"default":      {150, 400},
		"knative-1.18": {50, 7000},
		"knative-1.19": {100, 20000},
		"knative-head": {100, 20000},
		"all":          {240, 28500},
	} {
		t.Run(names, func(t *testing.T) {
			p := newProxy(t)
			p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if s, err := strconv.Atoi(r.Header.Get("X-Status")); err == nil {
					w.WriteHeader(s)
				}
			}))
			p.start("METRICS_NAMES="+names, "CONTAINER_CONCURRENCY=100")
			stats, _ := p.series(p.port.autoscaler)
			first, _ := p.series(p.port.metrics)
			r := rand.New(rand.NewPCG(7, 7))
			name := func() string { return fmt.Sprintf("n%x", r.Uint64()) }
			ask := p.asker(t)
			createAllSeries(r, name, ask)
			after, text := p.series(p.port.metrics)
			statsAfter, _ := p.series(p.port.autoscaler)
			t.Logf("%d series at first, %d after the requests; %d and %d series of statistics", len(first), len(after), len(stats), len(statsAfter))
			if len(first) > row.fresh || len(after) > row.most || len(after) <= len(first) {
				t.Errorf("got %d series at first and %d after the requests, want at most %d and %d, and an increase", len(first), len(after), row.fresh, row.most)
			}
			if len(statsAfter) > 13 || len(statsAfter) != len(stats) {
				t.Errorf("got %d series of statistics at first and %d after the requests, want the same number and at most 13", len(stats), len(statsAfter))
			}
			if len(text) > 8<<20 {
				t.Errorf("got %d bytes of metrics, want at most 8 MiB", len(text))
			}

			// All possible series already exist, so additional requests do not create new
			// series.
			for range 300 {
				ask(strings.ToUpper(name()), name(), "/"+name(), "User-Agent: "+name(), "Knative-Serving-Tag: "+name(), "X-Status: 200")
			}
			again, _ := p.series(p.port.metrics)
			if len(again) > len(after)+len(after)/20 {
				t.Errorf("got %d series after another round, want about %d", len(again), len(after))
			}
		})
	}
}
