package http1_test

import (
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// soon is the timeout that is used in these tests if the scale is 1.
const soon = 30 * time.Millisecond

// scaled returns clocks with all timeouts multiplied by scale.
func scaled(c proxy.Clocks, scale int) proxy.Clocks {
	for _, timeout := range []*time.Duration{&c.Queue, &c.ResponseStart, &c.Idle, &c.Request, &c.Body, &c.Send} {
		*timeout *= time.Duration(scale)
	}
	return c
}

// A clockTest is a request that takes longer than a clock allows.
type clockTest struct {
	name   string
	clocks proxy.Clocks
	app    func(*harness.AppConn)
	text   string
	reason observation.Reason
	phase  observation.Phase
	status int  // 0 means that the response is truncated
	stays  bool // the connection stays open
}

func TestTimeoutsApplyToTheirPhases(t *testing.T) {
	silent := func(conn *harness.AppConn) { conn.Request(); conn.Hang() }
	begun := func(conn *harness.AppConn) {
		conn.Request()
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
		conn.Hang()
	}
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, v := range []clockTest{
		{"request, before the response", proxy.Clocks{Request: soon}, silent, get, observation.RequestTimeout, observation.Waiting, 504, true},
		{"response start", proxy.Clocks{ResponseStart: soon, Request: time.Hour}, silent, get, observation.ResponseStartTimeout, observation.Waiting, 504, true},
		{"idle, before the response", proxy.Clocks{Idle: soon}, silent, get, observation.IdleTimeout, observation.Waiting, 504, true},
		{"request, after a body", proxy.Clocks{Request: soon}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", observation.RequestTimeout, observation.Waiting, 504, true},
		{"request, during the body", proxy.Clocks{Request: soon}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", observation.ClientSlow, observation.Waiting, 408, false},
		{"body", proxy.Clocks{Body: soon, Request: time.Hour}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", observation.ClientSlow, observation.Waiting, 408, false},
		{"body in chunks", proxy.Clocks{Body: soon, Request: time.Hour}, silent, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", observation.ClientSlow, observation.Waiting, 408, false},
		{"request, during the response", proxy.Clocks{Request: soon}, begun, get, observation.RequestTimeout, observation.Streaming, 0, false},
		{"idle, during the response", proxy.Clocks{Idle: soon, ResponseStart: time.Hour}, begun, get, observation.IdleTimeout, observation.Streaming, 0, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			harness.ScaleTime(t, func(scale int) bool { return v.run(t, scale) })
		})
		if v.text == get {
			t.Run(v.name+", HTTP/2", func(t *testing.T) {
				harness.ScaleTime(t, func(scale int) bool { return v.runHTTP2(t, scale) })
			})
		}
	}
}

// run returns false if the timeout expired before the request reached the phase of the test,
// or while a later request was served.
func (v clockTest) run(t *testing.T, scale int) (inTime bool) {
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		if b, _ := conn.In.Peek(6); string(b) == "GET /a" {
			harness.Echo(conn)
			return
		}
		v.app(conn)
	})
	server := proxytest.Start(t, app, func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = scaled(v.clocks, scale) })
	c := server.Dial()
	c.Send(v.text)
	_, m, err := harness.ReadResponse(c.In, "GET")
	if m == nil {
		t.Fatalf("got %v, want a response", err)
	}
	o := server.Observed(1)[0]
	switch {
	case v.tooEarly(o, m.Body):
		return false
	case v.status == 0 && (err == nil || m.Body != "begun"):
		t.Errorf("got %q, %v, want a broken response", m.Body, err)
	case v.status != 0 && (m.Status() != v.status || m.Body != "request timeout" || err != nil):
		t.Errorf("got %s %q, %v, want %d", m.Start, m.Body, err, v.status)
	}
	if o.Reason != v.reason || o.Phase != v.phase {
		t.Errorf("got %v while %v, want %v while %v", o.Reason, o.Phase, v.reason, v.phase)
	}
	if v.stays != (m.Get("connection") == "") && v.status != 0 {
		t.Errorf("got Connection: %q, want the connection to stay open: %v", m.Get("connection"), v.stays)
	}
	if !v.stays {
		c.WantEnd()
		return true
	}
	for range 3 {
		// Sleep in real time, so that a deadline that the first request left on the socket would expire.
		time.Sleep(time.Duration(scale) * soon / 3)
		c.Send("GET /after HTTP/1.1\r\nHost: a\r\n\r\n")
		m := c.Receive("GET")
		if m.Status() == v.status {
			return false
		}
		if m.Status() != 200 || m.Body != "/after" {
			t.Errorf("got %s %q, want 200 /after", m.Start, m.Body)
		}
	}
	server.WantCounts(4, 0)
	return true
}

// tooEarly reports whether the timeout expired before the request was in the expected phase.
func (v clockTest) tooEarly(o observation.Observation, body string) bool {
	early := v.status == 0 && (body == "" || body == "request timeout") // the timeout expired before the response began
	return o.Reason == v.reason && (o.Phase < v.phase || early)
}

// runHTTP2 is the equivalent of run for an HTTP/2 client.
func (v clockTest) runHTTP2(t *testing.T, scale int) (inTime bool) {
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		if b, _ := conn.In.Peek(3); string(b) == "PRI" || strings.HasPrefix(string(b), "@") { // the protocol is detected
			conn.Send("HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n\r\n")
			return
		}
		v.app(conn)
	})
	server := proxytest.Start(t, app, func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = scaled(v.clocks, scale) })
	r, err := server.Client("HTTP/2").Get("http://" + server.Address + "/")
	var body []byte
	if err == nil {
		body, err = io.ReadAll(r.Body)
		r.Body.Close()
	}
	o := server.Observed(1)[0]
	switch {
	case v.tooEarly(o, string(body)):
		return false
	case r == nil:
		t.Fatalf("got %v, want a response", err)
	case v.status == 0 && (err == nil || string(body) != "begun"):
		t.Errorf("got %q, %v, want a broken response", body, err)
	case v.status != 0 && (r.StatusCode != v.status || string(body) != "request timeout" || err != nil):
		t.Errorf("got %d %q, %v, want %d", r.StatusCode, body, err, v.status)
	}
	if o.Reason != v.reason || o.Phase != v.phase {
		t.Errorf("got %v while %v, want %v while %v", o.Reason, o.Phase, v.reason, v.phase)
	}
	return true
}

// HeaderTimeout does not apply to an idle connection.
func TestHeaderTimeoutAppliesToEachRequest(t *testing.T) {
	const limit = 250 * time.Millisecond
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.HeaderTimeout = limit })
	for name, before := range map[string]int{"the first request": 0, "the second": 1, "the fourth": 3} {
		c := server.Dial()
		for range before {
			c.Get("/p")
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

// The informational responses exceed all socket buffers.
func TestUnreadEarlyHintsTimeOut(t *testing.T) {
	hint := "HTTP/1.1 103 Early Hints\r\nLink: " + strings.Repeat("x", 200<<10) + "\r\n\r\n"
	for name, c := range map[string]struct {
		clocks proxy.Clocks
		reason observation.Reason
	}{
		"request": {proxy.Clocks{Request: time.Second}, observation.RequestTimeout},
		"send":    {proxy.Clocks{Send: time.Second}, observation.ClientSlow},
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
				conn.Request()
				for range 90 {
					conn.Send(hint)
				}
				conn.Send(harness.OK("it"))
			}), func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = c.clocks })
			client := server.Dial()
			client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			if o := server.Observed(1)[0]; o.Reason != c.reason || o.Begun {
				t.Errorf("got %v, begun %v, want %v, false", o.Reason, o.Begun, c.reason)
			}
			server.WantCounts(1, 0)
			client.SetReadDeadline(time.Now().Add(time.Second))
			said, _ := io.ReadAll(client.In)
			if rest := strings.ReplaceAll(string(said), hint, ""); !strings.HasPrefix(hint, rest) && !strings.HasPrefix(rest, "HTTP/1.1 "+strconv.Itoa(c.reason.Status())) {
				t.Errorf("got %.100q after the hints, want a part of a hint, or a response after complete hints", rest)
			}
		})
	}
}

// The client does not read the informational responses before the 101 response.
func TestTimeoutBeforeUpgradeIsReported(t *testing.T) {
	hint := "HTTP/1.1 103 Early Hints\r\nLink: " + strings.Repeat("x", 6<<10) + "\r\n\r\n"
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		conn.Request()
		conn.Send(strings.Repeat(hint, 4) + "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		conn.Hang()
	}), func(p *proxy.Proxy, s *proxytest.Options) {
		p.Clocks = proxy.Clocks{Request: time.Second}
		s.Narrow = true
	})
	client := harness.DialBy(t, &net.Dialer{Control: harness.Narrow}, server.Address)
	client.Send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	o := server.Observed(1)[0]
	harness.Equal(t, o.Reason, observation.RequestTimeout, "reason")
	harness.Equal(t, o.Status, 504, "status")
	harness.Equal(t, o.Phase, observation.Waiting, "phase")
	harness.Equal(t, o.Upgraded || o.Begun, false, "upgraded")
}

// The client does not read the bytes that arrived before the invalid chunk.
func TestUnreadTruncatedResponseTimesOut(t *testing.T) {
	begun := make(chan struct{})
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		conn.Request()
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n" + strings.Repeat("x", 0x5000) + "\r\n")
		<-begun // the first chunk was read, and one read returns the other chunks
		conn.Send("5000\r\n" + strings.Repeat("x", 0x5000) + "\r\nrubbish\r\n")
	}), func(p *proxy.Proxy, s *proxytest.Options) {
		p.Clocks = proxy.Clocks{Send: time.Second}
		s.Narrow = true
	})
	client := harness.DialBy(t, &net.Dialer{Control: harness.Narrow}, server.Address)
	client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := io.CopyN(io.Discard, client.In, 0x5000); err != nil {
		t.Fatal(err)
	}
	close(begun)
	if o := server.Observed(1)[0]; o.Reason != observation.AppGarbage {
		t.Errorf("got %v, want %v", o.Reason, observation.AppGarbage)
	}
}
