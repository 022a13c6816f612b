package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A forgery is headers by which the parts of Knative know one another, sent by anybody.
type forgery struct {
	fields []string
	status int  // while the app is full and so is the line; 0: no answer, because it is beside the limit
	probe  bool // it is answered by the sidecar, and is in no log
	stops  []string
	passes []string
}

// What each of the forgeries gains is what docs/promises.md gives it, and no more.
var forgeries = []forgery{
	{[]string{"K-Proxy-Request: activator"}, 503, false, []string{"K-Proxy-Request"}, nil},
	{[]string{"K-Proxy-Request: queue"}, 503, false, []string{"K-Proxy-Request"}, nil},
	{[]string{"User-Agent: kube-probe/1.31"}, 0, false, nil, []string{"User-Agent"}},
	{[]string{"K-Kubelet-Probe: 1"}, 0, false, nil, []string{"K-Kubelet-Probe"}},
	{[]string{"User-Agent: kube-probe"}, 503, false, nil, []string{"User-Agent"}},
	{[]string{"User-Agent: x kube-probe/1.31"}, 503, false, nil, []string{"User-Agent"}},
	{[]string{"K-Network-Probe: queue"}, 200, true, nil, nil},
	{[]string{"K-Network-Probe: probe", "K-Network-Hash: 1"}, 200, true, nil, nil},
	{[]string{"K-Network-Probe: activator"}, 400, true, nil, nil},
	{[]string{"K-Network-Probe: Queue"}, 400, true, nil, nil},
	{[]string{"User-Agent: Knative-Activator-Probe/1"}, 400, true, nil, nil},
	{[]string{"User-Agent: Knative-Ingress-Probe"}, 503, false, nil, []string{"User-Agent"}},
	{[]string{"K-Network-Hash: 1"}, 503, false, []string{"K-Network-Hash"}, nil},
	{[]string{"K-Passthrough-Lb: 1"}, 503, false, []string{"K-Passthrough-Lb"}, nil},
	{[]string{"Knative-Serving-Namespace: other", "Knative-Serving-Revision: other"}, 503, false, []string{"Knative-Serving-Namespace", "Knative-Serving-Revision"}, nil},
	{[]string{"Knative-Serving-Tag: other", "Knative-Serving-Default-Route: true"}, 503, false, nil, []string{"Knative-Serving-Tag"}},
	{[]string{"K-Original-Host: other.test"}, 503, false, []string{"K-Original-Host"}, []string{"Host"}},
	{[]string{"Proxy-Status: queue-proxy; error=connection_refused"}, 503, false, nil, []string{"Proxy-Status"}},
	{[]string{"X-Envoy-Upstream-Rq-Timeout-Ms: 1", "X-Request-Start: 0"}, 503, false, nil, []string{"X-Request-Start"}},
}

// Nobody passes the limit with a forged header, nor hides from the log, nor makes a
// series of metrics.
func TestForgedHeadersGainWhatThePromisesSay(t *testing.T) {
	p := newProxy(t)
	app := &recordingApp{release: make(chan struct{})}
	p.app(app)
	p.start(inSmallPod("METRICS_NAMES=all", "CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=0")...)
	p.auditAtEnd()
	held := p.sendGet("/hold")
	p.poll("a request holds the only slot", func() error {
		if _, n := app.got("/hold"); n == 0 {
			return errNotYet
		}
		return nil
	})
	for i, f := range forgeries {
		f.besideAFullApp(t, p, app, fmt.Sprintf("/full/%d", i))
	}
	close(app.release)
	held.receive("GET")

	names, _ := p.series(p.port.metrics)
	for i, f := range forgeries {
		f.besideAFreeApp(t, p, app, fmt.Sprintf("/free/%d", i))
	}
	after, text := p.series(p.port.metrics)
	for name := range after {
		if !names[name] && !strings.Contains(name, "kubelet") && strings.Contains(name, "other") && !strings.Contains(name, `"other"`) {
			t.Errorf("there is a new series %s", name)
		}
	}
	if strings.Contains(text, "other.test") {
		t.Error("a forged name is in the metrics")
	}
	p.poll("each request has its line", func() error {
		lines := map[string]int{}
		for _, line := range p.logIsJSON() {
			if target, _ := line["target"].(string); line["message"] == "request" {
				lines[target]++
			}
		}
		for i, f := range forgeries {
			for _, target := range []string{fmt.Sprintf("/full/%d", i), fmt.Sprintf("/free/%d", i)} {
				if got := lines[target]; f.probe != (got == 0) {
					return fmt.Errorf("%q: %d lines for %s, want some but for probes", f.fields, got, target)
				}
			}
		}
		return nil
	})
}

// A recordingApp notes the fields of each request, and holds that for /hold.
type recordingApp struct {
	release chan struct{}

	mu       sync.Mutex
	requests []http.Header // with Host, and the path as Path
}

func (a *recordingApp) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	h := r.Header.Clone()
	h.Set("Host", r.Host)
	h.Set("Path", r.URL.Path)
	a.mu.Lock()
	a.requests = append(a.requests, h)
	a.mu.Unlock()
	if r.URL.Path == "/hold" {
		<-a.release
	}
}

// got returns the fields of a request for a path, and how many there were.
func (a *recordingApp) got(path string) (one http.Header, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.requests {
		if h.Get("Path") == path {
			one, n = h, n+1
		}
	}
	return one, n
}

// besideAFullApp sends the fields while the only slot is taken.
func (f forgery) besideAFullApp(t *testing.T, p *proxy, app *recordingApp, path string) {
	t.Helper()
	ask := func() int {
		w := dial(t, p.addr())
		defer w.Close()
		return w.ask(path, f.fields...).status()
	}
	if f.status == 0 { // two run beside the limit, and one is done with a moment after its answer
		p.poll(fmt.Sprintf("%q is answered beside a full app", f.fields), func() error {
			if got := ask(); got != 200 {
				return fmt.Errorf("got %d, want 200", got)
			}
			return nil
		})
	} else if got := ask(); got != f.status {
		t.Errorf("%q beside a full app: got %d, want %d", f.fields, got, f.status)
	}
	if _, n := app.got(path); n != 0 && f.status != 0 {
		t.Errorf("%q has reached a full app", f.fields)
	}
}

// besideAFreeApp sends the fields while there is a slot, and looks at what the app gets.
func (f forgery) besideAFreeApp(t *testing.T, p *proxy, app *recordingApp, path string) {
	t.Helper()
	p.poll("there is a slot", func() error { // the one before is done with a moment after its answer
		w := dial(t, p.addr())
		defer w.Close()
		if m := w.ask(path, f.fields...); m.status() == 503 {
			return errNotYet
		}
		return nil
	})
	h, n := app.got(path)
	switch {
	case f.probe && n != 0:
		t.Errorf("%q: a probe has reached the app", f.fields)
		return
	case f.probe:
		return
	case n != 1:
		t.Errorf("%q: the app has got %d requests, want 1", f.fields, n)
		return
	}
	for _, name := range f.stops {
		if got := h.Values(name); got != nil {
			t.Errorf("%q: the app sees %s: %q, want none", f.fields, name, got)
		}
	}
	for _, name := range f.passes {
		want := "other.test" // K-Original-Host is whom the app is asked for
		for _, field := range f.fields {
			if value, ok := strings.CutPrefix(field, name+": "); ok {
				want = value
			}
		}
		if got := h.Get(name); got != want {
			t.Errorf("%q: the app sees %s: %q, want %q", f.fields, name, got, want)
		}
	}
}

// longestForwarded is the longest Forwarded that is made of an X-Forwarded-For.
const longestForwarded = 256 << 10

// wantChain holds what the app got to the fields that the client sent.
func wantChain(t *testing.T, name string, fields []string, h http.Header) {
	t.Helper()
	var xff, forwarded []string
	for _, f := range fields {
		n, value, _ := strings.Cut(f, ": ")
		switch value = strings.Trim(value, " \t"); n {
		case "X-Forwarded-For":
			xff = append(xff, value)
		case "Forwarded":
			forwarded = append(forwarded, value)
		default:
			if got := h.Get(n); got != value {
				t.Errorf("%s: the app sees %s: %.100q, want it as it came", name, n, got)
			}
		}
	}
	want := strings.Join(append(xff, "127.0.0.1"), ", ")
	if got := strings.Join(h.Values("X-Forwarded-For"), ", "); got != want {
		t.Errorf("%s: the app sees X-Forwarded-For of %d bytes %.100q, want %d: it as it came, and our client", name, len(got), got, len(want))
	}
	got := strings.Join(h.Values("Forwarded"), ", ")
	switch {
	case forwarded != nil:
		if got != forwarded[0] {
			t.Errorf("%s: the app sees Forwarded: %.100q, want it as it came", name, got)
		}
	case len(got) > longestForwarded:
		t.Errorf("%s: the app sees a Forwarded of %d bytes, want at most %d", name, len(got), longestForwarded)
	case strings.HasPrefix(name, "a short chain"), strings.HasPrefix(name, "a hundred"):
		if n := strings.Count(got, "for="); n != strings.Count(want, ",") {
			t.Errorf("%s: the app sees Forwarded: %.100q with %d nodes, want all of the chain", name, got, n)
		}
	}
}

// giantChains are fields of 100 KiB that name proxies, and a few short ones.
func giantChains() map[string][]string {
	const size = 100 << 10
	long := func(one string) string { return strings.Repeat(one, size/len(one)) }
	return map[string][]string{
		"addresses":        {"X-Forwarded-For: " + long("203.0.113.7, ") + "1.2.3.4"},
		"IPv6":             {"X-Forwarded-For: " + long("2001:db8::1, ") + "::1"},
		"commas":           {"X-Forwarded-For: " + long(",")},
		"commas, blanks":   {"X-Forwarded-For: 1" + long(", ") + "1"},
		"one letter each":  {"X-Forwarded-For: " + long("x,") + "x"},
		"quotes":           {"X-Forwarded-For: " + long(`"\`)},
		"beyond ASCII":     {"X-Forwarded-For: " + long("é\u2028")},
		"many lines":       slices.Repeat([]string{"X-Forwarded-For: 1.2.3.4, 5.6.7.8"}, 900),
		"a host":           {"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: " + long(`"`)},
		"a protocol":       {"X-Forwarded-Proto: " + long(`\`)},
		"Forwarded":        {"Forwarded: " + long("for=192.0.2.43, ") + "for=unknown"},
		"strange":          {"Forwarded: " + long(`";,=`), "X-Forwarded-For: 1.2.3.4"},
		"a short chain":    {"X-Forwarded-For: 1.2.3.4, [::1]:80"},
		"a hundred of us":  {"X-Forwarded-For: " + strings.Repeat("203.0.113.7, ", 99) + "::1"},
		"with a Forwarded": {"X-Forwarded-For: " + long("x,"), "Forwarded: for=a"},
	}
}

// A chain of proxies may be as long as a client likes to say: what is made of it
// is bounded, and what came is passed on as it came.
func TestGiantChainsOfProxiesArriveWithoutGrowing(t *testing.T) {
	for _, protocol := range []string{"h1", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			var mu sync.Mutex
			heard := map[string]http.Header{}
			s := p.app(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				heard[r.URL.Query().Get("case")] = r.Header.Clone()
			}))
			s.MaxHeaderBytes = 4 << 20
			p.start(inSmallPod()...)
			before := p.footprint()
			client := httpClient(t, protocol)
			for name, fields := range giantChains() {
				answer, _ := get(t, client, p.url("/?case="+strings.ReplaceAll(name, " ", "+")), fields...)
				mu.Lock()
				h := heard[name]
				mu.Unlock()
				if answer.StatusCode != 200 || h == nil {
					t.Errorf("%s: got %d, want it to arrive", name, answer.StatusCode)
					continue
				}
				wantChain(t, name, fields, h)
			}
			client.CloseIdleConnections()
			s.SetKeepAlivesEnabled(false)
			p.unharmed(before)
		})
	}
}
