package http1_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

func TestPipelinedRequestsAreAnsweredInOrderOnOneConnection(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c := h.dial()
	c.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"GET /d HTTP/1.1\r\nHost: a\r\n\r\n")
	for _, want := range []string{"/a", "/b", "/c", "/d"} {
		c.wantBody(want)
	}
	h.wantCounts(4, 0)
}

func TestAHeadSentByteByByteIsServed(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c := h.dial()
	c.SetNoDelay(true)
	for range 2 {
		for _, b := range []byte("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab") {
			c.send(string(b))
		}
		c.wantBody("/slow")
	}
	h.wantCounts(2, 0)
}

func TestAHeadMayBeAsLongAsTheLimit(t *testing.T) {
	const limit = 96 << 10
	h := build(t, newApp(t, echo), func(_ *queue.Proxy, s *settings) { s.MaxHeaderBytes = limit })
	head := func(size int) string {
		const frame = "GET /long HTTP/1.1\r\nHost: a\r\nX-Long: \r\n\r\n"
		return strings.Replace(frame, "X-Long: ", "X-Long: "+strings.Repeat("x", size-len(frame)), 1)
	}
	c := h.dial()
	for _, size := range []int{8 << 10, 32<<10 - 1, 32 << 10, 32<<10 + 1, 64 << 10, limit - 1, limit} {
		c.send(head(size))
		c.wantBody("/long")
	}
	h.wantCounts(7, 0)
	c.send(head(limit + 1))
	if m := c.receive("GET"); m.status() != 431 {
		t.Errorf("got %s, want 431", m.start)
	}
	c.ended()
}

// Wherever a read ends, the app gets the same request.
func TestABodyArrivesWhateverItsSplit(t *testing.T) {
	requests := map[string]struct{ text, body, trailer string }{
		"a length":  {"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome body", "some body", ""},
		"no length": {"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n4;x=y\r\nsome\r\n5\r\n body\r\n0\r\nX-T: end\r\n\r\n", "some body", "x-t: end"},
	}
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			got := make(chan *message, 1)
			h := build(t, newApp(t, func(p *peer) {
				for m := p.request(); m != nil; m = p.request() {
					got <- m
					p.say(ok(m.target()))
				}
			}), nil)
			c := h.dial()
			c.SetNoDelay(true)
			for split := 1; split < len(request.text); split++ {
				before := len(h.observed(0))
				c.send(request.text[:split])
				if split%8 == 0 { // let some of the pieces be read apart
					if strings.Contains(request.text[:split], "\r\n\r\n") {
						h.inFlight(1)
					} else {
						time.Sleep(100 * time.Microsecond)
					}
				}
				c.send(request.text[split:])
				c.wantBody("/p")
				m := <-got
				if m.body != request.body || strings.Join(m.trailers, "|") != request.trailer {
					t.Fatalf("split at %d: got body %q and trailers %q, want %q and %q", split, m.body, m.trailers, request.body, request.trailer)
				}
				if o := h.observed(before + 1)[before]; o.In != int64(len(request.body)) || o.Why != queue.OK {
					t.Fatalf("split at %d: got %d bytes in, %v, want %d, ok", split, o.In, o.Why, len(request.body))
				}
			}
			h.wantCounts(uint64(len(request.text)-1), 0)
		})
	}
}

// The head fills the buffer, so that no room is left behind it for the framing of
// the body.
func TestAChunkedBodyHasRoomBehindAnyHead(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	for _, size := range []int{32<<10 - 1, 32 << 10} {
		c := h.dial()
		const frame = "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-Long: \r\n\r\n"
		c.send(strings.Replace(frame, "X-Long: ", "X-Long: "+strings.Repeat("x", size-len(frame)), 1))
		c.send("3\r\nabc\r\n0\r\n\r\n")
		c.wantBody("/p")
	}
	c := h.dial()
	for size := range 300 { // one behind the other, so that their heads end anywhere in the buffer
		c.send(fmt.Sprintf("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-Long: %s\r\n\r\n3\r\nabc\r\n0\r\n\r\n", strings.Repeat("x", 10*size)))
	}
	for range 300 {
		c.wantBody("/p")
	}
}

func TestSmallChunksThatArriveTogetherGoOnTogether(t *testing.T) {
	const n = 4000
	chunks := make(chan int, 1)
	h := build(t, newApp(t, func(p *peer) {
		m := p.head()
		count := 0
		for line, err := readLine(p.in); line != "0"; line, err = readLine(p.in) {
			if err != nil {
				t.Errorf("the app: %v", err)
				break
			}
			var size int
			fmt.Sscanf(line, "%x", &size)
			p.in.Discard(size + 2)
			count++
		}
		_, _ = readLine(p.in)
		chunks <- count
		p.say(ok(m.target()))
		p.hang()
	}), nil)
	c := h.dial()
	c.send("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", n) + "0\r\n\r\n")
	c.wantBody("/p")
	if got, most := <-chunks, n/10; got > most {
		t.Errorf("got %d chunks at the app, want at most %d", got, most)
	}
}

func TestTrailersPassBothWays(t *testing.T) {
	got := make(chan *message, 1)
	h := build(t, newApp(t, func(p *peer) {
		got <- p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nX-Other: 8\r\n\r\n")
		p.hang()
	}), nil)
	c := h.dial()
	c.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: X-A\r\nTrailer: X-B, X-C\r\n\r\n" +
		"2\r\nhi\r\n0\r\nX-A: 1\r\nX-B: 2\r\nX-D: 3\r\n\r\n")
	r := c.receive("POST")
	if want := "x-sum: 7|x-other: 8"; r.body != "ok" || strings.Join(r.trailers, "|") != want {
		t.Errorf("client: got %q, %q, want ok, %q", r.body, r.trailers, want)
	}
	m := <-got
	if want := "x-a: 1|x-b: 2|x-d: 3"; strings.Join(m.trailers, "|") != want {
		t.Errorf("app: got trailers %q, want %q", m.trailers, want)
	}
	if got, want := strings.ReplaceAll(strings.ReplaceAll(m.get("trailer"), "|", ","), " ", ""), "X-A,X-B,X-C"; got != want {
		t.Errorf("app: got Trailer %q, want %q", got, want)
	}
	if m.get("te") != "trailers" {
		t.Errorf("app: got TE %q, want trailers", m.get("te"))
	}
	h.wantCounts(1, 0)
}

// Nobody speaks in our name, at the end of a response as at its beginning.
func TestNoTrailerSpeaksInOurName(t *testing.T) {
	for _, reference := range []bool{false, true} {
		h := build(t, newApp(t, func(p *peer) {
			p.request()
			p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" +
				"Proxy-Status: queue-proxy; error=x, other; error=y\r\nX-Sum: 7\r\nPROXY-STATUS: queue-proxy\r\n\r\n")
			p.hang()
		}), func(_ *queue.Proxy, s *settings) { s.reference = reference })
		c := h.dial()
		c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		got := c.receive("GET").trailers
		slices.Sort(got)
		if want := "proxy-status: other; error=y|x-sum: 7"; strings.Join(got, "|") != want {
			t.Errorf("net/http %v: got %q, want %q", reference, got, want)
		}
	}
}

// A pattern is a body in which each part can be told from its neighbours.
type pattern struct{ left, at int }

// period is what a pattern repeats; its length has no factor in common with that
// of any buffer.
var period = func() []byte {
	b := make([]byte, 65_537)
	for i := range b {
		b[i] = byte(i*i>>8 + i)
	}
	return b
}()

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	at := p.at % len(period)
	n := copy(b[:min(len(b), p.left)], period[at:])
	p.at, p.left = p.at+n, p.left-n
	return n, nil
}

// same reads a pattern and reports what is wrong with it.
func same(r io.Reader, size int) error {
	want := &pattern{left: size}
	a, b := make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, err := r.Read(a)
		if m, _ := io.ReadFull(want, b[:n]); m != n || !bytes.Equal(a[:n], b[:n]) {
			return fmt.Errorf("other bytes before %d", want.at)
		}
		switch {
		case err == io.EOF && want.left > 0:
			return fmt.Errorf("the end after %d of %d bytes", want.at, size)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func TestTenMegabytesPassBothWays(t *testing.T) {
	const size = 10 << 20
	h := build(t, newApp(t, func(p *peer) {
		for {
			m := p.head()
			if m == nil {
				return
			}
			switch {
			case m.get("content-length") == fmt.Sprint(size):
				if err := same(io.LimitReader(p.in, size), size); err != nil {
					t.Errorf("the app got %v", err)
				}
				p.say(ok(m.target()))
			case m.get("transfer-encoding") == "chunked":
				if err := m.readBody(p.in); err != nil {
					t.Errorf("the app got %v", err)
				}
				if err := same(strings.NewReader(m.body), size); err != nil {
					t.Errorf("the app got %v", err)
				}
				p.say(ok(m.target()))
			case m.target() == "/length":
				p.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
				io.Copy(p, &pattern{left: size})
			case m.target() == "/close":
				p.say("HTTP/1.1 200 OK\r\n\r\n")
				io.Copy(p, &pattern{left: size})
				return
			default:
				p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				sendChunks(p, size)
			}
		}
	}), nil)
	c := h.dial()
	c.send(fmt.Sprintf("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size))
	io.Copy(c.TCPConn, &pattern{left: size})
	c.wantBody("/up")
	c.send("POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	sendChunks(c, size)
	c.wantBody("/chunks")
	for _, path := range []string{"/length", "/close", "/down"} {
		c.send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		m := c.receive("GET")
		if err := same(strings.NewReader(m.body), size); err != nil || !m.told {
			t.Errorf("%s: got %v, want all of the body", path, err)
		}
	}
	h.wantCounts(5, 0)
}

// sendChunks sends a pattern in chunks of many sizes.
func sendChunks(w io.Writer, size int) {
	p := &pattern{left: size}
	b := make([]byte, 100_000)
	for n := 1; ; n = n*5/3%len(b) + 1 {
		k, err := p.Read(b[:n])
		if err != nil {
			break
		}
		fmt.Fprintf(w, "%x\r\n", k)
		w.Write(b[:k])
		io.WriteString(w, "\r\n")
	}
	io.WriteString(w, "0\r\n\r\n")
}

// A side that does not read stops the other side, and not much is held between
// them.
func TestASlowReaderHoldsTheSenderBack(t *testing.T) {
	const size = 64 << 20
	sent := make(chan int64, 1)
	play := func(p *peer) {
		m := p.head()
		if m == nil {
			return
		}
		if m.target() == "/up" {
			time.Sleep(300 * time.Millisecond) // reads nothing for a while
			n, _ := io.CopyN(io.Discard, p.in, size)
			sent <- n
			p.say(ok("/up"))
			p.hang()
			return
		}
		p.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
		p.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, _ := io.CopyN(p, &pattern{left: size}, size)
		sent <- n
	}
	h := build(t, newApp(t, play), nil)

	down := h.dial()
	down.send("GET /down HTTP/1.1\r\nHost: a\r\n\r\n")
	if n := <-sent; n >= size/2 {
		t.Errorf("down: got %d bytes taken from the app while the client read none, want less than %d", n, size/2)
	}
	down.Close()

	up := h.dial()
	up.send(fmt.Sprintf("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size))
	up.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	n, _ := io.CopyN(up.TCPConn, &pattern{left: size}, size)
	if n >= size/2 {
		t.Errorf("up: got %d bytes taken from the client while the app read none, want less than %d", n, size/2)
	}
	up.SetWriteDeadline(time.Now().Add(patience))
	io.CopyN(up.TCPConn, &pattern{left: size}, size-n)
	up.wantBody("/up")
	if got := <-sent; got != size {
		t.Errorf("up: got %d bytes at the app, want %d", got, size)
	}
}

func TestStreamingIsPassedOnAsItComes(t *testing.T) {
	next := make(chan string)
	h := build(t, newApp(t, func(p *peer) {
		for m := p.head(); m != nil; m = p.head() {
			p.say("HTTP/1.1 200 OK\r\n" + m.get("x-framing") + "\r\n\r\n")
			for event := range next {
				if event == "" {
					return
				}
				p.say(event)
			}
		}
	}), nil)
	for framing, events := range map[string][]string{
		"Content-Length: 12":         {"one.", "two.", "end."},
		"Transfer-Encoding: chunked": {"4\r\none.\r\n", "4\r\ntwo.\r\n", "4\r\nend.\r\n"},
		"X-Framing: until close":     {"one.", "two.", "end."},
	} {
		t.Run(framing, func(t *testing.T) {
			c := h.dial()
			c.t = t
			c.send("GET / HTTP/1.1\r\nHost: a\r\nX-Framing: " + framing + "\r\n\r\n")
			if _, err := readHead(c.r); err != nil { // before any of the body
				t.Fatal(err)
			}
			for i, event := range events {
				next <- event
				want := []string{"one.", "two.", "end."}[i]
				if framing[0] != 'C' {
					want = "4\r\n" + want + "\r\n"
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c.r, got); err != nil || string(got) != want {
					t.Fatalf("got %q, %v, want %q", got, err, want)
				}
			}
			next <- ""
			c.Close()
		})
	}
}

func TestAClientMayTalkWhileItListens(t *testing.T) {
	h := build(t, newApp(t, func(p *peer) {
		p.head()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			line, err := readLine(p.in)
			if err != nil || line == "0" {
				break
			}
			word, _ := readLine(p.in)
			p.say(fmt.Sprintf("%x\r\n%s\r\n", len(word), word))
		}
		_, _ = readLine(p.in)
		p.say("0\r\n\r\n")
		p.hang()
	}), nil)
	c := h.dial()
	c.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	if _, err := readHead(c.r); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		chunk := fmt.Sprintf("6\r\nword %d\r\n", i)
		c.send(chunk)
		got := make([]byte, len(chunk))
		if _, err := io.ReadFull(c.r, got); err != nil || string(got) != chunk {
			t.Fatalf("got %q, %v, want %q", got, err, chunk)
		}
	}
	c.send("0\r\n\r\n")
	rest, err := io.ReadAll(c.r) // the answer came before the request's end, so the connection ends
	if err != nil || string(rest) != "0\r\n\r\n" {
		t.Errorf("got %q, %v, want the last chunk and the end", rest, err)
	}
}

func TestAnUpgradeThatIsIgnoredStaysHere(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c := h.dial()
	c.send("GET /java HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n")
	c.wantBody("/java")
	c.send("POST /body HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi")
	c.wantBody("/body")
	h.wantCounts(2, 0)
	// h2c is not all that this one offers.
	c.send("GET /two HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n")
	c.wantBody("/two")
	h.wantCounts(3, 0)
}

func TestABodyOverTheLimitIsAnswered413(t *testing.T) {
	h := build(t, newApp(t, echo), func(_ *queue.Proxy, s *settings) { s.MaxBodyBytes = 10 })
	for name, text := range map[string]string{
		"a length that has arrived":  "Content-Length: 11\r\n\r\n12345678901",
		"a length that has not":      "Content-Length: 11\r\n\r\n",
		"no length":                  "Transfer-Encoding: chunked\r\n\r\nb\r\n12345678901\r\n0\r\n\r\n",
		"no length, many at the end": "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\na\r\n2345678901\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := h.dial()
			c.t = t
			c.send("POST /p HTTP/1.1\r\nHost: a\r\n" + text)
			m := c.receive("POST")
			if want := `queue-proxy; error=http_request_error; details="bad-request"`; m.status() != 413 || m.get("proxy-status") != want {
				t.Errorf("got %s, Proxy-Status %q, want 413, %q", m.start, m.get("proxy-status"), want)
			}
		})
	}
	c := h.dial()
	c.send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1234567890")
	c.wantBody("/p")
	c.send("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n1234567890\r\n0\r\n\r\n")
	c.wantBody("/p")
}

func TestBadFramingInsideABodyEndsTheConnection(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	for _, body := range []string{"x\r\n", "3\nabc\r\n", "3\r\nabcd\r\n", "11111111111111111\r\n", "3 \r\nabc\r\n0\r\n\r\n", "0\r\nContent-Length: 3\r\n\r\n"} {
		c := h.dial()
		c.send("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body + "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
		if m := c.receive("POST"); m.status() != 400 || m.get("connection") != "close" {
			t.Errorf("%q: got %s, Connection: %s, want 400, close", body, m.start, m.get("connection"))
		}
		c.ended()
	}
}

// What a client has been told it can read, whatever it has sent behind.
func TestAnAnswerSurvivesWhatNobodyReads(t *testing.T) {
	const size = 1 << 20
	h := build(t, newApp(t, func(p *peer) {
		for m := p.request(); m != nil; m = p.request() {
			p.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
			io.Copy(p, &pattern{left: size})
		}
	}), nil)
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + strings.Repeat("x", 100<<10))
	if _, err := readHead(c.r); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.r, b[:size*3/4]); err != nil {
		t.Fatal(err)
	}
	h.observed(1) // all has been written
	if n, err := io.ReadFull(c.r, b[size*3/4:]); err != nil {
		t.Errorf("got %v after %d bytes of the last quarter, want all of it", err, n)
	}
	c.ended()
}

// Those who count and tell see the same request by either engine, byte for byte.
func TestBothEnginesTellTheSameOfARequest(t *testing.T) {
	for _, slow := range []bool{false, true} {
		h := build(t, newApp(t, echo), func(_ *queue.Proxy, s *settings) { s.reference = slow })
		c := h.dial()
		for i, v := range []struct{ line, target, host string }{
			{"GET /a%2f?b=%zz HTTP/1.1", "/a%2f?b=%zz", "field"}, // in a path net/http refuses it
			{"DELETE http://authority:80/x HTTP/1.1", "http://authority:80/x", "authority:80"},
			{"OPTIONS * HTTP/1.1", "*", "field"},
		} {
			c.send(v.line + "\r\nHost: field\r\n\r\n")
			c.receive("GET")
			method, _, _ := strings.Cut(v.line, " ")
			want := queue.Line{Method: method, Target: v.target, Host: v.host, Major: 1, Minor: 1, Remote: c.LocalAddr().String()}
			if got := h.observed(i + 1)[i].Line; got != want {
				t.Errorf("%s, net/http %t: got %+v, want %+v", v.line, slow, got, want)
			}
		}
	}
}

// replacing is a trace that has its own word in the place of the client's.
type replacing struct{}

func (replacing) ID() string             { return "id" }
func (replacing) Drop(name string) bool  { return strings.EqualFold(name, "traceparent") }
func (replacing) Fields() []queue.Field  { return []queue.Field{{Name: "Traceparent", Value: "ours"}} }
func (replacing) End(*queue.Observation) {}

func TestATraceReplacesTheClientsFieldsInBothEngines(t *testing.T) {
	for _, slow := range []bool{false, true} {
		var heard string
		var repeats bool
		h := build(t, newApp(t, func(p *peer) {
			for m := p.request(); m != nil; m = p.request() {
				slices.Sort(m.fields)
				p.say(ok(strings.Join(m.fields, "|")))
			}
		}), func(p *queue.Proxy, s *settings) {
			s.reference = slow
			p.Trace = func(x queue.Exchange) queue.Trace {
				heard, repeats = strings.Clone(x.Header("Traceparent")), x.Repeats("Traceparent")
				return replacing{}
			}
		})
		c := h.dial()
		for i, v := range []struct {
			sent    string
			heard   string
			repeats bool
		}{
			{"", "", false},
			{"tRaceparent: theirs\r\n", "theirs", false},
			{"traceparent: one\r\nTRACEPARENT: two\r\n", "one", true},
		} {
			c.send("GET / HTTP/1.1\r\nHost: a\r\nX-Other: kept\r\n" + v.sent + "\r\n")
			c.wantBody("host: a|traceparent: ours|x-forwarded-for: 127.0.0.1|x-other: kept")
			h.observed(i + 1)
			if heard != v.heard || repeats != v.repeats {
				t.Errorf("%q, net/http %t: got %q, repeats %t, want %q, %t", v.sent, slow, heard, repeats, v.heard, v.repeats)
			}
		}
	}
}

// As wrk and the clients of the comparison (test/bench) write them.
func TestEveryRequestOfTheComparisonIsServedHere(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c := h.dial()
	requests := []string{
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:8012\r\n\r\n",
		"GET /100k HTTP/1.1\r\nHost: 127.0.0.1:8012\r\n\r\n",
		"GET /slow?ms=20 HTTP/1.1\r\nHost: 127.0.0.1:8012\r\nUser-Agent: bench\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: 127.0.0.1:8012\r\nContent-Length: 10240\r\nContent-Type: application/octet-stream\r\n\r\n" + strings.Repeat("x", 10240),
	}
	for _, text := range requests {
		c.send(text)
		if m := c.receive("GET"); m.status() != 200 {
			t.Errorf("%.20q: got %s, want 200", text, m.start)
		}
	}
	h.wantCounts(uint64(len(requests)), 0)
}
