package conformance

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A row is a vector of classify.txt.
type row struct {
	vector
	method, target string
	fields         []field
	body           string
	onlyHTTP11     bool
	kind, value    string
}

var kinds = []string{ // a kind precedes its prefixes, so that the longest kind matches
	"queue probe", "network probe without hash", "network probe, hash too long", "network probe",
	"unknown probe", "kubelet probe", "traffic", "refused",
}

func rows(t *testing.T) []row {
	t.Helper()
	var all []row
	for _, v := range vectors(t, "classify.txt") {
		r := row{vector: v, method: "GET", target: "/"}
		for _, line := range v.lines {
			switch {
			case strings.HasPrefix(line, "-> "):
				line = line[len("-> "):]
				i := slices.IndexFunc(kinds, func(k string) bool { return strings.HasPrefix(line, k) })
				if i < 0 {
					t.Fatalf("classify.txt:%d: unknown kind %q", v.line, line)
				}
				r.kind, r.value = kinds[i], harness.Unescape(strings.TrimPrefix(line[len(kinds[i]):], " "))
			case strings.HasPrefix(line, "body "):
				r.body = harness.Unescape(line[len("body "):])
			case line == "only HTTP/1.1":
				r.onlyHTTP11 = true
			case regexp.MustCompile(`^[A-Z]+ \S+$`).MatchString(line):
				r.method, r.target, _ = strings.Cut(line, " ")
			default:
				name, value, found := strings.Cut(line, ":")
				if !found {
					t.Fatalf("classify.txt:%d: invalid line %q", v.line, line)
				}
				r.fields = append(r.fields, field{name, harness.Unescape(strings.TrimPrefix(value, " "))})
			}
		}
		if r.kind == "" {
			t.Fatalf("classify.txt:%d: missing kind", v.line)
		}
		all = append(all, r)
	}
	return all
}

// protocols lists the protocols that each row is sent with.
var protocols = []string{"HTTP/1.0", "HTTP/1.1", "h2c", "TLS HTTP/1.1", "TLS h2"}

// supports reports whether the row can be sent with a protocol.
func (r *row) supports(protocol string) bool {
	return !r.onlyHTTP11 || protocol == "HTTP/1.1" || protocol == "TLS HTTP/1.1"
}

// dialProtocol opens a connection for one of protocols.
func dialProtocol(t *testing.T, p *proxy, protocol string) *client {
	t.Helper()
	switch protocol {
	case "TLS HTTP/1.1":
		return dialTLS(t, p.tlsAddr(), "http/1.1")
	case "TLS h2":
		return dialTLS(t, p.tlsAddr(), "h2")
	default:
		return dial(t, p.addr())
	}
}

// ask sends the request of the row on a new connection. The user container counts requests by
// id.
func (r *row) ask(t *testing.T, p *proxy, protocol, id string) (*message, error) {
	t.Helper()
	fields := append(slices.Clone(r.fields), field{"X-Id", id})
	if r.body != "" {
		fields = append(fields, field{"Content-Length", strconv.Itoa(len(r.body))})
	}
	c := dialProtocol(t, p, protocol)
	defer c.Close()
	switch protocol {
	case "h2c":
		return exchangeH2(c, r.method, r.target, "http", "a.test", fields, r.body)
	case "TLS h2":
		return exchangeH2(c, r.method, r.target, "https", "a.test", fields, r.body)
	}
	version := "HTTP/1.1"
	if protocol == "HTTP/1.0" {
		version = "HTTP/1.0"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s\r\nHost: a.test\r\n", r.method, r.target, version)
	for _, f := range fields {
		fmt.Fprintf(&text, "%s: %s\r\n", f.Name, f.Value)
	}
	text.WriteString("\r\n" + r.body)
	if _, err := c.Write([]byte(text.String())); err != nil && r.kind != "refused" {
		return nil, err
	}
	return readResponse(c.r, r.method)
}

const (
	shuttingDown = "shutting down\n"
	hashMissing  = "a probe request must contain a non-empty \"K-Network-Hash\" header\n"
	byTheApp     = "answered by the app"
)

// heard is the expected response to a kind of request.
type heard struct {
	status    int
	body      string // byTheApp means the response from the user container, and anyText means any body
	hash      string
	details   string // expected details of Proxy-Status; empty for successful responses from the sidecar
	errorType string
}

const anyText = "any text"

func (r *row) wants(draining bool) heard {
	if draining && r.kind != "traffic" && r.kind != "refused" {
		return heard{503, shuttingDown, "", "draining", "destination_unavailable"}
	}
	bad := func(body string) heard { return heard{400, body, "", "bad-request", "http_request_error"} }
	switch r.kind {
	case "queue probe":
		return heard{status: 200, body: "queue"}
	case "network probe":
		return heard{status: 200, body: "", hash: r.value}
	case "network probe without hash":
		return bad(hashMissing)
	case "network probe, hash too long":
		return bad(anyText)
	case "unknown probe":
		return bad("unexpected probe header value: " + r.value + "\n")
	case "refused":
		n, _ := strconv.Atoi(r.value)
		return heard{status: n, body: anyText}
	}
	return heard{status: 200, body: byTheApp}
}

func (r *row) check(t *testing.T, m *message, draining bool, protocol string) {
	t.Helper()
	want := r.wants(draining)
	if got := m.status(); got != want.status {
		t.Errorf("got status %q with %.200q, want %d", m.Start, m.Body, want.status)
		return
	}
	if m.Cut != nil {
		t.Errorf("got a truncated body: %v", m.Cut)
	}
	length := strconv.Itoa(len(want.body))
	if want.body != anyText {
		if got := m.get("Content-Length"); got != length {
			t.Errorf("got Content-Length %q, want %q", got, length)
		}
		body := want.body
		if r.method == "HEAD" {
			body = ""
		}
		if m.Body != body {
			t.Errorf("got body %.300q, want %.300q", m.Body, body)
		}
	}
	if want.body == byTheApp || r.kind == "refused" {
		return
	}
	if got := m.get("K-Network-Hash"); got != want.hash {
		t.Errorf("got K-Network-Hash %.100q, want %.100q", got, want.hash)
	}
	if want.body != "" {
		if got := m.get("Content-Type"); got != "text/plain; charset=utf-8" {
			t.Errorf("got Content-Type %q, want text/plain; charset=utf-8", got)
		}
	}
	status := "queue-proxy"
	if want.details != "" {
		status = fmt.Sprintf("queue-proxy; error=%s; details=%q", want.errorType, want.details)
		if got := m.get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("got X-Content-Type-Options %q, want nosniff", got)
		}
	}
	if got := values(m.Fields, "Proxy-Status"); !slices.Equal(got, []string{status}) {
		t.Errorf("got Proxy-Status %q, want %q", got, status)
	}
}

var lastID atomic.Int64

func newID() string { return "id-" + strconv.FormatInt(lastID.Add(1), 10) }

// ledgerApp sends the same response to all requests and counts them by id. A request for /hold
// waits until release is closed.
type ledgerApp struct {
	mu      sync.Mutex
	counts  map[string]int
	release chan struct{}
}

func newLedger() *ledgerApp {
	return &ledgerApp{counts: map[string]int{}, release: make(chan struct{})}
}

func (a *ledgerApp) count(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[id]
}

func (a *ledgerApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.counts[r.Header.Get("X-Id")]++
	a.mu.Unlock()
	if r.URL.Path == "/hold" {
		select {
		case <-a.release:
		case <-r.Context().Done():
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(byTheApp)))
	if r.Method != "HEAD" {
		w.Write([]byte(byTheApp))
	}
}

// The test sends each row of the table with each protocol to a ready sidecar and to a
// draining sidecar. A request in progress keeps the drain from completing.
func TestRequestClassification(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start("DRAIN_QUIET_PERIOD=1s")
	app := newLedger()
	p.app(app)
	t.Run("ready", func(t *testing.T) { classify(t, p, app, false) })
	if t.Failed() && t.Context().Err() != nil {
		return
	}

	held := dial(t, p.addr())
	held.send(request("GET", "/hold", "X-Id: held"))
	p.poll("the app received the held request", func() error {
		if app.count("held") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	p.signal(syscall.SIGTERM)
	p.poll("probes fail because of the drain", func() error {
		if m := dial(t, p.addr()).ask("/", "K-Network-Probe: queue"); m.status() != 503 {
			return fmt.Errorf("got %q", m.Start)
		}
		return nil
	})
	t.Run("draining", func(t *testing.T) { classify(t, p, app, true) })

	close(app.release)
	held.SetDeadline(time.Now().Add(patience))
	if m := held.receive("GET"); m.status() != 200 || m.Body != byTheApp {
		t.Errorf("held request: got %q %q, want 200 %q", m.Start, m.Body, byTheApp)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

func classify(t *testing.T, p *proxy, app *ledgerApp, draining bool) {
	for _, r := range rows(t) {
		t.Run(r.title, func(t *testing.T) {
			for _, protocol := range protocols {
				if !r.supports(protocol) {
					continue
				}
				t.Run(protocol, func(t *testing.T) {
					id := newID()
					m, err := r.ask(t, p, protocol, id)
					if err != nil {
						t.Fatalf("no response: %v", err)
					}
					r.check(t, m, draining, protocol)
					asked, want := app.count(id), 0
					if r.wants(draining).body == byTheApp {
						want = 1
					}
					if asked != want {
						t.Errorf("the app received %d requests, want %d", asked, want)
					}
					if t.Failed() {
						t.Logf("the vector is in testdata/classify.txt:%d", r.line)
					}
				})
			}
		})
	}
}
