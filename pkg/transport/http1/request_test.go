package http1_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestPipelinedRequestsReturnResponsesInOrder(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	c.Send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"GET /d HTTP/1.1\r\nHost: a\r\n\r\n")
	for _, want := range []string{"/a", "/b", "/c", "/d"} {
		c.WantBody(want)
	}
	server.WantCounts(4, 0)
}

func TestHeaderSentByteByByteReturns200(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	c.SetNoDelay(true)
	for range 2 {
		for _, b := range []byte("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab") {
			c.Send(string(b))
		}
		c.WantBody("/slow")
	}
	server.WantCounts(2, 0)
}

func TestRequestTargetIsForwardedUnchanged(t *testing.T) {
	c := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil).Dial()
	for _, target := range []string{
		"/", "//", "/a//b", "/a/../b", "/%2f%2F", "/a?x=1;y=2&z=%zz", "/p\"q|r", "/\xc3\xa9/%2f", "/?", "/a?b?c", "/a;b=c", "/*", "/\\",
	} {
		c.Get(target)
	}
}

func TestCompletePostKeepsConnection(t *testing.T) {
	c := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil).Dial()
	for i := range 100 {
		body := []string{"Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"}[i%2]
		c.Send("POST /x HTTP/1.1\r\nHost: a\r\n" + body)
		if m := c.Receive("POST"); m.Status() != 200 || m.Closes() {
			t.Fatalf("got %d, close %v, want 200, close false", m.Status(), m.Closes())
		}
	}
}

func TestHeaderOfMaximumLengthReturns200(t *testing.T) {
	const limit = 96 << 10
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.MaxHeaderBytes = limit })
	head := func(size int) string {
		const frame = "GET /long HTTP/1.1\r\nHost: a\r\nX-Long: \r\n\r\n"
		return strings.Replace(frame, "X-Long: ", "X-Long: "+strings.Repeat("x", size-len(frame)), 1)
	}
	c := server.Dial()
	for _, size := range []int{8 << 10, 32<<10 - 1, 32 << 10, 32<<10 + 1, 64 << 10, limit - 1, limit} {
		c.Send(head(size))
		c.WantBody("/long")
	}
	server.WantCounts(7, 0)
	c.Send(head(limit + 1))
	if m := c.Receive("GET"); m.Status() != 431 {
		t.Errorf("got %s, want 431", m.Start)
	}
	c.WantEnd()
}

// The app receives the same request regardless of the split.
func TestSplitBodyIsForwarded(t *testing.T) {
	requests := map[string]struct{ text, body, trailer string }{
		"a length":  {"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome body", "some body", ""},
		"no length": {"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n4;x=y\r\nsome\r\n5\r\n body\r\n0\r\nX-T: end\r\n\r\n", "some body", "x-t: end"},
	}
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			got := make(chan *harness.Message, 1)
			server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
				for m := conn.Request(); m != nil; m = conn.Request() {
					got <- m
					conn.Send(harness.OK(m.Target()))
				}
			}), nil)
			c := server.Dial()
			c.SetNoDelay(true)
			for split := 1; split < len(request.text); split++ {
				before := len(server.Observed(0))
				c.Send(request.text[:split])
				if split%8 == 0 { // sometimes wait, so that the parts are read separately
					if strings.Contains(request.text[:split], "\r\n\r\n") {
						server.InFlight(1)
					} else {
						time.Sleep(100 * time.Microsecond) // the test cannot detect that a part of a header section has been read
					}
				}
				c.Send(request.text[split:])
				c.WantBody("/p")
				m := <-got
				if m.Body != request.body || strings.Join(m.Trailers, "|") != request.trailer {
					t.Fatalf("split at %d: got body %q and trailers %q, want %q and %q", split, m.Body, m.Trailers, request.body, request.trailer)
				}
				if o := server.Observed(before + 1)[before]; o.In != int64(len(request.body)) || o.Reason != observation.OK {
					t.Fatalf("split at %d: got %d bytes in, %v, want %d, ok", split, o.In, o.Reason, len(request.body))
				}
			}
			server.WantCounts(uint64(len(request.text)-1), 0)
		})
	}
}

// The header section fills the buffer, so that chunks need a larger buffer.
func TestChunkedBodyFollowsLongHeader(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	for _, size := range []int{32<<10 - 1, 32 << 10} {
		c := server.Dial()
		const frame = "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-Long: \r\n\r\n"
		c.Send(strings.Replace(frame, "X-Long: ", "X-Long: "+strings.Repeat("x", size-len(frame)), 1))
		c.Send("3\r\nabc\r\n0\r\n\r\n")
		c.WantBody("/p")
	}
	c := server.Dial()
	for size := range 300 { // consecutive sizes, so that the header sections end at each offset of the buffer
		c.Send(fmt.Sprintf("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-Long: %s\r\n\r\n3\r\nabc\r\n0\r\n\r\n", strings.Repeat("x", 10*size)))
	}
	for range 300 {
		c.WantBody("/p")
	}
}

func TestSmallChunksAreForwardedTogether(t *testing.T) {
	const n = 4000
	chunks := make(chan int, 1)
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		m := conn.Head()
		count := 0
		for line, err := harness.ReadLine(conn.In); line != "0"; line, err = harness.ReadLine(conn.In) {
			if err != nil {
				t.Errorf("the app: %v", err)
				break
			}
			var size int
			fmt.Sscanf(line, "%x", &size)
			conn.In.Discard(size + 2)
			count++
		}
		_, _ = harness.ReadLine(conn.In)
		chunks <- count
		conn.Send(harness.OK(m.Target()))
		conn.Hang()
	}), nil)
	c := server.Dial()
	c.Send("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", n) + "0\r\n\r\n")
	c.WantBody("/p")
	if got, most := <-chunks, n/10; got > most {
		t.Errorf("got %d chunks at the app, want at most %d", got, most)
	}
}

func TestTrailersAreForwarded(t *testing.T) {
	got := make(chan *harness.Message, 1)
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		got <- conn.Request()
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nX-Other: 8\r\n\r\n")
		conn.Hang()
	}), nil)
	c := server.Dial()
	c.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: X-A\r\nTrailer: X-B, X-C\r\n\r\n" +
		"2\r\nhi\r\n0\r\nX-A: 1\r\nX-B: 2\r\nX-D: 3\r\n\r\n")
	r := c.Receive("POST")
	if want := "x-sum: 7|x-other: 8"; r.Body != "ok" || strings.Join(r.Trailers, "|") != want {
		t.Errorf("client: got %q, %q, want ok, %q", r.Body, r.Trailers, want)
	}
	m := <-got
	harness.Equal(t, strings.Join(m.Trailers, "|"), "x-a: 1|x-b: 2|x-d: 3", "app: trailers", m.Trailers)
	harness.Equal(t, strings.ReplaceAll(strings.ReplaceAll(m.Get("trailer"), "|", ","), " ", ""), "X-A,X-B,X-C", "app: Trailer")
	harness.Equal(t, m.Get("te"), "trailers", "app: TE")
	server.WantCounts(1, 0)
}

// A trailer section must not contain a Proxy-Status member of the sidecar that the app sent.
func TestTrailerProxyStatusIsFiltered(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		conn.Request()
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" +
			"Proxy-Status: queue-proxy; error=x, other; error=y\r\nX-Sum: 7\r\nPROXY-STATUS: queue-proxy\r\n\r\n")
		conn.Hang()
	}), nil)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	got := c.Receive("GET").Trailers
	slices.Sort(got)
	harness.Equal(t, strings.Join(got, "|"), "proxy-status: other; error=y|x-sum: 7", got)
}

func TestLargeBodiesAreForwarded(t *testing.T) {
	const size = 10 << 20
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for {
			m := conn.Head()
			if m == nil {
				return
			}
			switch {
			case m.Get("content-length") == fmt.Sprint(size):
				if err := harness.CheckPattern(io.LimitReader(conn.In, size), size); err != nil {
					t.Errorf("the app got %v", err)
				}
				conn.Send(harness.OK(m.Target()))
			case m.Get("transfer-encoding") == "chunked":
				if err := m.ReadBody(conn.In); err != nil {
					t.Errorf("the app got %v", err)
				}
				if err := harness.CheckPattern(strings.NewReader(m.Body), size); err != nil {
					t.Errorf("the app got %v", err)
				}
				conn.Send(harness.OK(m.Target()))
			case m.Target() == "/length":
				conn.Send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
				io.Copy(conn, &harness.Pattern{Left: size})
			case m.Target() == "/close":
				conn.Send("HTTP/1.1 200 OK\r\n\r\n")
				io.Copy(conn, &harness.Pattern{Left: size})
				return
			default:
				conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				harness.SendChunks(conn, size)
			}
		}
	}), nil)
	c := server.Dial()
	c.Send(fmt.Sprintf("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size))
	io.Copy(c.TCPConn, &harness.Pattern{Left: size})
	c.WantBody("/up")
	c.Send("POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	harness.SendChunks(c, size)
	c.WantBody("/chunks")
	for _, path := range []string{"/length", "/close", "/down"} {
		c.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		m := c.Receive("GET")
		if err := harness.CheckPattern(strings.NewReader(m.Body), size); err != nil || !m.Complete {
			t.Errorf("%s: got %v, want all of the body", path, err)
		}
	}
	server.WantCounts(5, 0)
}

// A peer that does not read blocks the other peer, because the proxy buffers only a small part of the body.
func TestSlowReaderBlocksSender(t *testing.T) {
	const size = 64 << 20
	sent, read := make(chan int64, 1), make(chan struct{})
	play := func(conn *harness.AppConn) {
		m := conn.Head()
		if m == nil {
			return
		}
		if m.Target() == "/up" {
			<-read
			n, _ := io.CopyN(io.Discard, conn.In, size)
			sent <- n
			conn.Send(harness.OK("/up"))
			conn.Hang()
			return
		}
		conn.Send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
		conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, _ := io.CopyN(conn, &harness.Pattern{Left: size}, size)
		sent <- n
	}
	server := proxytest.Start(t, harness.NewApp(t, play), nil)

	down := server.Dial()
	down.Send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n")
	if n := <-sent; n >= size/2 {
		t.Errorf("down: got %d bytes taken from the app while the client read none, want less than %d", n, size/2)
	}
	down.Close()

	up := server.Dial()
	up.Send(fmt.Sprintf("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size))
	up.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	n, _ := io.CopyN(up.TCPConn, &harness.Pattern{Left: size}, size)
	if n >= size/2 {
		t.Errorf("up: got %d bytes taken from the client while the app read none, want less than %d", n, size/2)
	}
	close(read)
	up.SetWriteDeadline(time.Now().Add(harness.Patience))
	io.CopyN(up.TCPConn, &harness.Pattern{Left: size}, size-n)
	up.WantBody("/up")
	harness.Equal(t, <-sent, size, "up", "bytes at the app")
}

func TestStreamIsForwardedImmediately(t *testing.T) {
	next := make(chan string)
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for m := conn.Head(); m != nil; m = conn.Head() {
			conn.Send("HTTP/1.1 200 OK\r\n" + m.Get("x-framing") + "\r\n\r\n")
			for event := range next {
				if event == "" {
					return
				}
				conn.Send(event)
			}
		}
	}), nil)
	for framing, events := range map[string][]string{
		"Content-Length: 12":         {"one.", "two.", "end."},
		"Transfer-Encoding: chunked": {"4\r\none.\r\n", "4\r\ntwo.\r\n", "4\r\nend.\r\n"},
		"X-Framing: until close":     {"one.", "two.", "end."},
	} {
		t.Run(framing, func(t *testing.T) {
			c := server.Dial()
			c.T = t
			c.Send("GET / HTTP/1.1\r\nHost: a\r\nX-Framing: " + framing + "\r\n\r\n")
			if _, err := harness.ReadHead(c.In); err != nil { // the response arrives before the client sends the body
				t.Fatal(err)
			}
			for i, event := range events {
				next <- event
				want := []string{"one.", "two.", "end."}[i]
				if framing[0] != 'C' {
					want = "4\r\n" + want + "\r\n"
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c.In, got); err != nil || string(got) != want {
					t.Fatalf("got %q, %v, want %q", got, err, want)
				}
			}
			next <- ""
			c.Close()
		})
	}
}

func TestFullDuplexStreamsBothDirections(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		conn.Head()
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			line, err := harness.ReadLine(conn.In)
			if err != nil || line == "0" {
				break
			}
			word, _ := harness.ReadLine(conn.In)
			conn.Send(fmt.Sprintf("%x\r\n%s\r\n", len(word), word))
		}
		_, _ = harness.ReadLine(conn.In)
		conn.Send("0\r\n\r\n")
		conn.Hang()
	}), nil)
	c := server.Dial()
	c.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	if _, err := harness.ReadHead(c.In); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		chunk := fmt.Sprintf("6\r\nword %d\r\n", i)
		c.Send(chunk)
		got := make([]byte, len(chunk))
		if _, err := io.ReadFull(c.In, got); err != nil || string(got) != chunk {
			t.Fatalf("got %q, %v, want %q", got, err, chunk)
		}
	}
	c.Send("0\r\n\r\n")
	rest, err := io.ReadAll(c.In) // the response ended before the request, so the connection is closed
	if err != nil || string(rest) != "0\r\n\r\n" {
		t.Errorf("got %q, %v, want the last chunk and the end", rest, err)
	}
}

// The client can read the complete response even if the sidecar does not read all of its input.
func TestUnreadInputDoesNotResetResponse(t *testing.T) {
	const size = 1 << 20
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for m := conn.Request(); m != nil; m = conn.Request() {
			conn.Send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
			io.Copy(conn, &harness.Pattern{Left: size})
		}
	}), nil)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + strings.Repeat("x", 100<<10))
	if _, err := harness.ReadHead(c.In); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.In, b[:size*3/4]); err != nil {
		t.Fatal(err)
	}
	server.Observed(1) // the complete response was written
	if n, err := io.ReadFull(c.In, b[size*3/4:]); err != nil {
		t.Errorf("got %v after %d bytes of the last quarter, want all of it", err, n)
	}
	c.WantEnd()
}

// The test sends the requests of wrk and of the clients in test/bench.
func TestBenchmarkRequestsAreServed(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	requests := []string{
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:8012\r\n\r\n",
		"GET /100k HTTP/1.1\r\nHost: 127.0.0.1:8012\r\n\r\n",
		"GET /slow?ms=20 HTTP/1.1\r\nHost: 127.0.0.1:8012\r\nUser-Agent: bench\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: 127.0.0.1:8012\r\nContent-Length: 10240\r\nContent-Type: application/octet-stream\r\n\r\n" + strings.Repeat("x", 10240),
	}
	for _, text := range requests {
		c.Send(text)
		if m := c.Receive("GET"); m.Status() != 200 {
			t.Errorf("%.20q: got %s, want 200", text, m.Start)
		}
	}
	server.WantCounts(uint64(len(requests)), 0)
}
