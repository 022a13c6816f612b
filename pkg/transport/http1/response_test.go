package http1_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestResponsesAreForwarded(t *testing.T) {
	for _, v := range []struct {
		name, method, answer string
		status               int
		body                 string
		want                 []string // fields of the response; "name:" means that the field must be missing
	}{
		{"a length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", []string{"content-length: 2"}},
		{"an empty body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"content-length: 0"}},
		{"chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", 200, "hi", []string{"transfer-encoding: chunked"}},
		{"chunk sizes with whitespace", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nhi\r\n0\t\r\n\r\n", 200, "hi", []string{"transfer-encoding: chunked"}},
		{"chunks with empty extensions", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;\r\nhi\r\n0; \r\n\r\n", 200, "hi", []string{"transfer-encoding: chunked"}},
		{"426", "GET", "HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade, close\r\nUpgrade: a/1, b\r\nContent-Length: 0\r\n\r\n<close>", 426, "", []string{"upgrade: a/1, b", "connection: Upgrade"}},
		{"426 without a protocol", "GET", "HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade\r\nUpgrade:\r\nContent-Length: 0\r\n\r\n", 426, "", []string{"upgrade:", "connection:"}},
		{"200 that offers a protocol", "GET", "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"upgrade:", "connection:"}},
		{"until close", "GET", "HTTP/1.1 200 OK\r\n\r\nhi<close>", 200, "hi", []string{"transfer-encoding: chunked", "connection:"}},
		{"until close, empty", "GET", "HTTP/1.1 200 OK\r\n\r\n<close>", 200, "", []string{"connection:"}},
		{"HTTP/1.0 until close", "GET", "HTTP/1.0 200 OK\r\n\r\nhi<close>", 200, "hi", []string{"transfer-encoding: chunked", "connection:"}},
		{"HTTP/1.0 with a length", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi<close>", 200, "hi", []string{"content-length: 2", "connection:"}},
		{"the app closes", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi<close>", 200, "hi", []string{"connection:"}},
		{"HEAD with a length", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", 200, "", []string{"content-length: 2"}},
		{"HEAD with chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, "", []string{"content-length:"}},
		{"HEAD without a length", "HEAD", "HTTP/1.1 200 OK\r\n\r\n", 200, "", []string{"content-length:"}},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", []string{"content-length:", "transfer-encoding:"}},
		{"204 with length 0", "GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, "", []string{"content-length:"}},
		{"304 with a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 70\r\nETag: \"x\"\r\n\r\n", 304, "", []string{"content-length: 70", `etag: "x"`}},
		{"304 without a length", "GET", "HTTP/1.1 304 Not Modified\r\n\r\n", 304, "", []string{"content-length:", "transfer-encoding:"}},
		{"an unknown status", "GET", "HTTP/1.1 799 What\r\nContent-Length: 2\r\n\r\nhi", 799, "hi", nil},
		{"no reason", "GET", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", nil},
		{"fields for this hop", "GET", "HTTP/1.1 200 OK\r\nConnection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nX-Yours: 2\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"x-mine:", "keep-alive:", "connection:", "x-yours: 2"}},
		{"forged Proxy-Status member", "GET", "HTTP/1.1 200 OK\r\nProxy-Status: queue-proxy; error=x, cdn\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"proxy-status: cdn"}},
		{"a folded line", "GET", "HTTP/1.1 200 OK\r\nX-Long: a\r\n b\r\nContent-Length: 0\r\n\r\n", 200, "", nil},
		{"a date from the app", "GET", "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n", 200, "", []string{"date: Sat, 01 Jan 2000 00:00:00 GMT"}},
		{"a long header", "GET", "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 60<<10) + "\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", []string{"x-long: " + strings.Repeat("x", 60<<10)}},
	} {
		t.Run(v.name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, answering(map[string]string{"it": v.answer})), nil)
			c := server.Dial()
			for range 2 { // the connection stays usable
				c.Send(v.method + " /p HTTP/1.1\r\nHost: a\r\nX-Answer: it\r\n\r\n")
				m := c.Receive(v.method)
				if m.Status() != v.status || m.Body != v.body || !m.Complete {
					t.Errorf("got %s %.100q, complete %v, want %d %.100q, true", m.Start, m.Body, m.Complete, v.status, v.body)
				}
				if m.Get("date") == "" {
					t.Error("got no Date, want one")
				}
				for _, want := range v.want {
					name, value, _ := strings.Cut(want, ":")
					if got := m.Get(name); got != strings.TrimSpace(value) {
						t.Errorf("got %s: %.100q, want %.100q", name, got, value)
					}
				}
			}
			c.Get("/after")
			server.WantCounts(3, 0)
		})
	}
}

func TestInterimResponsesKeepFinalStatus(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, answering(map[string]string{
		"it": "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 418 I'm a teapot\r\nContent-Length: 2\r\n\r\nno",
	})), nil)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\nX-Answer: it\r\n\r\n")
	infos, m, err := harness.ReadResponse(c.In, "GET")
	if err != nil || len(infos) != 2 || infos[0].Status() != 103 || infos[0].Get("link") != "</a>" || infos[1].Status() != 102 {
		t.Errorf("got interim %v, %v, want 103 with a Link and 102", infos, err)
	}
	if m.Status() != 418 || m.Body != "no" {
		t.Errorf("got %s %q, want 418 no", m.Start, m.Body)
	}
	if o := server.Observed(1)[0]; o.Status != 418 {
		t.Errorf("observed: got %d, want 418", o.Status)
	}
}

func TestAppFailureReturns502(t *testing.T) {
	for name, v := range map[string]struct {
		answer string
		reason observation.Reason
	}{
		"not HTTP":                     {"SSH-2.0-OpenSSH_9.6\r\n", observation.AppGarbage},
		"HTTP/2":                       {"HTTP/2.0 200 OK\r\n\r\n", observation.AppGarbage},
		"two lengths":                  {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhi", observation.AppGarbage},
		"length and chunks":            {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi", observation.AppGarbage},
		"unsupported coding":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", observation.AppGarbage},
		"unexpected 101":               {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", observation.AppGarbage},
		"endless interim responses":    {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 200), observation.AppGarbage},
		"endless header":               {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20), observation.AppGarbage},
		"nothing":                      {"<close>", observation.AppReset},
		"half a header":                {"HTTP/1.1 200 OK\r\nContent-Le<close>", observation.AppReset},
		"interim response, then close": {"HTTP/1.1 102 Processing\r\n\r\n<close>", observation.AppReset},
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, answering(map[string]string{"it": v.answer})), nil)
			c := server.Dial()
			c.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nX-Answer: it\r\n\r\n")
			m := c.Receive("POST")
			if m.Status() != 502 || !strings.Contains(m.Get("proxy-status"), v.reason.String()) {
				t.Errorf("got %s, Proxy-Status %q, want 502, %v", m.Start, m.Get("proxy-status"), v.reason)
			}
			c.Get("/after") // neither broken connection is reused
			server.WantCounts(2, 0)
		})
	}
}

func TestAppFailureInBodyTruncatesResponse(t *testing.T) {
	for name, answer := range map[string]string{
		"a length":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello<close>",
		"chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n<close>",
		"within a chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello<close>",
		"bad framing":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nworld\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, answering(map[string]string{"it": answer})), nil)
			c := server.Dial()
			c.Send("GET / HTTP/1.1\r\nHost: a\r\nX-Answer: it\r\n\r\nGET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
			_, m, err := harness.ReadResponse(c.In, "GET")
			if m == nil || m.Status() != 200 || !strings.HasPrefix(m.Body, "hello"[:len(m.Body)]) || m.Complete && err == nil {
				t.Errorf("got %+v, %v, want 200 with a truncated body", m, err)
			}
			if harness.IsTimeout(err) {
				t.Errorf("got %v, want the end of the connection", err)
			}
			if o := server.Observed(1)[0]; o.Reason != observation.AppReset && o.Reason != observation.AppGarbage || !o.Begun || o.Status != 200 {
				t.Errorf("observed: got %v, begun %v, %d, want the app's fault, true, 200", o.Reason, o.Begun, o.Status)
			}
		})
	}
}

// In HTTP/1.0, closing the connection marks the end of the content. After a clean close, the client would treat the
// aborted response as complete.
func TestAbortedResponseResetsHTTP10Connection(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n<close>"
	server := proxytest.Start(t, harness.NewApp(t, answering(map[string]string{"it": answer})), nil)
	c := server.Dial()
	c.Send("GET / HTTP/1.0\r\nX-Answer: it\r\n\r\n")
	if _, err := io.ReadAll(c.In); err == nil || harness.IsTimeout(err) {
		t.Errorf("got %v at the end, want a reset", err)
	}
}

func TestProbeResponseDoesNotWaitForBody(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	c.Send("POST /x HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\nContent-Length: 500\r\n\r\nhello")
	if m := c.Receive("POST"); m.Status() != 200 || m.Body != "queue" || !m.Closes() {
		t.Errorf("got %d %q, close %v, want 200 queue, close true", m.Status(), m.Body, m.Closes())
	}
	c.WantEnd()
}

func TestUnreachableAppReturns502(t *testing.T) {
	a := harness.NewApp(t, harness.Echo)
	server := proxytest.Start(t, a, nil)
	a.Listener.Close()
	c := server.Dial()
	for range 2 { // the first request resets the detected protocol
		c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		m := c.Receive("GET")
		if want := `queue-proxy; error=connection_refused; details="app-unreachable"`; m.Status() != 502 || m.Get("proxy-status") != want {
			t.Errorf("got %s, Proxy-Status %q, want 502, %q", m.Start, m.Get("proxy-status"), want)
		}
	}
	again := harness.ServeApp(t, harness.ListenOn(t, a.Address()), harness.Echo)
	c.Get("/up")
	c.Get("/up")
	harness.Equal(t, again.Connections(), 1, "connections to the app")
	server.WantCounts(4, 0)
}

// A request does not fail if the app has closed the pooled connection.
func TestStaleAppConnectionIsReplaced(t *testing.T) {
	closed := make(chan struct{}, 1)
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		if m := conn.Request(); m != nil {
			conn.Send(harness.OK(m.Target()))
		}
		conn.Close()
		closed <- struct{}{}
	}), nil)
	c := server.Dial()
	for i := range 10 {
		c.Send(fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", i))
		c.WantBody(fmt.Sprintf("/%d", i))
		<-closed
	}
}

// A request is repeated only if the app cannot have processed it.
func TestReplayOnClosedAppConnection(t *testing.T) {
	a := harness.NewApp(t, func(conn *harness.AppConn) {
		for n := 0; ; n++ {
			m := conn.Request()
			if m == nil || conn.Index == 0 && n > 0 {
				return // the first connection is closed after its first response
			}
			conn.Send(harness.OK(m.Target()))
		}
	})
	for name, v := range map[string]struct {
		text   string
		status int
	}{
		"GET":                 {"GET /it HTTP/1.1\r\nHost: a\r\n\r\n", 200},
		"PUT, complete body":  {"PUT /it HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 200},
		"PUT, streamed body":  {"PUT /it HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 502},
		"POST, complete body": {"POST /it HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 502},
	} {
		t.Run(name, func(t *testing.T) {
			a.Forget()
			server := proxytest.Start(t, a, nil)
			c := server.Dial()
			c.Get("/first")
			c.Send(v.text)
			if m := c.Receive("POST"); m.Status() != v.status {
				t.Errorf("got %s, want %d", m.Start, v.status)
			}
			got := strings.Count(strings.Join(a.Requests(), "\n"), "/it")
			harness.Equal(t, got, map[int]int{200: 2, 502: 1}[v.status], "the request", "times at the app")
			if o := server.Observed(2); o[0].Replayed || o[1].Replayed != (got == 2) {
				t.Errorf("observed as replayed: got %v, %v, want false, %v", o[0].Replayed, o[1].Replayed, got == 2)
			}
		})
	}
}

// A response that arrives during the upload is forwarded, and neither connection is reused.
func TestEarlyResponseReachesSendingClient(t *testing.T) {
	const size = 20 << 20
	received := make(chan struct{})
	a := harness.NewApp(t, func(conn *harness.AppConn) {
		if conn.Head() != nil {
			conn.Send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large")
			<-received // the app reads no input before received is closed
			conn.Hang()
		}
	})
	server := proxytest.Start(t, a, nil)
	for i := range 40 {
		c := server.Dial()
		sent := make(chan struct{})
		framing := []string{fmt.Sprintf("Content-Length: %d", size), "Transfer-Encoding: chunked"}[i%2]
		go func() {
			defer close(sent)
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", framing)
			if i%2 == 0 {
				io.Copy(c.TCPConn, &harness.Pattern{Left: size})
			} else {
				harness.SendChunks(c, size)
			}
		}()
		m := c.Receive("POST")
		if m.Status() != 413 || m.Body != "too large" || m.Get("connection") != "close" {
			t.Errorf("%d: got %s %q, Connection: %s, want 413, close", i, m.Start, m.Body, m.Get("connection"))
		}
		if i%4 < 2 { // only a client that reads detects that the connection was closed
			c.WantEnd()
		}
		c.Close()
		<-sent
		received <- struct{}{} // not earlier, because the app might receive the complete body
	}
	harness.Equal(t, a.Connections(), 40, "connections to the app")
	server.WantCounts(40, 0)
}

// The client connection stays open after an early response to a complete request, even if the app did
// not read the body.
func TestEarlyResponseKeepsConnectionAfterCompleteBody(t *testing.T) {
	a := harness.NewApp(t, func(conn *harness.AppConn) {
		if m := conn.Head(); m != nil { // announces the close, because otherwise the next request may arrive before the close
			conn.Send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n/p")
		}
	})
	server := proxytest.Start(t, a, nil)
	c := server.Dial()
	for range 5 {
		c.Send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n" + strings.Repeat("x", 10000))
		c.WantBody("/p")
	}
	server.WantCounts(5, 0)
}

func TestConnectionCloseIsHopByHop(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, answering(map[string]string{"close": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi<close>"})), nil)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\nX-Answer: close\r\n\r\n")
	if m := c.Receive("GET"); m.Get("connection") != "" {
		t.Errorf("got Connection: %s, want none, because the field applies only to the app connection", m.Get("connection"))
	}
	c.Send("GET /p HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: a\r\n\r\n")
	if m := c.Receive("GET"); m.Body != "/p" || m.Get("connection") != "close" {
		t.Errorf("got %q, Connection: %s, want /p, close", m.Body, m.Get("connection"))
	}
	c.WantEnd()
	server.WantCounts(2, 0)
}
