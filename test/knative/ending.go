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

// drainService is a Service with a short timeoutSeconds, which is also the grace period of the pod.
// The quiet period is 8.5 s and the deadline is 17 s.
const drainService = "timeout-of-the-drain"

// remove stops the pod like the kubelet. It sends SIGTERM to the sidecar, which has no preStop hook,
// runs the preStop hook of the user container, and then calls terminate.
func (p *pod) remove(terminate func()) {
	p.t.Helper()
	p.sidecar.terminate()
	if err := p.preStop(p.container(p.t, userContainer)); err != nil {
		p.t.Errorf("preStop hook: %v", err)
	}
	terminate()
}

func (p *pod) grace() time.Duration {
	return time.Duration(*p.pod.TerminationGracePeriodSeconds) * time.Second
}

// exits fails the test unless the sidecar exits with code 0.
func (p *pod) exits() {
	p.t.Helper()
	if code := p.sidecar.code(); code != 0 {
		p.t.Errorf("sidecar: got exit code %d, want 0", code)
	}
}

func (p *pod) webSocket(path string) *websocket.Conn {
	p.t.Helper()
	dialer := websocket.Dialer{HandshakeTimeout: patience}
	c, answer, err := dialer.Dial("ws://"+p.addr()+path, nil)
	if err != nil {
		p.t.Fatalf("WebSocket handshake: got %v, %v", answer, err)
	}
	_ = answer.Body.Close()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo sends a message and checks that the application returns it.
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

// As in Knative's TestWebSocketGracefulShutdown, the client receives the Close frame of the app with
// code 1000 when the pod is deleted, and not the Close frame of the sidecar with code 1001. If the
// app sends no Close frame, the connection is closed when the app exits.
func webSocketReceivesCloseOfApp(t *testing.T, r *Release) {
	for _, service := range []string{"plain", drainService} {
		t.Run(service, func(t *testing.T) { testWebSocketClose(t, r, service) })
	}
}

func testWebSocketClose(t *testing.T, r *Release, service string) {
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
			time.Sleep(100 * time.Millisecond) // wait, because the app checks for SIGTERM only between messages
		}
	}()
	p.remove(app.terminate)
	err := receive(t, "the WebSocket ends", closed)
	want := websocket.CloseAbnormalClosure
	if r.ClosesWebSockets {
		want = websocket.CloseNormalClosure
	}
	if !websocket.IsCloseError(err, want) {
		t.Errorf("got %v, want close code %d", err, want)
	}
	app.code()
	_ = c.Close()
	p.exits()
	if took, most := time.Since(begun), min(p.grace(), patience); took > most {
		t.Errorf("time to stop the pod: got %v, want at most %v", took, most)
	}
}

// The client of an event stream receives the last event from the stopping app, and the response
// ends normally.
func eventStreamEndsWithLastEvent(t *testing.T, _ *Release) {
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
		t.Errorf("got last event %q, %v, want data: bye at the end of the stream", last, lines.Err())
	}
	p.exits()
	if took := time.Since(begun); took > p.grace() {
		t.Errorf("time to stop the pod: got %v, want at most the grace period (%v)", took, p.grace())
	}
}

// serveHTTP starts an app with the given handler instead of the user container.
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

// The hook delays the app's termination for a request that takes longer than the quiet period,
// and the client receives the complete response.
func drainWaitsForRequest(t *testing.T, _ *Release) {
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
	answer, err := p.client.Do(r) // the app is processing the request, because the first byte of the response has arrived
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
			t.Error("the hook returned before the end of the response")
		}
		app.terminate()
	})
	got := receive(t, "the response is complete", answered)
	if want := "Slept for 11000 milliseconds"; got.err != nil || got.body != want {
		t.Errorf("got %q, %v, want %q", got.body, got.err, want)
	}
	p.exits()
}

// As in Knative's TestWebSocketWithTimeout, a timeout closes a WebSocket. Only the idle
// timeout applies to WebSockets.
func onlyIdleTimeoutEndsWebSocket(t *testing.T, _ *Release) {
	for _, c := range []struct {
		fact, service, delay string
		cut                  bool
	}{
		{"AfterTimeoutSeconds", "timeout-shortest", "2", false},
		{"BeforeIdleTimeoutSeconds", "websocket-idle", "1", false},
		{"AfterIdleTimeoutSeconds", "websocket-idle", "4", true},
	} {
		t.Run(c.fact, func(t *testing.T) {
			p := newPod(t, c.service)
			p.start()
			p.image("wsserver")
			if err := echo(p.webSocket("/?delay=" + c.delay)); (err != nil) != c.cut {
				t.Errorf("got %v, want an error: %v", err, c.cut)
			}
		})
	}
}

// As in Knative's TestRevisionTimeout, timeoutSeconds applies to the complete request. Before
// Knative 1.19, it applied only to the time until the first byte. A response that has not begun at
// the timeout is replaced with status 504, and any other response is truncated.
func timeoutSecondsFollowsRelease(t *testing.T, r *Release) {
	p := newPod(t, "timeout-shortest")
	p.start()
	p.image("timeout")
	p.waitUntilReady()
	answer, body := p.get(p.url("/?initialTimeout=2500"))
	if answer.StatusCode != http.StatusGatewayTimeout || body != "request timeout" {
		t.Errorf("response after the timeout: got %s %q, want 504 %q", answer.Status, body, "request timeout")
	}
	answer, body, err := p.ask(p.client, p.url("/?initialTimeout=100&timeout=100"))
	if want := "Slept for 100 milliseconds"; err != nil || body != want {
		t.Errorf("response before the timeout: got %v, %q, %v, want %q", answer, body, err, want)
	}
	_, body, err = p.ask(p.client, p.url("/?timeout=2500"))
	if whole := strings.HasPrefix(body, "Slept for"); r.OTLP {
		if !errors.Is(err, io.ErrUnexpectedEOF) || body != "" {
			t.Errorf("end of the response after the timeout: got %q, %v, want a truncated response", body, err)
		}
	} else if err != nil || !whole {
		t.Errorf("first byte of the response before the timeout: got %q, %v, want a complete response", body, err)
	}
}
