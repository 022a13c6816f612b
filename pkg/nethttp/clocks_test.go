package nethttp_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestEachClockFiresInItsPhase(t *testing.T) {
	const soon = 30 * time.Millisecond
	silent := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	begun := func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	for _, v := range []struct {
		name   string
		clocks queue.Clocks
		app    http.HandlerFunc
		reason queue.Reason
		phase  queue.Phase
		status int // 0: the response is cut
	}{
		{"request, before the response", queue.Clocks{Request: soon}, silent, queue.RequestTimeout, queue.Waiting, 504},
		{"response start", queue.Clocks{ResponseStart: soon, Request: time.Hour}, silent, queue.ResponseStartTimeout, queue.Waiting, 504},
		{"idle, before the response", queue.Clocks{Idle: soon}, silent, queue.IdleTimeout, queue.Waiting, 504},
		{"request, in the response", queue.Clocks{Request: soon}, begun, queue.RequestTimeout, queue.Streaming, 0},
		{"idle, in the response", queue.Clocks{Idle: soon, ResponseStart: time.Hour}, begun, queue.IdleTimeout, queue.Streaming, 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			proxy := startHandler(t, v.app, func(p *queue.Proxy, _ *proxytest.Options) { p.Clocks = v.clocks })
			for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
				c := proxy.Client(protocol)
				r, err := c.Get("http://" + proxy.Address + "/")
				harness.NoError(t, err)
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if v.status == 0 && (err == nil || string(body) != "begun") {
					t.Errorf("%s: got %q, %v, want a broken response", protocol, body, err)
				}
				if v.status != 0 && (r.StatusCode != v.status || string(body) != "request timeout" || err != nil) {
					t.Errorf("%s: got %d %q, %v, want %d", protocol, r.StatusCode, body, err, v.status)
				}
			}
			for _, o := range proxy.Observed(2) {
				if o.Reason != v.reason || o.Phase != v.phase {
					t.Errorf("got %v while %v, want %v while %v", o.Reason, o.Phase, v.reason, v.phase)
				}
			}
		})
	}
}

// A timer looks at the request at any time, also when it has just become a tunnel.
func TestAnUpgradeWhileATimerLooksIsNoRace(t *testing.T) {
	const clock = 300 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		// Real time: the upgrade is answered about when the clock of the request before,
		// which begins half a clock earlier, looks.
		time.Sleep(clock * 7 / 10)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: it\r\n\r\n")
	})}
	go server.Serve(ln)
	t.Cleanup(func() { server.Close() })
	proxy := start(t, ln.Addr().(*net.TCPAddr).Port, func(p *queue.Proxy, _ *proxytest.Options) { p.Clocks.ResponseStart = clock })
	for range 5 {
		first := proxy.Dial()
		first.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // whose ring is left to who has its exchange next
		first.Receive("GET")
		time.Sleep(clock / 2) // see the app
		c := proxy.Dial()
		c.Send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: it\r\n\r\n")
		if r, err := http.ReadResponse(c.In, nil); err != nil || r.StatusCode != 101 && r.StatusCode != 504 {
			t.Errorf("got %v, %v, want 101, or 504 on a busy host", r, err)
		}
	}
}

// An idle connection may wait for any time, but a head that has begun may not.
func TestAHeadThatComesTooSlowlyEndsItsConnectionAnyTime(t *testing.T) {
	const limit = 100 * time.Millisecond
	proxy := startHandler(t, http.NotFoundHandler(), func(_ *queue.Proxy, s *proxytest.Options) { s.HeaderTimeout = limit })
	for name, before := range map[string]int{"the first request": 0, "the second": 1, "the fourth": 3} {
		c := proxy.Dial()
		for range before {
			c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			c.Receive("GET")
		}
		if before > 0 {
			c.SetReadDeadline(time.Now().Add(2 * limit))
			if _, err := c.In.ReadByte(); !harness.IsTimeout(err) {
				t.Errorf("%s: got %v on an idle connection, want silence", name, err)
			}
			c.SetDeadline(time.Now().Add(harness.Patience))
		}
		c.Send("GET / HTTP/1.1\r\nHost:")
		c.WantEnd()
	}
}
