package knative

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// drainService has a short timeoutSeconds, which is the pod's grace period too: the
// quiet period is 8.5 s, the deadline 17 s.
const drainService = "timeout-of-the-drain"

// remove does what the kubelet does to a pod that is deleted: SIGTERM to the sidecar, which
// has no preStop hook; the hook of the user container, and then what terminate does to it.
// It returns when the hook has returned.
func (p *pod) remove(terminate func()) {
	p.t.Helper()
	p.sidecar.terminate()
	if err := p.preStop(p.container(p.t, userContainer)); err != nil {
		p.t.Errorf("the preStop hook: %v", err)
	}
	terminate()
}

func (p *pod) grace() time.Duration {
	return time.Duration(*p.pod.TerminationGracePeriodSeconds) * time.Second
}

// exits fails the test unless the sidecar ends well.
func (p *pod) exits() {
	p.t.Helper()
	if code := p.sidecar.code(); code != 0 {
		p.t.Errorf("got exit code %d of the sidecar, want 0", code)
	}
}

func (p *pod) webSocket(path string) *websocket.Conn {
	p.t.Helper()
	dialer := websocket.Dialer{HandshakeTimeout: patience}
	c, answer, err := dialer.Dial("ws://"+p.addr()+path, nil)
	if err != nil {
		p.t.Fatalf("got %v, %v, want a WebSocket", answer, err)
	}
	_ = answer.Body.Close()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo sends a message and wants it back.
func echo(c *websocket.Conn) error {
	if err := c.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		return err
	}
	_, got, err := c.ReadMessage()
	if err == nil && string(got) != "hello" {
		err = fmt.Errorf("got message %q, want hello", got)
	}
	return err
}

// This is Knative's TestWebSocketGracefulShutdown: the client of a pod that is deleted
// gets the close frame of the app, 1000, no cut and no frame of ours, 1001. Where the app
// has no frame to send, the connection ends with the app.
func aWebSocketGetsTheAppsOwnClose(t *testing.T, r *Release) {
	for _, service := range []string{"plain", drainService} {
		t.Run(service, func(t *testing.T) { webSocketGetsTheAppsOwnClose(t, r, service) })
	}
}

func webSocketGetsTheAppsOwnClose(t *testing.T, r *Release, service string) {
	p := newPod(t, service)
	p.start()
	app := p.image("wsserver")
	c := p.webSocket("/")
	if err := echo(c); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	closed := make(chan error, 1)
	go func() {
		for {
			if err := echo(c); err != nil {
				closed <- err
				return
			}
			time.Sleep(100 * time.Millisecond) // the app looks for its SIGTERM between messages
		}
	}()
	p.remove(app.terminate)
	err := receive(t, "the WebSocket is closed", closed)
	want := websocket.CloseAbnormalClosure
	if r.ClosesWebSockets {
		want = websocket.CloseNormalClosure
	}
	if !websocket.IsCloseError(err, want) {
		t.Errorf("got %v, want the app's own end, %d", err, want)
	}
	app.code()
	_ = c.Close()
	p.exits()
	if took, most := time.Since(begun), min(p.grace(), patience); took > most {
		t.Errorf("the pod took %v to end, want at most %v", took, most)
	}
}

// A client of an event stream gets the last event of an app that ends, and a proper end.
func anEventStreamEndsWithTheAppsLastEvent(t *testing.T, _ *Release) {
	p := newPod(t, drainService)
	p.start()
	sigterm := make(chan struct{})
	p.serveHTTP(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w).Flush
		for {
			select {
			case <-sigterm:
				_, _ = io.WriteString(w, "data: bye\n\n")
				return
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
				_, _ = io.WriteString(w, "data: event\n\n")
				_ = flush()
			}
		}
	})
	p.waitUntilReady()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.url("/events"), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	begun := time.Now()
	go p.remove(func() { close(sigterm) })
	last := ""
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	if last != "data: bye" || lines.Err() != nil {
		t.Errorf("got %q at last and %v, want the app's last event and a proper end", last, lines.Err())
	}
	p.exits()
	if took := time.Since(begun); took > p.grace() {
		t.Errorf("the pod took %v to end, want at most its grace period, %v", took, p.grace())
	}
}

// serveHTTP starts an app with one handler in place of the user container.
func (p *pod) serveHTTP(h http.HandlerFunc) {
	p.t.Helper()
	l, err := net.Listen("tcp", at(p.userPort()))
	if err != nil {
		p.t.Fatal(err)
	}
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(l) }()
	p.t.Cleanup(func() { _ = s.Close() })
}

// The hook keeps the app alive for an ordinary request that takes longer than the quiet
// period, and the client gets all of the answer.
func anOrdinaryRequestIsWaitedFor(t *testing.T, _ *Release) {
	p := newPod(t, drainService)
	p.start()
	app := p.image("timeout")
	p.waitUntilReady()
	type result struct {
		body string
		err  error
	}
	answered := make(chan result, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url("/?timeout=11000"), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := p.client.Do(r) // its first byte has come: it is in the app
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	go func() {
		b, err := io.ReadAll(answer.Body)
		answered <- result{string(b), err}
	}()
	p.remove(func() {
		select {
		case got := <-answered:
			answered <- got
		case <-time.After(time.Second):
			t.Error("the hook returned before the answer was complete")
		}
		app.terminate()
	})
	got := receive(t, "the request is answered", answered)
	if want := "Slept for 11000 milliseconds"; got.err != nil || got.body != want {
		t.Errorf("got %q, %v, want %q", got.body, got.err, want)
	}
	p.exits()
}

// Knative's TestWebSocketWithTimeout, for the clock that a WebSocket obeys with us.
func aWebSocketObeysTheIdleTimeoutAlone(t *testing.T, _ *Release) {
	for _, c := range []struct {
		fact, service, delay string
		cut                  bool
	}{
		{"TimeoutSecondsIsOver", "timeout-shortest", "2", false},
		{"IdleTimeoutSecondsIsNotOver", "websocket-idle", "1", false},
		{"IdleTimeoutSecondsIsOver", "websocket-idle", "4", true},
	} {
		t.Run(c.fact, func(t *testing.T) {
			p := newPod(t, c.service)
			p.start()
			p.image("wsserver")
			if err := echo(p.webSocket("/?delay=" + c.delay)); (err != nil) != c.cut {
				t.Errorf("got %v, want the connection cut: %v", err, c.cut)
			}
		})
	}
}

// Knative's TestRevisionTimeout: timeoutSeconds covers all of a request, before 1.19 only
// the time until its first byte. What is too late is answered 504, or visibly cut.
func timeoutSecondsMeansWhatTheReleaseMeans(t *testing.T, r *Release) {
	p := newPod(t, "timeout-shortest")
	p.start()
	p.image("timeout")
	p.waitUntilReady()
	answer, body := p.get(p.url("/?initialTimeout=2500"))
	if answer.StatusCode != http.StatusGatewayTimeout || body != "request timeout" {
		t.Errorf("no byte in time: got %s %q, want 504 %q", answer.Status, body, "request timeout")
	}
	answer, body, err := p.ask(p.client, p.url("/?initialTimeout=100&timeout=100"))
	if want := "Slept for 100 milliseconds"; err != nil || body != want {
		t.Errorf("in time: got %v, %q, %v, want %q", answer, body, err, want)
	}
	_, body, err = p.ask(p.client, p.url("/?timeout=2500"))
	if whole := strings.HasPrefix(body, "Slept for"); r.OTLP {
		if !errors.Is(err, io.ErrUnexpectedEOF) || body != "" {
			t.Errorf("first byte in time, not the last: got %q, %v, want a cut", body, err)
		}
	} else if err != nil || !whole {
		t.Errorf("first byte in time: got %q, %v, want all of it", body, err)
	}
}
