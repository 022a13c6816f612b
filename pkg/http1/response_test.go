package http1_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// says is an app that gives each request the answer that its field X-Say names.
func says(answers map[string]string) func(p *peer) {
	return func(p *peer) {
		for m := p.request(); m != nil; m = p.request() {
			text, found := answers[m.get("x-say")]
			if !found {
				p.say(ok(m.target()))
				continue
			}
			text, closes := strings.CutSuffix(text, "<close>")
			p.say(text)
			if closes {
				return
			}
		}
	}
}

func TestResponsesPassAsTheyWereMeant(t *testing.T) {
	for _, v := range []struct {
		name, method, answer string
		status               int
		body                 string
		want                 []string // fields of the response; "name:" is one that must not be there
	}{
		{"a length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", []string{"content-length: 2"}},
		{"an empty body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"content-length: 0"}},
		{"chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", 200, "hi", []string{"transfer-encoding: chunked"}},
		{"until close", "GET", "HTTP/1.1 200 OK\r\n\r\nhi<close>", 200, "hi", []string{"transfer-encoding: chunked", "connection:"}},
		{"until close, empty", "GET", "HTTP/1.1 200 OK\r\n\r\n<close>", 200, "", []string{"connection:"}},
		{"HTTP/1.0 until close", "GET", "HTTP/1.0 200 OK\r\n\r\nhi<close>", 200, "hi", []string{"transfer-encoding: chunked", "connection:"}},
		{"HTTP/1.0 with a length", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi<close>", 200, "hi", []string{"content-length: 2", "connection:"}},
		{"the app closes", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi<close>", 200, "hi", []string{"connection:"}},
		{"HEAD with a length", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", 200, "", []string{"content-length: 2"}},
		{"HEAD with chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, "", []string{"content-length:"}},
		{"HEAD without a length", "HEAD", "HTTP/1.1 200 OK\r\n\r\n", 200, "", []string{"content-length:"}},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", []string{"content-length:", "transfer-encoding:"}},
		{"204 with a length of nothing", "GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, "", []string{"content-length:"}},
		{"304 with a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 70\r\nETag: \"x\"\r\n\r\n", 304, "", []string{"content-length: 70", `etag: "x"`}},
		{"304 without", "GET", "HTTP/1.1 304 Not Modified\r\n\r\n", 304, "", []string{"content-length:", "transfer-encoding:"}},
		{"an unknown status", "GET", "HTTP/1.1 799 What\r\nContent-Length: 2\r\n\r\nhi", 799, "hi", nil},
		{"no reason", "GET", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", nil},
		{"fields for this hop", "GET", "HTTP/1.1 200 OK\r\nConnection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nX-Yours: 2\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"x-mine:", "keep-alive:", "connection:", "x-yours: 2"}},
		{"somebody speaks in our name", "GET", "HTTP/1.1 200 OK\r\nProxy-Status: queue-proxy; error=x, cdn\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"proxy-status: cdn"}},
		{"a folded line", "GET", "HTTP/1.1 200 OK\r\nX-Long: a\r\n b\r\nContent-Length: 0\r\n\r\n", 200, "", nil},
		{"a date of its own", "GET", "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"date: Sat, 01 Jan 2000 00:00:00 GMT"}},
		{"a long head", "GET", "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 60<<10) + "\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", []string{"x-long: " + strings.Repeat("x", 60<<10)}},
	} {
		t.Run(v.name, func(t *testing.T) {
			h := build(t, newApp(t, says(map[string]string{"it": v.answer})), nil)
			c := h.dial()
			for range 2 { // the connection stays usable
				c.send(v.method + " /p HTTP/1.1\r\nHost: a\r\nX-Say: it\r\n\r\n")
				m := c.receive(v.method)
				if m.status() != v.status || m.body != v.body || !m.told {
					t.Errorf("got %s %.100q, end told %v, want %d %.100q, true", m.start, m.body, m.told, v.status, v.body)
				}
				if m.get("date") == "" {
					t.Error("got no Date, want one")
				}
				for _, want := range v.want {
					name, value, _ := strings.Cut(want, ":")
					if got := m.get(name); got != strings.TrimSpace(value) {
						t.Errorf("got %s: %.100q, want %.100q", name, got, value)
					}
				}
			}
			c.get("/after")
			h.wantCounts(3, 0)
		})
	}
}

func TestInterimResponsesPassAndTheFinalStatusStays(t *testing.T) {
	h := build(t, newApp(t, says(map[string]string{
		"it": "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 418 I'm a teapot\r\nContent-Length: 2\r\n\r\nno",
	})), nil)
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\nX-Say: it\r\n\r\n")
	infos, m, err := readResponse(c.r, "GET")
	if err != nil || len(infos) != 2 || infos[0].status() != 103 || infos[0].get("link") != "</a>" || infos[1].status() != 102 {
		t.Errorf("got interim %v, %v, want 103 with a Link and 102", infos, err)
	}
	if m.status() != 418 || m.body != "no" {
		t.Errorf("got %s %q, want 418 no", m.start, m.body)
	}
	if o := h.observed(1)[0]; o.Status != 418 {
		t.Errorf("observed: got %d, want 418", o.Status)
	}
}

func TestAnAppThatFailsIsAnswered502(t *testing.T) {
	for name, v := range map[string]struct {
		answer string
		why    queue.Why
	}{
		"no HTTP":              {"SSH-2.0-OpenSSH_9.6\r\n", queue.AppGarbage},
		"HTTP/2":               {"HTTP/2.0 200 OK\r\n\r\n", queue.AppGarbage},
		"two lengths":          {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhi", queue.AppGarbage},
		"length and chunks":    {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi", queue.AppGarbage},
		"another coding":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", queue.AppGarbage},
		"101 without a wish":   {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", queue.AppGarbage},
		"interim without end":  {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 200), queue.AppGarbage},
		"a head without end":   {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10), queue.AppGarbage},
		"nothing":              {"<close>", queue.AppReset},
		"half a head":          {"HTTP/1.1 200 OK\r\nContent-Le<close>", queue.AppReset},
		"an interim, then end": {"HTTP/1.1 102 Processing\r\n\r\n<close>", queue.AppReset},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, newApp(t, says(map[string]string{"it": v.answer})), nil)
			c := h.dial()
			c.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nX-Say: it\r\n\r\n")
			m := c.receive("POST")
			if m.status() != 502 || !strings.Contains(m.get("proxy-status"), v.why.String()) {
				t.Errorf("got %s, Proxy-Status %q, want 502, %v", m.start, m.get("proxy-status"), v.why)
			}
			c.get("/after") // neither side's connection is mistaken for a sound one
			h.wantCounts(2, 0)
		})
	}
}

func TestAnAppThatFailsInItsBodyBreaksTheResponse(t *testing.T) {
	for name, answer := range map[string]string{
		"a length":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello<close>",
		"chunks":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n<close>",
		"inside one":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello<close>",
		"bad framing": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nworld\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, newApp(t, says(map[string]string{"it": answer})), nil)
			c := h.dial()
			c.send("GET / HTTP/1.1\r\nHost: a\r\nX-Say: it\r\n\r\nGET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
			_, m, err := readResponse(c.r, "GET")
			if m == nil || m.status() != 200 || !strings.HasPrefix(m.body, "hello"[:len(m.body)]) || m.told && err == nil {
				t.Errorf("got %+v, %v, want a 200 whose body is cut", m, err)
			}
			if isTimeout(err) {
				t.Errorf("got %v, want the end of the connection", err)
			}
			if o := h.observed(1)[0]; o.Why != queue.AppReset && o.Why != queue.AppGarbage || !o.Begun || o.Status != 200 {
				t.Errorf("observed: got %v, begun %v, %d, want the app's fault, true, 200", o.Why, o.Begun, o.Status)
			}
		})
	}
}

func TestAnAppThatIsDownIsAnswered502(t *testing.T) {
	a := newApp(t, echo)
	h := build(t, a, nil)
	a.ln.Close()
	c := h.dial()
	for range 2 { // before the second one what the app speaks has been forgotten
		c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		m := c.receive("GET")
		if want := `queue-proxy; error=connection_refused; details="app-unreachable"`; m.status() != 502 || m.get("proxy-status") != want {
			t.Errorf("got %s, Proxy-Status %q, want 502, %q", m.start, m.get("proxy-status"), want)
		}
	}
	again := serveApp(t, listenAgain(t, a), echo)
	c.get("/up")
	c.get("/up")
	if got := again.connections(); got != 1 {
		t.Errorf("got %d connections to the app, want 1", got)
	}
	h.wantCounts(4, 0)
}

// A pooled connection that the app has closed costs no request.
func TestAStaleConnectionIsNoticed(t *testing.T) {
	closed := make(chan struct{}, 1)
	h := build(t, newApp(t, func(p *peer) {
		if m := p.request(); m != nil {
			p.say(ok(m.target()))
		}
		p.Close()
		closed <- struct{}{}
	}), nil)
	c := h.dial()
	for i := range 10 {
		c.send(fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", i))
		c.wantBody(fmt.Sprintf("/%d", i))
		<-closed
	}
}

// A request is sent again only if it can't have been served.
func TestTheReplayRuleHolds(t *testing.T) {
	a := newApp(t, func(p *peer) {
		for n := 0; ; n++ {
			m := p.request()
			if m == nil || p.turn == 0 && n > 0 {
				return // the first connection breaks off after its first answer
			}
			p.say(ok(m.target()))
		}
	})
	for name, v := range map[string]struct {
		text   string
		status int
	}{
		"GET":                 {"GET /it HTTP/1.1\r\nHost: a\r\n\r\n", 200},
		"PUT, its body held":  {"PUT /it HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 200},
		"PUT, its body gone":  {"PUT /it HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 502},
		"POST, its body held": {"POST /it HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 502},
	} {
		t.Run(name, func(t *testing.T) {
			a.mu.Lock()
			a.turns, a.saw = 0, nil
			a.mu.Unlock()
			h := build(t, a, nil)
			c := h.dial()
			c.get("/first")
			c.send(v.text)
			if m := c.receive("POST"); m.status() != v.status {
				t.Errorf("got %s, want %d", m.start, v.status)
			}
			got := strings.Count(strings.Join(a.lines(), "\n"), "/it")
			if want := map[int]int{200: 2, 502: 1}[v.status]; got != want {
				t.Errorf("got the request %d times at the app, want %d", got, want)
			}
			if o := h.observed(2); o[0].Replayed || o[1].Replayed != (got == 2) {
				t.Errorf("observed as replayed: got %v, %v, want false, %v", o[0].Replayed, o[1].Replayed, got == 2)
			}
		})
	}
}

// An answer that comes while the request is being sent is not lost, and neither
// connection is used again.
func TestAnEarlyAnswerReachesAClientThatStillSends(t *testing.T) {
	const size = 20 << 20
	heard := make(chan struct{})
	a := newApp(t, func(p *peer) {
		if p.head() != nil {
			p.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large")
			<-heard // until then nothing is read
			p.hang()
		}
	})
	h := build(t, a, nil)
	for i := range 40 {
		c := h.dial()
		sent := make(chan struct{})
		framing := []string{fmt.Sprintf("Content-Length: %d", size), "Transfer-Encoding: chunked"}[i%2]
		go func() {
			defer close(sent)
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", framing)
			if i%2 == 0 {
				io.Copy(c.TCPConn, &pattern{left: size})
			} else {
				sendChunks(c, size)
			}
		}()
		m := c.receive("POST")
		if m.status() != 413 || m.body != "too large" || m.get("connection") != "close" {
			t.Errorf("%d: got %s %q, Connection: %s, want 413, close", i, m.start, m.body, m.get("connection"))
		}
		if i%4 < 2 { // who listens hears the end
			c.ended()
		}
		c.Close()
		<-sent
		heard <- struct{}{} // no earlier: all of a body that is read at once might arrive
	}
	if got := a.connections(); got != 40 {
		t.Errorf("got %d connections to the app, want 40", got)
	}
	h.wantCounts(40, 0)
}

// An answer to a request that has arrived does not cost the client its
// connection, even if the app took none of it.
func TestAnEarlyAnswerToABodyThatHasArrivedKeepsTheConnection(t *testing.T) {
	a := newApp(t, func(p *peer) {
		if m := p.head(); m != nil { // it says that it closes, or the next request may come before it has
			p.say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n/p")
		}
	})
	h := build(t, a, nil)
	c := h.dial()
	for range 5 {
		c.send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n" + strings.Repeat("x", 10000))
		c.wantBody("/p")
	}
	h.wantCounts(5, 0)
}
