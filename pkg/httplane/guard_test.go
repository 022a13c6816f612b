package httplane

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// scripted is a connection whose peer has sent some bytes, which come in pieces, and
// has gone.
type scripted struct {
	net.Conn
	left  []byte
	piece int
	said  bytes.Buffer // to the peer
}

func (c *scripted) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.left[:min(c.piece, len(c.left))])
	c.left = c.left[n:]
	return n, nil
}

func (c *scripted) Write(p []byte) (int, error)    { return c.said.Write(p) }
func (*scripted) SetReadDeadline(time.Time) error  { return nil }
func (*scripted) SetWriteDeadline(time.Time) error { return nil }

// peeking reads as net/http does: while a request is served it asks for one byte, and
// takes it for the first of what comes next.
type peeking struct {
	*guard
	byte  []byte
	given []byte // since the last request ended
}

func (p *peeking) peek() {
	var b [1]byte
	n, _ := p.guard.Read(b[:])
	p.byte = b[:n]
}

func (p *peeking) Read(b []byte) (int, error) {
	if len(p.byte) > 0 {
		n := copy(b, p.byte)
		p.byte = nil
		p.given = append(p.given, b[:n]...)
		return n, nil
	}
	n, err := p.guard.Read(b)
	p.given = append(p.given, b[:n]...)
	return n, err
}

// FuzzGuard lets net/http read what a guard lets through. Both must see the same
// requests: each begins where the guard says, has the method, target and framing that
// it has seen, and ends where it says; that is what keeps one request from being
// smuggled in another.
func FuzzGuard(f *testing.F) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /%zz HTTP/1.1\r\nHost: b\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-T: 1\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\nHost: a\n\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
		"\r\nGET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nxHEAD / HTTP/1.1\r\nHost:\r\n\r\n",
	} {
		f.Add([]byte(text), 3, true)
		f.Add([]byte(text), 1000, false)
	}
	f.Fuzz(func(t *testing.T, sent []byte, piece int, peeks bool) {
		if len(sent) > 1<<13 {
			return
		}
		c := &scripted{left: bytes.Clone(sent), piece: max(piece, 1)}
		g := &guard{Conn: c, maxHead: 1 << 12, onClose: func(*guard) {}}
		in := &peeking{guard: g}
		br := bufio.NewReader(in)
		for {
			r, err := http.ReadRequest(br)
			if g.state == opaque {
				return // HTTP/2, or one that net/http judges alone
			}
			if g.refused.Load() {
				if err == nil {
					t.Fatalf("%q: got a request behind a refusal", sent)
				}
				answer, bad := http.ReadResponse(bufio.NewReader(&c.said), nil)
				if bad != nil || !slices.Contains([]int{400, 431, 505}, answer.StatusCode) || !answer.Close {
					t.Fatalf("%q: got the refusal %+v, %v, want 400, 431 or 505 and the end", sent, answer, bad)
				}
				return
			}
			if err != nil {
				var strict wire.Request
				if n, odd := strict.Parse(in.given); n > 0 && odd == nil {
					t.Fatalf("%q: got %v of %q, which was let through", sent, err, in.given)
				}
				return
			}
			if r.Method != string(g.request.Method) || r.RequestURI != string(g.request.Target) {
				t.Fatalf("%q: net/http sees %s %s, want %s %s", sent, r.Method, r.RequestURI, g.request.Method, g.request.Target)
			}
			length, framing := g.request.BodyLength()
			chunked := slices.Equal(r.TransferEncoding, []string{"chunked"})
			if chunked != (framing == wire.Chunked) || !chunked && r.ContentLength != max(length, 0) {
				t.Fatalf("%q: net/http sees %q of %d, want %v of %d", sent, r.TransferEncoding, r.ContentLength, framing, length)
			}
			if peeks && framing == wire.None {
				in.peek()
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				if g.state == atHead {
					t.Fatalf("%q: got %v of a body that has ended", sent, err)
				}
				return
			}
			if g.state != atHead || br.Buffered() > 0 || g.open.Load() {
				t.Fatalf("%q: net/http has read a body, want it to end where the guard says: state %d, %d bytes behind it", sent, g.state, br.Buffered())
			}
			if peeks && framing != wire.None {
				in.peek()
			}
			g.serving.Store(false)
			in.given = nil
		}
	})
}
