package http1client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// framings contains responses with each framing, and whether the connection can be reused.
var framings = []struct {
	name    string
	method  string
	say     string
	closes  bool // the user container closes the connection after the response
	status  int
	body    string
	trailer string
	infos   []int
	kept    bool
}{
	{name: "length", say: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", kept: true},
	{name: "repeated equal length", say: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", kept: true},
	{name: "length 0", say: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, kept: true},
	{name: "chunked", say: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=\"y\"\r\nlo\r\n0\r\n\r\n", status: 200, body: "hello", kept: true},
	{name: "empty chunked body", say: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200, kept: true},
	{name: "trailers", say: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", status: 200, body: "hello", trailer: "A=b;C=d;", kept: true},
	{name: "until close", say: "HTTP/1.1 200 OK\r\n\r\nhello", closes: true, status: 200, body: "hello"},
	{name: "until close, empty body", say: "HTTP/1.1 200 OK\r\n\r\n", closes: true, status: 200},
	{name: "HTTP/1.0", say: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
	{name: "HTTP/1.0 kept alive", say: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", kept: true},
	{name: "connection: close", say: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
	{name: "HEAD", method: "HEAD", say: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", status: 200, kept: true},
	{name: "HEAD chunked", method: "HEAD", say: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", status: 200, kept: true},
	{name: "204", say: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, kept: true},
	{name: "304", say: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304, kept: true},
	{name: "informational", say: "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", infos: []int{103, 102}, kept: true},
	{name: "unexpected 100", say: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", status: 204, infos: []int{100}, kept: true},
	{name: "no reason, bare line ends", say: "HTTP/1.1 200\nContent-Length: 5\n\nhello", status: 200, body: "hello"},
	{name: "more than the length", say: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n", status: 200, body: "hello"},
	{name: "more than the chunks", say: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nx", status: 200, body: "hello"},
	{name: "a body after a 204", say: "HTTP/1.1 204 No Content\r\n\r\nhello", status: 204},
	{name: "a body for a HEAD", method: "HEAD", say: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200},
}

func TestResponseBodyFramings(t *testing.T) {
	for _, f := range framings {
		t.Run(f.name, func(t *testing.T) {
			a := app(t, func(conn *harness.AppConn) {
				readRequest(conn)
				conn.Send(f.say)
				if !f.closes {
					conn.Hang()
				}
			})
			k := newCall(cmp.Or(f.method, "GET"), "/")
			got := k.do(a)
			got.want(t, f.status, f.body)
			if got.trailer != f.trailer || fmt.Sprint(k.infos) != fmt.Sprint(f.infos) {
				t.Errorf("got trailer %q, infos %v, want %q, %v", got.trailer, k.infos, f.trailer, f.infos)
			}
			if f.kept { // after a HEAD request, the connection is returned with a delay
				harness.Until(t, "connection that is kept", func() bool { return idle(a) == 1 })
			}
			harness.Equal(t, idle(a) == 1, f.kept, "connection kept")
		})
	}
}

// A sender may split its output at any byte. The connections are in memory because there are
// many splits.
func TestResponseSplitAtEachByte(t *testing.T) {
	for _, f := range framings {
		for i := 1; i < len(f.say); i++ {
			if strings.HasPrefix(f.name, "more than") || strings.HasPrefix(f.name, "a body") {
				continue // the result depends on whether the excess bytes have arrived
			}
			a := New(Settings{Port: 1})
			k := newCall(cmp.Or(f.method, "GET"), "/")
			near, far := pipes()
			head := make([]byte, len(k.head()))
			go func() {
				defer far.Close()
				far.Read(head)
				far.Write([]byte(f.say[:i]))
				far.Write([]byte(f.say[i:]))
			}()
			got := k.doOn(a, newClientConn(near, a.buffers))
			got.want(t, f.status, f.body)
			if got.trailer != f.trailer || fmt.Sprint(k.infos) != fmt.Sprint(f.infos) {
				t.Errorf("%s split at %d: got trailer %q, infos %v, want %q, %v", f.name, i, got.trailer, k.infos, f.trailer, f.infos)
			}
			a.Close()
		}
	}
}

func TestInvalidResponseClosesConnection(t *testing.T) {
	many := strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", rewrite.MaxInfos+1)
	for name, say := range map[string]string{
		"SSH":                        "SSH-2.0-OpenSSH_9.2\r\n",
		"a number":                   "42\r\n",
		"HTTP/2.0":                   "HTTP/2.0 200 OK\r\n\r\n",
		"HTTP/0.9":                   "<html>hello</html>",
		"an empty line first":        "\r\nHTTP/1.1 200 OK\r\n\r\n",
		"status of two digits":       "HTTP/1.1 20 OK\r\n\r\n",
		"status 099":                 "HTTP/1.1 099 OK\r\n\r\n",
		"a line without colon":       "HTTP/1.1 200 OK\r\nhello\r\n\r\n",
		"a NUL":                      "HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n",
		"two lengths":                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a negative length":          "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"a length that is too large": "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n",
		"length and chunked":         "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"gzip, chunked":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"unexpected 101":             "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		"too many informational":     many + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"endless header":             "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxHead),
		"invalid chunk size":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n",
		"a chunk that is too long":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
		"endless trailers":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + strings.Repeat("a", 16<<10),
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan struct{})
			a := app(t, func(conn *harness.AppConn) {
				readRequest(conn)
				conn.Send(say)
				conn.Hang()
				close(closed)
			})
			got := newCall("GET", "/").do(a)
			harness.Equal(t, transport.FaultOf(got.err), transport.FaultGarbage, got.err)
			harness.Receive(t, closed, "closing the connection")
			harness.Equal(t, idle(a), 0, "idle connections")
		})
	}
}

func TestLongResponseHeaderIsRead(t *testing.T) {
	value := strings.Repeat("v", maxHead-200)
	a := app(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: "+value+"\r\n\r\nhello"))
	for range 2 {
		k := newCall("GET", "/")
		r, err := k.Do(a)
		harness.NoError(t, err)
		if got := string(r.Head.Fields[1].Value); got != value {
			t.Errorf("got a value of %d bytes, want %d", len(got), len(value))
		}
		if data, err := r.Next(); string(data) != "hello" || err != nil {
			t.Errorf("got %q, %v, want hello", data, err)
		}
		r.Next()
		r.Close()
	}
}

func TestResponseHeaderOfMaxHeaderBytesIsRead(t *testing.T) {
	const limit = 4 << 20
	for extra, want := range map[int]transport.Fault{0: 0, 1: transport.FaultGarbage} {
		const start, end = "HTTP/1.1 204 No Content\r\nA: ", "\r\n\r\n"
		s := harness.NewApp(t, answers(start+strings.Repeat("a", limit+extra-len(start+end))+end))
		a := New(Settings{Port: s.Port, MaxHeaderBytes: limit})
		t.Cleanup(a.Close)
		if got := newCall("GET", "/").do(a); transport.FaultOf(got.err) != want {
			t.Errorf("%d bytes more than the limit: got %v, want fault %d", extra, got.err, want)
		}
	}
}

func TestLongHeaderBufferIsReleasedBeforeBodyEnds(t *testing.T) {
	more := make(chan struct{})
	a := app(t, func(conn *harness.AppConn) {
		readHead(conn)
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nA: " + strings.Repeat("a", 900<<10) + "\r\n\r\nhello")
		<-more
		conn.Send("me")
		conn.Hang()
	})
	k := newCall("GET", "/")
	r, err := k.Do(a)
	harness.NoError(t, err)
	read := 0
	k.waiting = func() {
		if read == len("hello") {
			close(more)
		}
	}
	for read < len("hellome") {
		data, err := r.Next()
		harness.NoError(t, err)
		read += len(data)
	}
	if len(r.conn.buf) > bufferSize || len(r.Head.Fields) > 0 {
		t.Errorf("got a buffer of %d bytes and %d fields while the body is read, want at most %d and none", len(r.conn.buf), len(r.Head.Fields), bufferSize)
	}
	r.Close()
}

func TestIdleConnectionHoldsNoBuffer(t *testing.T) {
	a := app(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	newCall("GET", "/").do(a).want(t, 200, "hello")
	if c := a.idle[0]; c.buf != nil || c.pooled != nil {
		t.Errorf("got a buffer of %d bytes, want none", len(c.buf))
	}
}

// A truncated response must not look complete (RFC 9112 section 8).
func TestIncompleteResponseReturnsReset(t *testing.T) {
	for name, say := range map[string]string{
		"nothing":                "",
		"half a status line":     "HTTP/1.1 2",
		"half a header":          "HTTP/1.1 200 OK\r\nContent-Le",
		"after a 103":            "HTTP/1.1 103 Early Hints\r\n\r\n",
		"half a body":            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
		"no last chunk":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
		"no end of the trailers": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n",
	} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reset %v", name, reset), func(t *testing.T) {
				a := app(t, func(conn *harness.AppConn) {
					readRequest(conn)
					conn.Send(say)
					if reset {
						conn.Reset()
					}
				})
				k := newCall("GET", "/")
				got := k.do(a)
				if transport.FaultOf(got.err) != transport.FaultReset || idle(a) != 0 || k.sends != 1 {
					t.Errorf("got %v, %d idle, %d sends, want a reset, 0, 1", got.err, idle(a), k.sends)
				}
			})
		}
	}
}

func TestResetOfUnframedBodyReturnsError(t *testing.T) {
	heard := make(chan struct{})
	a := app(t, func(conn *harness.AppConn) {
		readRequest(conn)
		conn.Send("HTTP/1.1 200 OK\r\n\r\nhello")
		<-heard
		conn.Reset()
	})
	k := newCall("GET", "/")
	r, err := k.Do(a)
	harness.NoError(t, err)
	if data, err := r.Next(); err != nil || len(data) == 0 {
		t.Fatalf("got %q, %v, want bytes", data, err)
	}
	close(heard)
	for err == nil {
		_, err = r.Next()
	}
	harness.Equal(t, transport.FaultOf(err), transport.FaultReset, err)
	r.Close()
}

func TestLengthIsKnownBeforeBody(t *testing.T) {
	for say, want := range map[string]int64{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello":                            5,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n": -1,
		"HTTP/1.1 200 OK\r\n\r\nhello":                                                 -1,
		"HTTP/1.1 204 No Content\r\n\r\n":                                              0,
	} {
		a := app(t, func(conn *harness.AppConn) { readRequest(conn); conn.Send(say) })
		k := newCall("GET", "/")
		r, err := k.Do(a)
		harness.NoError(t, err)
		harness.Equal(t, r.Length(), want, say)
		r.Close()
	}
}

// Next calls Waiting, so that a streaming caller can flush its output.
func TestNextCallsWaitingBeforeBlocking(t *testing.T) {
	next := make(chan struct{})
	a := app(t, func(conn *harness.AppConn) {
		readRequest(conn)
		conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
		for range 3 {
			<-next
			conn.Send("1\r\nb\r\n")
		}
		<-next
		conn.Send("0\r\n\r\n")
	})
	k := newCall("GET", "/")
	k.waiting = func() { next <- struct{}{} } // the user container continues only after Waiting was called
	got := harness.Within(t, "the response", func() outcome { return k.do(a) })
	got.want(t, 200, "abbb")
}

func TestErrorWrapsSystemError(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) { readRequest(conn) })
	err := newCall("GET", "/").do(a).err
	var e *transport.Error
	if !errors.As(err, &e) || e.Err == nil || !strings.HasPrefix(err.Error(), "user container: connection reset: ") {
		t.Errorf("got %v, want a reset with its cause", err)
	}
}

func TestKeepAliveTimeoutHasMargin(t *testing.T) {
	for timeout, kept := range map[int]bool{0: false, 1: false, 5: true, 75: true} {
		a := app(t, func(conn *harness.AppConn) {
			readRequest(conn)
			conn.Send(fmt.Sprintf("HTTP/1.1 204 No Content\r\nKeep-Alive: timeout=%d, max=100\r\n\r\n", timeout))
			conn.Hang()
		})
		newCall("GET", "/").do(a).want(t, 204, "")
		if got := idle(a) == 1; got != kept {
			t.Fatalf("got kept %v with timeout=%d, want %v", got, timeout, kept)
		}
		if !kept {
			continue
		}
		if left := time.Until(a.idle[0].expires); left > time.Duration(timeout)*time.Second-keepAliveMargin {
			t.Errorf("got %v left with timeout=%d, want %v less", left, timeout, keepAliveMargin)
		}
	}
}
