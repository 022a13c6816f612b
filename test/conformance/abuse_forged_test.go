package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A forgery is a set of headers with which Knative components identify each other, but that any
// client can send.
type forgery struct {
	fields []string
	status int  // expected status while the app and the queue are full; 0 means that the app responds, because the request does not need a slot
	probe  bool // the sidecar answers the request and does not log it
	stops  []string
	passes []string
}

// forgeries lists forged headers and the effects that docs/promises.md specifies.
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

// A forged header does not bypass the limit, does not hide a request from the log, and does not
// create a metric series.
func TestForgedHeadersDoNotBypassLimits(t *testing.T) {
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
		f.checkWithoutFreeSlot(t, p, app, fmt.Sprintf("/full/%d", i))
	}
	close(app.release)
	held.receive("GET")

	names, _ := p.series(p.port.metrics)
	for i, f := range forgeries {
		f.checkWithFreeSlot(t, p, app, fmt.Sprintf("/free/%d", i))
	}
	after, text := p.series(p.port.metrics)
	for name := range after {
		if !names[name] && !strings.Contains(name, "kubelet") && strings.Contains(name, "other") && !strings.Contains(name, `"other"`) {
			t.Errorf("got new series %s, want none", name)
		}
	}
	if strings.Contains(text, "other.test") {
		t.Error("the metrics contain a forged name")
	}
	p.poll("each request is logged", func() error {
		lines := map[string]int{}
		for _, line := range p.logIsJSON() {
			if target, _ := line["target"].(string); line["message"] == "request" {
				lines[target]++
			}
		}
		for i, f := range forgeries {
			for _, target := range []string{fmt.Sprintf("/full/%d", i), fmt.Sprintf("/free/%d", i)} {
				if got := lines[target]; f.probe != (got == 0) {
					return fmt.Errorf("%q: got %d lines for %s, want no lines for probes and at least one line for other requests", f.fields, got, target)
				}
			}
		}
		return nil
	})
}

// A recordingApp records the fields of each request and holds requests for /hold.
type recordingApp struct {
	release chan struct{}

	mu       sync.Mutex
	requests []http.Header // header fields of each request, with the keys Host and Path added
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

// got returns the fields of the last request for path, and the number of requests for path.
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

// checkWithoutFreeSlot sends a request with the fields while the only slot is in use.
func (f forgery) checkWithoutFreeSlot(t *testing.T, p *proxy, app *recordingApp, path string) {
	t.Helper()
	ask := func() int {
		w := dial(t, p.addr())
		defer w.Close()
		return w.ask(path, f.fields...).status()
	}
	if f.status == 0 { // retry, because at most two such requests run without a slot, and the previous request ends shortly after its response
		p.poll(fmt.Sprintf("%q is answered while the app is full", f.fields), func() error {
			if got := ask(); got != 200 {
				return fmt.Errorf("got %d, want 200", got)
			}
			return nil
		})
	} else if got := ask(); got != f.status {
		t.Errorf("%q, app is full: got %d, want %d", f.fields, got, f.status)
	}
	if _, n := app.got(path); n != 0 && f.status != 0 {
		t.Errorf("%q: the app received the request while it was full", f.fields)
	}
}

// checkWithFreeSlot sends the fields while a slot is free and checks the fields that the app
// receives.
func (f forgery) checkWithFreeSlot(t *testing.T, p *proxy, app *recordingApp, path string) {
	t.Helper()
	p.poll("a slot is free", func() error { // the previous request ends shortly after its response
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
		t.Errorf("%q: the app received the probe", f.fields)
		return
	case f.probe:
		return
	case n != 1:
		t.Errorf("%q: the app received %d requests, want 1", f.fields, n)
		return
	}
	for _, name := range f.stops {
		if got := h.Values(name); got != nil {
			t.Errorf("%q: the app received %s: %q, want none", f.fields, name, got)
		}
	}
	for _, name := range f.passes {
		want := "other.test" // the app receives the Host in K-Original-Host
		for _, field := range f.fields {
			if value, ok := strings.CutPrefix(field, name+": "); ok {
				want = value
			}
		}
		if got := h.Get(name); got != want {
			t.Errorf("%q: the app received %s: %q, want %q", f.fields, name, got, want)
		}
	}
}

// maxForwarded is the maximum length of a Forwarded field that is created from
// X-Forwarded-For.
const maxForwarded = 256 << 10

// wantForwardingFields compares the fields that the app received with the fields that the
// client sent.
func wantForwardingFields(t *testing.T, name string, fields []string, h http.Header) {
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
				t.Errorf("%s: the app received %s: %.100q, want the original value", name, n, got)
			}
		}
	}
	want := strings.Join(append(xff, "127.0.0.1"), ", ")
	if got := strings.Join(h.Values("X-Forwarded-For"), ", "); got != want {
		t.Errorf("%s: the app received X-Forwarded-For of %d bytes %.100q, want %d bytes (the original value and the client address)", name, len(got), got, len(want))
	}
	got := strings.Join(h.Values("Forwarded"), ", ")
	switch {
	case forwarded != nil:
		if got != forwarded[0] {
			t.Errorf("%s: the app received Forwarded: %.100q, want the original value", name, got)
		}
	case len(got) > maxForwarded:
		t.Errorf("%s: the app received a Forwarded field of %d bytes, want at most %d", name, len(got), maxForwarded)
	case strings.HasPrefix(name, "a short chain"), strings.HasPrefix(name, "a hundred"):
		if n := strings.Count(got, "for="); n != strings.Count(want, ",") {
			t.Errorf("%s: the app received Forwarded: %.100q with %d nodes, want all nodes of the chain", name, got, n)
		}
	}
}

// largeForwardingFields returns fields of 100 KiB that list proxies, and some short fields.
func largeForwardingFields() map[string][]string {
	const size = 100 << 10
	long := func(one string) string { return strings.Repeat(one, size/len(one)) }
	return map[string][]string{
		"addresses":         {"X-Forwarded-For: " + long("203.0.113.7, ") + "1.2.3.4"},
		"IPv6":              {"X-Forwarded-For: " + long("2001:db8::1, ") + "::1"},
		"commas":            {"X-Forwarded-For: " + long(",")},
		"commas, blanks":    {"X-Forwarded-For: 1" + long(", ") + "1"},
		"one letter each":   {"X-Forwarded-For: " + long("x,") + "x"},
		"quotes":            {"X-Forwarded-For: " + long(`"\`)},
		"beyond ASCII":      {"X-Forwarded-For: " + long("é\u2028")},
		"many lines":        slices.Repeat([]string{"X-Forwarded-For: 1.2.3.4, 5.6.7.8"}, 900),
		"a host":            {"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: " + long(`"`)},
		"a protocol":        {"X-Forwarded-Proto: " + long(`\`)},
		"Forwarded":         {"Forwarded: " + long("for=192.0.2.43, ") + "for=unknown"},
		"strange":           {"Forwarded: " + long(`";,=`), "X-Forwarded-For: 1.2.3.4"},
		"a short chain":     {"X-Forwarded-For: 1.2.3.4, [::1]:80"},
		"one hundred nodes": {"X-Forwarded-For: " + strings.Repeat("203.0.113.7, ", 99) + "::1"},
		"with a Forwarded":  {"X-Forwarded-For: " + long("x,"), "Forwarded: for=a"},
	}
}

// Clients can send proxy chains of any length. The size of the Forwarded field that the sidecar
// creates is bounded, and received fields are forwarded unchanged.
func TestLongProxyChainsAreForwardedUnchanged(t *testing.T) {
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
			for name, fields := range largeForwardingFields() {
				answer, _ := get(t, client, p.url("/?case="+strings.ReplaceAll(name, " ", "+")), fields...)
				mu.Lock()
				h := heard[name]
				mu.Unlock()
				if answer.StatusCode != 200 || h == nil {
					t.Errorf("%s: got status %d, want a request at the app", name, answer.StatusCode)
					continue
				}
				wantForwardingFields(t, name, fields, h)
			}
			client.CloseIdleConnections()
			s.SetKeepAlivesEnabled(false)
			p.checkResources(before)
		})
	}
}
