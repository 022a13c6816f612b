package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// portOf returns the port of a listener address.
func portOf(a net.Addr) int32 { return int32(a.(*net.TCPAddr).Port) }

// A record contains the requests to an app.
type record struct {
	mu    sync.Mutex
	asked []string
}

func (r *record) add(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, what)
}

func (r *record) hits() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// A rawApp is an app that can send invalid HTTP. It records the header sections of the requests.
type rawApp struct {
	port int32
	record
}

// newRawApp starts an app on the address. The app calls answer with the request line of each request.
func newRawApp(t testing.TB, address string, answer func(c *net.TCPConn, line string)) *rawApp {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("cannot listen on %s: %v", address, err)
	}
	app := &rawApp{port: portOf(l.Addr())}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				head, err := readHead(c)
				if err != nil && head == "" {
					return
				}
				app.add(head)
				line, _, _ := strings.Cut(head, "\r\n")
				answer(c.(*net.TCPConn), line)
			})
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return app
}

func readHead(c net.Conn) (string, error) {
	r := textproto.NewReader(bufio.NewReader(c))
	var head strings.Builder
	for {
		line, err := r.ReadLine()
		if err != nil || line == "" {
			return head.String(), err
		}
		head.WriteString(line + "\r\n")
	}
}

// text returns a function that writes answer, which is a complete response.
func text(answer string) func(*net.TCPConn, string) {
	return func(c *net.TCPConn, _ string) { _, _ = io.WriteString(c, answer) }
}

// paths returns a function that writes a response depending on the request target. The key * is the default.
func paths(answers map[string]string) func(*net.TCPConn, string) {
	return func(c *net.TCPConn, line string) {
		target := strings.Fields(line)[1]
		answer, ok := answers[target]
		if !ok {
			answer = answers["*"]
		}
		_, _ = io.WriteString(c, answer)
	}
}

func httpStatus(code int, fields ...string) string {
	s := fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: 0\r\n", code)
	for _, f := range fields {
		s += f + "\r\n"
	}
	return s + "\r\n"
}

// try makes one attempt and returns its error. The test fails if the attempt does not return after the timeout.
func try(t *testing.T, a attemptFunc, timeout time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- a(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-time.After(timeout + harness.Patience):
		t.Fatal("the attempt did not return after its timeout")
		return nil
	}
}

// wantOutcome compares the error of an attempt with a word and a code. The word "" means that the attempt passes.
func wantOutcome(t *testing.T, err error, word observation.ReadinessWord, code int) {
	t.Helper()
	if passes(err) {
		if word != "" {
			t.Errorf("got a pass, want %s", word)
		}
		return
	}
	if f := failed(err); f.word != word || f.code != code {
		t.Errorf("got %s %d (%v), want %q %d", f.word, f.code, err, word, code)
	}
}

func TestHTTPProbeResponses(t *testing.T) {
	big := "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + strings.Repeat("x", 1<<20)
	for _, v := range []struct {
		id, answer string
		word       observation.ReadinessWord
		code       int
	}{
		{"100 then close", "HTTP/1.1 100 Continue\r\n\r\n", observation.WordReset, 0},
		{"103 then close", "HTTP/1.1 103 Early Hints\r\n\r\n", observation.WordReset, 0},
		{"199 then close", "HTTP/1.1 199 X\r\n\r\n", observation.WordReset, 0},
		{"100 then 200", "HTTP/1.1 100 Continue\r\n\r\n" + httpStatus(200), "", 0},
		{"101", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", observation.WordStatus, 101},
		{"200", httpStatus(200), "", 0},
		{"204", httpStatus(204), "", 0},
		{"206", httpStatus(206), "", 0},
		{"299", httpStatus(299), "", 0},
		{"300", httpStatus(300), "", 0},
		{"304", httpStatus(304), "", 0},
		{"399", httpStatus(399), "", 0},
		{"400", httpStatus(400), observation.WordStatus, 400},
		{"401", httpStatus(401), observation.WordStatus, 401},
		{"404", httpStatus(404), observation.WordStatus, 404},
		{"429", httpStatus(429), observation.WordStatus, 429},
		{"500", httpStatus(500), observation.WordStatus, 500},
		{"503", httpStatus(503), observation.WordStatus, 503},
		{"599", httpStatus(599), observation.WordStatus, 599},
		{"600", httpStatus(600), observation.WordStatus, 600},
		{"999", httpStatus(999), observation.WordStatus, 999},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nhello", "", 0},
		{"truncated body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", "", 0},
		{"bad gzip", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "", 0},
		{"large body", big, "", 0},
		{"not HTTP", "SSH-2.0-OpenSSH_9.2p1\r\n", observation.WordGarbage, 0},
		{"accepts and closes", "", observation.WordReset, 0},
		{"302 without Location", httpStatus(302), "", 0},
		{"304 with Location", httpStatus(304, "Location: /bad"), "", 0},
		{"- endless header section", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxHead), observation.WordGarbage, 0},
	} {
		t.Run(v.id, func(t *testing.T) {
			app := newRawApp(t, "127.0.0.1:0", text(v.answer))
			wantOutcome(t, try(t, get(app.port), harness.Patience), v.word, v.code)
			harness.Equal(t, len(app.hits()), 1, "requests")
		})
	}
}

func TestHTTPProbeResetFailsWithReset(t *testing.T) {
	app := newRawApp(t, "127.0.0.1:0", func(c *net.TCPConn, _ string) { _ = c.SetLinger(0) })
	wantOutcome(t, try(t, get(app.port), harness.Patience), observation.WordReset, 0)
}

func TestHTTPProbeFailsOnlyWithoutResponse(t *testing.T) {
	over := make(chan struct{})
	silent := newRawApp(t, "127.0.0.1:0", func(*net.TCPConn, string) { <-over })
	wantOutcome(t, try(t, get(silent.port), 50*time.Millisecond), observation.WordTimeout, 0)

	slow := newRawApp(t, "127.0.0.1:0", func(c *net.TCPConn, _ string) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nx")
		<-over
	})
	t.Cleanup(func() { close(over) }) // runs before the cleanups that wait for the apps
	// The attempt reads the body until its timeout.
	harness.ScaleTime(t, func(scale int) (inTime bool) {
		err := try(t, get(slow.port), time.Duration(scale)*50*time.Millisecond)
		if failed(err).word == observation.WordTimeout {
			return false
		}
		harness.Equal(t, err, nil, "200 and an endless body")
		return true
	})
}

func TestRefusedConnectionFailsWithRefused(t *testing.T) {
	port := int32(refusedPort(t))
	for name, a := range map[string]attemptFunc{
		"http":        get(port),
		"h2c or http": first(newHTTPAttempt(&HTTPGetAction{Port: Port{Number: port}}, true)),
		"https":       first(newHTTPAttempt(&HTTPGetAction{Port: Port{Number: port}, Scheme: "HTTPS"}, false)),
		"tcp":         first(newTCPAttempt(&TCPSocketAction{Port: Port{Number: port}})),
		"grpc":        first(newGRPCAttempt(&GRPCAction{Port: port})),
	} {
		t.Run(name, func(t *testing.T) { wantOutcome(t, try(t, a, harness.Patience), observation.WordRefused, 0) })
	}
}

func TestUnknownHostIsUnreachable(t *testing.T) {
	connect, _ := newTCPAttempt(&TCPSocketAction{Port: Port{Number: 80}, Host: "no-such-host.invalid"})
	err := try(t, connect, harness.Patience)
	if w := failed(err).word; w != observation.WordUnreachable && w != observation.WordTimeout { // the resolver can be slow
		t.Errorf("got %s (%v), want unreachable", w, err)
	}
}

func TestRedirects(t *testing.T) {
	hops := func(n int) map[string]string { // n redirects, then 200
		m := map[string]string{"*": httpStatus(200)}
		for i := range n {
			from := "/h"
			if i > 0 {
				from = fmt.Sprintf("/%d", i)
			}
			m[from] = httpStatus(302, fmt.Sprintf("Location: /%d", i+1))
		}
		return m
	}
	for _, v := range []struct {
		id      string
		answers map[string]string
		word    observation.ReadinessWord
		code    int
		hits    int
		warned  bool
	}{
		{"to 200", map[string]string{"/h": httpStatus(302, "Location: /final"), "/final": httpStatus(200)}, "", 0, 2, false},
		{"to 500", map[string]string{"/h": httpStatus(302, "Location: /bad"), "/bad": httpStatus(500)}, observation.WordStatus, 500, 2, false},
		{"307", map[string]string{"/h": httpStatus(307, "Location: /final"), "/final": httpStatus(200)}, "", 0, 2, false},
		{"to another host", map[string]string{"/h": httpStatus(302, "Location: http://192.0.2.1/final")}, "", 0, 1, true},
		{"to another name", map[string]string{"/h": httpStatus(301, "Location: https://example.com/login")}, "", 0, 1, true},
		{"to another scheme", map[string]string{"/h": httpStatus(301, "Location: ftp://127.0.0.1/x")}, observation.WordRedirect, 0, 1, false},
		{"nine hops", hops(9), "", 0, 10, false},
		{"ten hops", hops(10), observation.WordRedirect, 0, 10, false},
		{"loop", map[string]string{"/h": httpStatus(302, "Location: /h")}, observation.WordRedirect, 0, 10, false},
	} {
		t.Run(v.id, func(t *testing.T) {
			app := newRawApp(t, "127.0.0.1:0", paths(v.answers))
			err := try(t, get(app.port), harness.Patience)
			wantOutcome(t, err, v.word, v.code)
			harness.Equal(t, passes(err) && err != nil, v.warned, "warning", err)
			harness.Equal(t, len(app.hits()), v.hits, "requests")
		})
	}
}

func TestRedirectToOtherPortIsFollowed(t *testing.T) {
	final := newRawApp(t, "127.0.0.1:0", text(httpStatus(200)))
	app := newRawApp(t, "127.0.0.1:0", text(httpStatus(302, fmt.Sprintf("Location: http://127.0.0.1:%d/final", final.port))))
	harness.Equal(t, try(t, get(app.port), harness.Patience), nil)
	harness.Equal(t, len(final.hits()), 1, "requests to the other port")
}

// The probe passes with a warning, as after a redirect to another host. The kubelet would follow the redirect.
func TestRedirectToSidecarPortIsNotFollowed(t *testing.T) {
	own := newRawApp(t, "127.0.0.1:0", text(httpStatus(200)))
	for location, followed := range map[string]bool{
		fmt.Sprintf("http://127.0.0.1:%d/wait-for-drain", own.port): false,
		fmt.Sprintf("https://127.0.0.1:%d/", own.port):              false,
		fmt.Sprintf("//127.0.0.1:0%d/", own.port):                   false,
		"http://127.0.0.1/": false, // port 80
		"/further":          true,
	} {
		app := newRawApp(t, "127.0.0.1:0", paths(map[string]string{"/h": httpStatus(302, "Location: "+location), "*": httpStatus(200)}))
		for _, detect := range []bool{false, true} {
			get, _ := newHTTPAttempt(&HTTPGetAction{Path: "/h", Port: Port{Number: app.port}}, detect, 80, int(own.port))
			err := try(t, get, harness.Patience)
			wantOutcome(t, err, "", 0)
			if warned := err != nil; warned == followed {
				t.Errorf("%s: got warning %v (%v), want %v", location, warned, err, !followed)
			}
		}
	}
	if got := own.hits(); len(got) > 0 {
		t.Errorf("got requests %q to the sidecar, want none", got)
	}
}

func TestRedirectToHTTPSOnPlainPortFailsWithTLS(t *testing.T) {
	plain := newWebApp(t, 200, 0)
	app := newRawApp(t, "127.0.0.1:0", text(httpStatus(301, fmt.Sprintf("Location: https://127.0.0.1:%d/", plain.port))))
	wantOutcome(t, try(t, get(app.port), harness.Patience), observation.WordTLS, 0)
}

func TestHTTPProbeRequestHeader(t *testing.T) {
	for _, v := range []struct {
		id   string
		get  HTTPGetAction
		want []string // lines of the header section; PORT is replaced with the port
	}{
		{"same as the kubelet", HTTPGetAction{Path: "/h"}, []string{
			"GET /h HTTP/1.1", "Host: 127.0.0.1:PORT", "User-Agent: kube-probe/1.35", "Accept: */*", "Connection: close",
		}},
		{"empty host", HTTPGetAction{Host: ""}, []string{
			"GET / HTTP/1.1", "Host: 127.0.0.1:PORT", "User-Agent: kube-probe/1.35", "Accept: */*", "Connection: close",
		}},
		{"repeated fields keep their order", HTTPGetAction{HTTPHeaders: []HTTPHeader{{"X-a", "1"}, {"x-A", "2"}}}, []string{
			"GET / HTTP/1.1", "Host: 127.0.0.1:PORT", "User-Agent: kube-probe/1.35", "Accept: */*", "X-A: 1", "X-A: 2", "Connection: close",
		}},
		{"user-defined Host, User-Agent and Accept", HTTPGetAction{HTTPHeaders: []HTTPHeader{
			{"host", "foo.bar"}, {"user-agent", "mine"}, {"accept", "text/plain"},
		}}, []string{
			"GET / HTTP/1.1", "Host: foo.bar", "User-Agent: mine", "Accept: text/plain", "Connection: close",
		}},
		{"empty Accept removes the field", HTTPGetAction{HTTPHeaders: []HTTPHeader{{"Accept", ""}}}, []string{
			"GET / HTTP/1.1", "Host: 127.0.0.1:PORT", "User-Agent: kube-probe/1.35", "Connection: close",
		}},
	} {
		t.Run(v.id, func(t *testing.T) {
			app := newRawApp(t, "127.0.0.1:0", text(httpStatus(200)))
			v.get.Port.Number = app.port
			get, _ := newHTTPAttempt(&v.get, false)
			harness.NoError(t, try(t, get, harness.Patience))
			got := strings.Split(strings.TrimSuffix(app.hits()[0], "\r\n"), "\r\n")
			want := strings.Split(strings.ReplaceAll(strings.Join(v.want, "\n"), "PORT", fmt.Sprint(app.port)), "\n")
			harness.Equal(t, byName(got), byName(want))
		})
	}
}

// byName returns the lines of a header section, sorted by the names of the fields. Fields with the same name keep
// their order.
func byName(head []string) string {
	slices.SortStableFunc(head[1:], func(a, b string) int {
		nameA, _, _ := strings.Cut(a, ":")
		nameB, _, _ := strings.Cut(b, ":")
		return strings.Compare(nameA, nameB)
	})
	return strings.Join(head, "\n")
}

func TestHTTPProbePathIsUnchanged(t *testing.T) {
	for path, want := range map[string]string{
		"":              "/",
		"/":             "/",
		"h":             "/h",
		"/a?b=c":        "/a?b=c",
		"?q=1":          "/?q=1",
		"/a?b=c;d&e=%z": "/a?b=c;d&e=%z",
		"/a?b=c d\né":   "/a?b=c%20d%0A%C3%A9",
		"/a b":          "/a%20b",
		"/a#f":          "/a",
		"//x/y":         "//x/y",
		"a/../b":        "/a/../b",
		"http://evil/":  "/http://evil/",
		"/a%zz":         "/a%25zz", // as in the kubelet
		"/%2f%41":       "/%2f%41",
		"/a\r\nX: y":    "/a%0D%0AX:%20y",
	} {
		t.Run(path, func(t *testing.T) {
			app := newRawApp(t, "127.0.0.1:0", text(httpStatus(200)))
			get, _ := newHTTPAttempt(&HTTPGetAction{Path: path, Port: Port{Number: app.port}}, false)
			harness.NoError(t, try(t, get, harness.Patience))
			line, _, _ := strings.Cut(app.hits()[0], "\r\n")
			harness.Equal(t, line, "GET "+want+" HTTP/1.1")
		})
	}
	t.Run("60000 bytes", func(t *testing.T) {
		app := newRawApp(t, "127.0.0.1:0", text(httpStatus(200)))
		get, _ := newHTTPAttempt(&HTTPGetAction{Path: "/" + strings.Repeat("x", 60000), Port: Port{Number: app.port}}, false)
		wantOutcome(t, try(t, get, harness.Patience), "", 0)
	})
}

func TestProxyIsNotUsed(t *testing.T) {
	if got := newOneShot(new(dialer).dial, http.Protocols{}).transport.Proxy; got != nil {
		t.Error("got a proxy function in the transport, want nil")
	}
}

func TestTimeoutClosesConnection(t *testing.T) {
	open := make(chan net.Conn, 10)
	l := harness.Listen(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open <- c
		}
	}()
	port, http2 := portOf(l.Addr()), "HTTP2"
	for name, a := range map[string]attemptFunc{
		"http":  get(port),
		"https": first(newHTTPAttempt(&HTTPGetAction{Port: Port{Number: port}, Scheme: "HTTPS"}, false)),
		"h2c":   first(newHTTPAttempt(&HTTPGetAction{Port: Port{Number: port}, Protocol: &http2}, false)),
		"grpc":  first(newGRPCAttempt(&GRPCAction{Port: port})),
	} {
		t.Run(name, func(t *testing.T) {
			wantOutcome(t, try(t, a, 50*time.Millisecond), observation.WordTimeout, 0)
			c := <-open
			defer c.Close()
			_ = c.SetReadDeadline(time.Now().Add(harness.Patience))
			if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got error %v in the app, want a closed connection", err)
			}
		})
	}
}

func TestHTTPSProbeSkipsVerificationAndSupportsHTTP2(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		var proto atomic.Value
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto.Store(r.Proto) }))
		app.EnableHTTP2 = h2
		app.StartTLS()
		t.Cleanup(app.Close)
		for _, auto := range []bool{false, true} {
			get, target := newHTTPAttempt(&HTTPGetAction{Port: Port{Number: portOf(app.Listener.Addr())}, Scheme: "HTTPS"}, auto)
			harness.Equal(t, try(t, get, harness.Patience), nil, "HTTP/2", h2)
			want := "HTTP/1.1"
			if h2 {
				want = "HTTP/2.0"
			}
			harness.Equal[any](t, proto.Load(), want, "protocol")
			if !strings.HasPrefix(target, "https://127.0.0.1:") {
				t.Errorf("target: got %s, want https://127.0.0.1:...", target)
			}
		}
	}
}

func TestHTTPSProbeOfPlainPortFailsWithTLS(t *testing.T) {
	plain := newWebApp(t, 200, 0)
	get, _ := newHTTPAttempt(&HTTPGetAction{Port: Port{Number: plain.port}, Scheme: "HTTPS"}, false)
	wantOutcome(t, try(t, get, harness.Patience), observation.WordTLS, 0)
}

// newTLSApp starts an app that only supports HTTPS.
func newTLSApp(t *testing.T, clients tls.ClientAuthType) *httptest.Server {
	t.Helper()
	app := httptest.NewUnstartedServer(http.NotFoundHandler())
	app.Config.ErrorLog = discardLog()
	app.TLS = &tls.Config{ClientAuth: clients}
	app.StartTLS()
	t.Cleanup(app.Close)
	return app
}

func TestHTTPProbeOfTLSPortFailsWithStatus(t *testing.T) {
	app := newTLSApp(t, tls.NoClientCert)
	wantOutcome(t, try(t, get(portOf(app.Listener.Addr())), harness.Patience), observation.WordStatus, 400)
}

func TestRequiredClientCertificateFailsWithTLS(t *testing.T) {
	app := newTLSApp(t, tls.RequireAnyClientCert)
	get, _ := newHTTPAttempt(&HTTPGetAction{Port: Port{Number: portOf(app.Listener.Addr())}, Scheme: "HTTPS"}, false)
	wantOutcome(t, try(t, get, harness.Patience), observation.WordTLS, 0)
}

// If the alert arrives while the request is written, the write fails, but the error must still be the alert.
func TestAlertIsReportedAfterWriteError(t *testing.T) {
	app := newTLSApp(t, tls.RequireAnyClientCert)
	var h1 http.Protocols
	h1.SetHTTP1(true)
	late := make(lateBody)
	o := newOneShot(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &closeConn{Conn: conn, closed: late}, err
	}, h1)
	req, _ := http.NewRequestWithContext(t.Context(), "POST", app.URL, late)
	req.ContentLength = 1
	if _, err := o.RoundTrip(req); wordOf(err) != observation.WordTLS {
		t.Errorf("got %q, %v, want %q", wordOf(err), err, observation.WordTLS)
	}
}

// A lateBody is a request body that becomes available when the connection is closed.
type lateBody chan struct{}

func (b lateBody) Read(p []byte) (int, error) {
	select {
	case <-b:
	case <-time.After(harness.Patience):
	}
	return copy(p, "x"), io.EOF
}

// A closeConn closes a channel when it is closed.
type closeConn struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (c *closeConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

func TestProbeConnectsToIPv6Loopback(t *testing.T) {
	app := newRawApp(t, "[::1]:0", text(httpStatus(200)))
	port := Port{Number: app.port}
	for name, a := range map[string]attemptFunc{
		"http with host":     first(newHTTPAttempt(&HTTPGetAction{Port: port, Host: "::1"}, false)),
		"http with brackets": first(newHTTPAttempt(&HTTPGetAction{Port: port, Host: "[::1]"}, false)),
		"http without IPv4":  get(app.port),
		"tcp with host":      first(newTCPAttempt(&TCPSocketAction{Port: port, Host: "::1"})),
		"tcp without IPv4":   first(newTCPAttempt(&TCPSocketAction{Port: port})),
	} {
		t.Run(name, func(t *testing.T) { wantOutcome(t, try(t, a, harness.Patience), "", 0) })
	}
	t.Run("tcp with IPv4 host", func(t *testing.T) {
		wantOutcome(t, try(t, first(newTCPAttempt(&TCPSocketAction{Port: port, Host: "127.0.0.1"})), harness.Patience), observation.WordRefused, 0)
	})
	for _, head := range app.hits() {
		if strings.Contains(head, "[[") {
			t.Errorf("got %q, want a valid Host", head)
		}
	}
}

func first(a attemptFunc, _ string) attemptFunc { return a }

// get returns an attempt that requests /h on a port over HTTP/1.1.
func get(port int32) attemptFunc {
	return first(newHTTPAttempt(&HTTPGetAction{Path: "/h", Port: Port{Number: port}}, false))
}

func TestTCPProbePassesIfPortAccepts(t *testing.T) {
	silent := newRawApp(t, "127.0.0.1:0", func(*net.TCPConn, string) {})
	for range 3 {
		wantOutcome(t, try(t, first(newTCPAttempt(&TCPSocketAction{Port: Port{Number: silent.port}})), harness.Patience), "", 0)
	}
	if got := silent.hits(); len(got) != 0 {
		t.Errorf("app received %q, want no data", got)
	}

	l := harness.Listen(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}()
	for range 10 {
		wantOutcome(t, try(t, first(newTCPAttempt(&TCPSocketAction{Port: Port{Number: portOf(l.Addr())}})), harness.Patience), "", 0)
	}
}

func TestErrorsHaveWords(t *testing.T) {
	for want, err := range map[observation.ReadinessWord]error{
		observation.WordTimeout: fmt.Errorf("x: %w", context.DeadlineExceeded),
		observation.WordGarbage: errors.New("other error"),
		observation.WordReset:   fmt.Errorf("x: %w", io.ErrUnexpectedEOF),
		observation.WordStatus:  fmt.Errorf("x: %w", &failure{word: observation.WordStatus, code: 500, err: errors.New("y")}),
	} {
		harness.Equal(t, failed(err).word, want, err)
	}
	seen := map[observation.ReadinessWord]bool{}
	for _, w := range observation.ReadinessWords() {
		if seen[w] || w == "" {
			t.Errorf("got word %q, want unique words that are not empty", w)
		}
		seen[w] = true
	}
}

func TestRedirectWithoutPortUsesDefaultPort(t *testing.T) {
	for target, want := range map[string]string{
		"http://127.0.0.1/": "127.0.0.1:80", "https://127.0.0.1/": "127.0.0.1:443", "http://[::1]/": "[::1]:80", "http://127.0.0.1:81/": "127.0.0.1:81",
	} {
		req, err := http.NewRequest("GET", target, nil)
		harness.NoError(t, err)
		var got string
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		dial := func(_ context.Context, _, address string) (net.Conn, error) {
			got = address
			return nil, errors.New("refused")
		}
		if resp, err := newOneShot(dial, protocols).RoundTrip(req); err == nil {
			resp.Body.Close()
		}
		harness.Equal(t, got, want, target, "dialled")
	}
}
