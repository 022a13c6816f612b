package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
)

// A streamer is a user container that serves event streams. When the test simulates SIGTERM, the
// streamer ends the streams with its own final message.
type streamer struct{ sigterm chan struct{} }

func newStreamer() *streamer { return &streamer{make(chan struct{})} }

// eventInterval is the time between two events.
const eventInterval = 10 * time.Millisecond

func (a *streamer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/now":
		return
	case "/ws":
		a.serveWebSocket(w, r)
		return
	case "/events":
		w.Header().Set("Content-Type", "text/event-stream")
	case "/grpc":
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
	}
	control := http.NewResponseController(w)
	for {
		io.WriteString(w, "event\n")
		control.Flush()
		select {
		case <-time.After(eventInterval):
			continue
		case <-a.sigterm:
		case <-r.Context().Done():
			return
		}
		io.WriteString(w, "goodbye\n")
		w.Header().Set("Grpc-Status", "0")
		return
	}
}

func (a *streamer) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	ctx := c.CloseRead(r.Context())
	for {
		c.Write(ctx, websocket.MessageText, []byte("event\n"))
		select {
		case <-time.After(eventInterval):
		case <-a.sigterm:
			c.Close(websocket.StatusNormalClosure, "goodbye")
			return
		case <-ctx.Done():
			return
		}
	}
}

// A stream reads a long-running response. next returns the next event. end waits for the normal
// end of the response and returns its last message.
type stream struct {
	next func() (string, error)
	end  func() (string, error)
}

// streamKinds contains functions that open streams, by protocol. A drain does not wait for
// these streams.
var streamKinds = map[string]func(t *testing.T, p *proxy) stream{
	"WebSocket": func(t *testing.T, p *proxy) stream {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		t.Cleanup(cancel)
		c, _, err := websocket.Dial(ctx, "ws://"+p.addr()+"/ws", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.CloseNow() })
		read := func() (string, error) {
			_, b, err := c.Read(ctx)
			return string(b), err
		}
		return stream{read, func() (string, error) {
			var err error
			for err == nil {
				_, err = read()
			}
			if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
				return "", fmt.Errorf("got close code %v, %w", code, err)
			}
			return "goodbye\n", nil
		}}
	},
	"event stream over HTTP/1.1": func(t *testing.T, p *proxy) stream { return openEvents(t, p, "h1") },
	"event stream over HTTP/2":   func(t *testing.T, p *proxy) stream { return openEvents(t, p, "h2c") },
	"gRPC call": func(t *testing.T, p *proxy) stream {
		c := dialH2(t, p.addr())
		c.open(1, true, "POST", "/grpc", "Content-Type: application/grpc", "TE: trailers")
		return stream{func() (string, error) {
			before, _ := c.seen()
			c.await("an event", func(h2Event) bool {
				events, _ := c.seen()
				return len(events) > len(before)
			})
			return "event\n", nil
		}, func() (string, error) {
			a := c.answer(1)
			if a.cut || !slices.Contains(c.trailer(1), field{"grpc-status", "0"}) {
				return "", fmt.Errorf("got %+v, want trailers with grpc-status 0", a)
			}
			return lastLine(a.body), nil
		}}
	},
}

// trailer returns the trailer fields of a response.
func (p *h2Peer) trailer(stream uint32) (fields []field) {
	events, _ := p.seen()
	for _, e := range events {
		if e.stream == stream && e.frame == http2.FrameHeaders && e.end {
			fields = e.fields
		}
	}
	return fields
}

func lastLine(text string) string {
	return text[strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n")+1:]
}

func openEvents(t *testing.T, p *proxy, protocol string) stream {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", p.url("/events"), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := httpClient(t, protocol).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	event := make([]byte, len("event\n"))
	return stream{func() (string, error) {
		_, err := io.ReadFull(answer.Body, event)
		return string(event), err
	}, func() (string, error) {
		b, err := io.ReadAll(answer.Body)
		return lastLine(string(b)), err
	}}
}

// expectEvent fails the test unless the stream returns an event.
func (s stream) expectEvent(t *testing.T, when string) {
	t.Helper()
	if got := within(t, "an event "+when, s.next); got != "event\n" {
		t.Fatalf("%s: got %q, want event", when, got)
	}
}

// wantFinalMessage fails the test unless the stream ends with the message of the app.
func (s stream) wantFinalMessage(t *testing.T) {
	t.Helper()
	if got := within(t, "the end of the stream", s.end); got != "goodbye\n" {
		t.Errorf("the stream ended with %q, want goodbye", got)
	}
}

// refused returns nil if connections are refused.
func (p *proxy) refused() error {
	c, err := net.DialTimeout("tcp", p.addr(), time.Second)
	if err == nil {
		c.Close()
		return errNotYet
	}
	return nil
}

// As in Knative's TestWebSocketGracefulShutdown, an app with open streams receives SIGTERM
// after the quiet period and ends its streams (docs/promises.md 3.5).
func TestAppEndsStreamsAfterQuietPeriod(t *testing.T) {
	for name, open := range streamKinds {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start("DRAIN_QUIET_PERIOD=300ms", "DRAIN_DEADLINE=1h")
			app := newStreamer()
			p.app(app)
			s := open(t, p)
			s.expectEvent(t, "at first")
			other := dialH2(t, p.addr()) // the open stream must keep this connection open
			other.open(1, true, "GET", "/events")
			other.await("an event", func(e h2Event) bool { return e.data != "" })

			hook := returned(p.preStop("/wait-for-drain"))
			p.draining()
			p.signal(syscall.SIGTERM)
			receive(t, "the hook returns while the stream is open", hook)
			s.expectEvent(t, "after the hook")
			p.poll("new connections are refused", p.refused)
			other.open(3, true, "GET", "/now")
			if a := other.answer(3); a.status != 503 || a.body != shuttingDown || word(a.get("Proxy-Status")) != "draining" {
				t.Errorf("request on an open connection: got %+v, want 503 shutting down, draining", a)
			}
			receive(t, "/wait-for-drain returns immediately", returned(p.preStop("/wait-for-drain")))

			close(app.sigterm)
			s.wantFinalMessage(t)
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
			if !p.out.HasLine(`"only streams remain`, `"streams":2`) {
				t.Error("no log line with the number of remaining streams")
			}
		})
	}
}

// Idle HTTP/2 connections are closed before the streams of other connections end.
func TestDrainClosesIdleHTTP2BeforeStreamsEnd(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=300ms", "DRAIN_DEADLINE=1h")
	app := newStreamer()
	p.app(app)
	s := streamKinds["event stream over HTTP/1.1"](t, p)
	s.expectEvent(t, "at first")
	idle := dialH2(t, p.addr())
	idle.open(1, true, "GET", "/now")
	idle.answer(1)
	p.signal(syscall.SIGTERM)
	if all := idle.goAways(); len(all) < 2 {
		t.Errorf("got %v, want at least two GOAWAY frames", all)
	}
	s.expectEvent(t, "after the end of the idle connection")
	close(app.sigterm)
	s.wantFinalMessage(t)
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// The drain waits for all responses that are not streams, and with DRAIN_STREAMS=wait also for
// streams.
func TestDrainWaitsForOtherResponses(t *testing.T) {
	for name, c := range map[string]struct {
		env    string
		method string
		target string
	}{
		"a download":                    {"DRAIN_STREAMS=end", "GET", "/download"},
		"events in response to POST":    {"DRAIN_STREAMS=", "POST", "/events"},
		"events, with DRAIN_STREAMS":    {"DRAIN_STREAMS=wait", "GET", "/events"},
		"WebSocket, with DRAIN_STREAMS": {"DRAIN_STREAMS=wait", "GET", "/ws"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=1h", c.env)
			app := newStreamer()
			p.app(app)
			w := dial(t, p.addr())
			w.send(request(c.method, c.target, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
				"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="))
			if m, err := readHead(w.r); err != nil || m.status() != 200 && m.status() != 101 {
				t.Fatalf("got %+v, %v, want a response", m, err)
			}
			hook := returned(p.preStop("/wait-for-drain"))
			p.draining()
			p.signal(syscall.SIGTERM)
			p.watch(500*time.Millisecond, func() {
				select {
				case <-hook:
					t.Fatal("the hook returned while a response was in progress")
				default:
				}
			})
			close(app.sigterm)
			if c.target == "/ws" {
				w.Close()
			} else {
				go io.Copy(io.Discard, w.r)
			}
			receive(t, "the hook returns", hook)
			w.Close()
			if got := p.code(); got != 0 {
				t.Errorf("got exit code %d, want 0", got)
			}
		})
	}
}

// A native sidecar receives SIGTERM after the app has stopped.
func TestAppEndsStreamsWithNativeSidecar(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_ENDPOINT=true", "DRAIN_QUIET_PERIOD=300ms", "DRAIN_DEADLINE=1h")
	app := newStreamer()
	p.app(app)
	s := streamKinds["WebSocket"](t, p)
	s.expectEvent(t, "at first")
	hook := returned(p.preStop("/wait-for-drain"))
	receive(t, "/drain returns immediately", returned(p.preStop("/drain")))
	receive(t, "the hook of the app returns while the stream is open", hook)
	s.expectEvent(t, "after the hook")
	close(app.sigterm)
	s.wantFinalMessage(t)
	p.awaitLog(`"message":"drained"`)
	if p.ended() {
		t.Error("the sidecar exited before the signal")
	}
	p.signal(syscall.SIGTERM)
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
}

// Streams that the app does not end are aborted at the deadline.
func TestDrainDeadlineAbortsStreams(t *testing.T) {
	p := newProxy(t)
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=1500ms")
	p.app(newStreamer())
	socket := streamKinds["WebSocket"](t, p)
	socket.expectEvent(t, "at first")
	events := streamKinds["event stream over HTTP/1.1"](t, p)
	events.expectEvent(t, "at first")
	hook := returned(p.preStop("/wait-for-drain"))
	p.draining()
	p.signal(syscall.SIGTERM)
	receive(t, "the hook returns", hook)
	socket.expectEvent(t, "after the hook")
	events.expectEvent(t, "after the hook")
	if _, err := events.end(); err == nil {
		t.Error("the event stream ended without an error, want an error")
	}
	if _, err := socket.end(); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("got WebSocket error %v, want close code 1001", err)
	}
	if got := p.code(); got != 0 {
		t.Errorf("got exit code %d, want 0", got)
	}
	if !p.out.HasLine(`"reason":"draining"`, `"phase":"streaming"`) {
		t.Error("no log line with reason draining and phase streaming")
	}
}
