package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Each vector of probes.txt runs with a new sidecar.
func TestReadinessProbeVectors(t *testing.T) {
	for _, v := range vectors(t, "probes.txt") {
		t.Run(v.title, func(t *testing.T) {
			newProbeVector(t, v).run()
		})
	}
}

type probeVector struct {
	t       *testing.T
	p       *proxy
	env     []string
	app     string
	outcome string
	asked   []string
}

func newProbeVector(t *testing.T, v vector) *probeVector {
	p := newProxy(t)
	closed, _ := harness.ClosedPort(t)
	names := strings.NewReplacer("$PORT", strconv.Itoa(p.port.user), "$CLOSED", strconv.Itoa(closed))
	pv := &probeVector{t: t, p: p, app: "200"}
	for _, line := range v.lines {
		line = names.Replace(line)
		switch {
		case strings.HasPrefix(line, "app "):
			pv.app = line[len("app "):]
		case strings.HasPrefix(line, "-> "):
			pv.outcome = line[len("-> "):]
		case strings.HasPrefix(line, "asked "):
			pv.asked = append(pv.asked, line[len("asked "):])
		case regexp.MustCompile(`^\w+=`).MatchString(line):
			pv.env = append(pv.env, harness.Unescape(line))
		default:
			t.Fatalf("probes.txt:%d: invalid line %q", v.line, line)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the vector is in testdata/probes.txt:%d", v.line)
		}
	})
	return pv
}

func (v *probeVector) run() {
	t, p := v.t, v.p
	app := v.startApp()
	if words, found := strings.CutPrefix(v.outcome, "exit 1: "); found {
		p.launch(v.env...)
		if got := p.code(); got != 1 {
			t.Errorf("got exit code %d, want 1", got)
		}
		if words := strings.Split(words, " | "); !p.out.HasLine(words...) {
			t.Errorf("no output line contains all of %q", words)
		}
		return
	}
	p.start(v.env...)
	m := dial(t, p.addr()).ask("/", "User-Agent: Knative-Activator-Probe", "K-Network-Probe: queue")
	if v.outcome == "ready" {
		if m.status() != 200 || m.Body != "queue" {
			t.Errorf("got %q with %q, want 200 with queue", m.Start, m.Body)
		}
	} else if word, found := strings.CutPrefix(v.outcome, "not ready"); found {
		checkReason(t, p, m)
		if word = strings.TrimPrefix(word, ": "); !strings.Contains(m.Body, word) {
			t.Errorf("got reason %q, want it to contain %q", m.Body, word)
		}
	} else {
		t.Fatalf("unknown outcome %q", v.outcome)
	}
	app.check(t, v.asked)
}

// checkReason fails the test unless m contains one line with the reason why the pod is not
// ready, and no internal details.
func checkReason(t *testing.T, p *proxy, m *message) {
	t.Helper()
	if m.status() != 503 {
		t.Errorf("got %q with %q, want 503", m.Start, m.Body)
	}
	reason := strings.TrimSuffix(m.Body, "\n")
	if reason == "" || strings.ContainsAny(reason, "\r\n") {
		t.Errorf("got body %q, want one line", m.Body)
	}
	for _, inside := range []string{"127.0.0.1", "::1", "localhost", strconv.Itoa(p.port.user), "/h", "X-a"} {
		if strings.Contains(reason, inside) {
			t.Errorf("got reason %q, want a reason without %q", reason, inside)
		}
	}
	want := `queue-proxy; error=destination_unavailable; details="not-ready"`
	if got := m.get("Proxy-Status"); got != want {
		t.Errorf("got Proxy-Status %q, want %q", got, want)
	}
}

// A probedApp records the requests of probes.
type probedApp struct {
	mu    sync.Mutex
	asked []*http.Request
}

func (a *probedApp) note(r *http.Request) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, r)
	return len(a.asked)
}

func (a *probedApp) check(t *testing.T, want []string) {
	t.Helper()
	if want == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	fields := map[string][]string{}
	for _, line := range want {
		if n, found := strings.CutPrefix(line, "at least "); found { // on a busy host, an attempt can exceed its timeout of 100 ms, so the number of attempts can be higher
			n, _ = strings.CutSuffix(n, " times")
			if least, err := strconv.Atoi(n); err != nil || len(a.asked) < least {
				t.Errorf("the app received %d probes, want at least %s, %v", len(a.asked), n, err)
			}
			continue
		}
		if n, found := strings.CutSuffix(line, " times"); found {
			if got := strconv.Itoa(len(a.asked)); got != n {
				t.Errorf("the app received %s probes, want %s", got, n)
			}
			continue
		}
		if len(a.asked) == 0 {
			t.Fatal("the app received no probe")
		}
		r := a.asked[0]
		if name, found := strings.CutPrefix(line, "without "); found {
			if got := r.Header.Values(name); len(got) > 0 {
				t.Errorf("the app received %s: %q, want none", name, got)
			}
		} else if name, value, found := strings.Cut(line, ": "); found {
			fields[name] = append(fields[name], value)
		} else if got := r.Method + " " + r.RequestURI + " " + r.Proto; got != line {
			t.Errorf("the app received %q, want %q", got, line)
		}
	}
	for name, values := range fields {
		got := a.asked[0].Header.Values(name)
		switch name {
		case "Host":
			got = []string{a.asked[0].Host}
		case "Connection":
			if a.asked[0].Close {
				got = []string{"close"}
			}
		}
		if !slices.Equal(got, values) {
			t.Errorf("the app received %s: %q, want %q", name, got, values)
		}
	}
}

// startApp starts the app that the vector describes.
func (v *probeVector) startApp() *probedApp {
	t, p, a := v.t, v.p, &probedApp{}
	kind, rest, _ := strings.Cut(v.app, " ")
	switch kind {
	case "none":
	case "on":
		l, err := net.Listen("tcp6", net.JoinHostPort("::1", strconv.Itoa(p.port.user)))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.note(r) })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	case "tls":
		s := &http.Server{Handler: a.answering(t, rest), TLSConfig: serverTLS(t), ErrorLog: quiet}
		go s.Serve(tls.NewListener(p.listen(), s.TLSConfig))
		t.Cleanup(func() { s.Close() })
	case "h2c":
		p.appSpeaking(a.answering(t, rest), "h2")
	case "after":
		pause, statuses, _ := strings.Cut(rest, " ")
		d, err := time.ParseDuration(pause)
		if err != nil {
			t.Fatal(err)
		}
		next := a.answering(t, statuses)
		p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
			next.ServeHTTP(w, r)
		}), "h1")
	case "sends", "silent", "resets":
		v.startBareApp(kind, harness.Unescape(rest))
	case "grpc":
		s := grpc.NewServer()
		if rest != "none" {
			status := healthpb.HealthCheckResponse_ServingStatus(healthpb.HealthCheckResponse_ServingStatus_value[rest])
			h := health.NewServer()
			h.SetServingStatus("", status)
			h.SetServingStatus("my.Svc", status)
			healthpb.RegisterHealthServer(s, h)
		}
		go s.Serve(p.listen())
		t.Cleanup(s.Stop)
	default:
		p.appSpeaking(a.answering(t, v.app), "h1")
	}
	return a
}

// startBareApp starts an app that does not implement HTTP correctly.
func (v *probeVector) startBareApp(kind, text string) {
	l := v.p.listen()
	ctx := v.t.Context()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { c.Close() })
			if kind == "resets" {
				(&bareConn{TCPConn: c.(*net.TCPConn)}).reset()
				continue
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				if _, err := c.Read(b); err != nil {
					return
				}
				c.Write([]byte(text))
				for kind == "silent" {
					if _, err := c.Read(b); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// answering returns a handler for a list of status codes, each with an optional Location. The
// last response is used for all further requests.
func (a *probedApp) answering(t *testing.T, list string) http.Handler {
	statuses := strings.Split(list, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PRI" { // ignore the HTTP/2 preface of protocol detection
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		n := a.note(r)
		status, location, _ := strings.Cut(statuses[min(n, len(statuses))-1], " ")
		code, err := strconv.Atoi(status)
		if err != nil {
			t.Errorf("invalid status %q", status)
			return
		}
		if location != "" {
			w.Header().Set("Location", location)
		}
		w.WriteHeader(code)
	})
}

// On Kubernetes without Knative, no SERVING_* variable is set.
func TestReadinessWithoutKnativeChecksUserPort(t *testing.T) {
	p := newProxy(t)
	p.process = run(t, without(p.environment(), "SERVING_"))
	answer := make(chan *message, 1)
	p.poll("the sidecar listens", func() error {
		c, err := net.Dial("tcp", p.addr())
		if err == nil {
			c.Close()
		}
		return err
	})
	c := dial(t, p.addr())
	c.send(request("GET", "/", "K-Network-Probe: queue"))
	go func() {
		m, err := readResponse(c.r, "GET")
		if err != nil {
			t.Error(err)
			m = &message{}
		}
		answer <- m
	}()
	select {
	case m := <-answer:
		t.Fatalf("got %q with %q before the app listens, want no response for ten seconds", m.Start, m.Body)
	case <-time.After(300 * time.Millisecond): // the app becomes ready after a delay
	}
	p.sample()
	if m := receive(t, "the response", answer); m.status() != 200 || m.Body != "queue" {
		t.Errorf("got %q with %q after the app listens, want 200 with queue", m.Start, m.Body)
	}
}

func TestConcurrentProbesShareOneRun(t *testing.T) {
	p := newProxy(t)
	a := &probedApp{}
	release := make(chan struct{})
	p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.note(r) == 1 {
			<-release
		}
	}), "h1")
	p.start(fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"port":%d,"path":"/h"},"periodSeconds":1,"timeoutSeconds":10}`, p.port.user))
	const askers = 50
	answers := make(chan *message, askers)
	for range askers {
		c := dial(t, p.addr())
		c.send(request("GET", "/", "K-Network-Probe: queue"))
		go func() {
			m, err := readResponse(c.r, "GET")
			if err != nil {
				t.Error(err)
				m = &message{}
			}
			answers <- m
		}()
	}
	fence(t, p)
	close(release)
	for range askers {
		if m := receive(t, "a response", answers); m.status() != 200 || m.Body != "queue" {
			t.Errorf("got %q with %q, want 200 with queue", m.Start, m.Body)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if got := len(a.asked); got > 2 {
		t.Errorf("%d concurrent probes caused %d probes of the app, want at most 2", askers, got)
	}
}

func TestCanceledProbeDoesNotCancelRun(t *testing.T) {
	p := newProxy(t)
	asked, gone := make(chan struct{}, 10), make(chan struct{})
	release := make(chan struct{})
	p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
			close(gone)
		}
	}), "h1")
	p.start(fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"port":%d,"path":"/h"},"periodSeconds":1,"timeoutSeconds":15}`, p.port.user))
	first, second := dial(t, p.addr()), dial(t, p.addr())
	first.send(request("GET", "/", "K-Network-Probe: queue"))
	receive(t, "the app receives a probe", asked)
	second.send(request("GET", "/", "K-Network-Probe: queue"))
	fence(t, p)
	first.Close()
	fence(t, p)
	select {
	case <-gone:
		t.Error("the probe of the app was canceled")
	default:
	}
	close(release)
	if m := second.receive("GET"); m.status() != 200 {
		t.Errorf("second probe: got %q, want 200", m.Start)
	}
}

// Each probe checks the application, even after the first success.
func TestReadinessFollowsTheApp(t *testing.T) {
	p := newProxy(t)
	app := p.sample()
	_ = app
	p.start(fmt.Sprintf(`SERVING_READINESS_PROBE={"httpGet":{"port":%d,"path":"/ready"},"periodSeconds":1}`, p.port.user))
	user := "http://" + local(p.port.user)
	for _, status := range []int{200, 503, 200, 500, 404, 200} {
		answer, err := http.Post(user+"/ready?status="+strconv.Itoa(status), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		want := 503
		if status == 200 {
			want = 200
		}
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != want {
			t.Errorf("app returned %d: got %q, want %d", status, m.Start, want)
		}
	}
}

// fence waits until the sidecar has answered probes. After these responses, the sidecar has processed
// all input that was sent before.
func fence(t *testing.T, p *proxy) {
	t.Helper()
	awaitInputRead(t, p)
	for range 3 {
		c := dial(t, p.addr())
		m := c.ask("/", "K-Network-Probe: probe", "K-Network-Hash: fence")
		if m.status() != 200 && m.status() != 503 {
			t.Fatalf("fence: got %q, want 200 or 503", m.Start)
		}
		c.Close()
	}
}

var errNotYet = errors.New("not yet")
