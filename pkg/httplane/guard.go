package httplane

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/hangup"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/socket"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

const (
	guardBuffer = 4 << 10
	// lingerTime and lingerBytes bound how long a connection that is closed in the
	// middle of a request's body still takes what the client sends, so that the
	// client can read the answer before a reset destroys it (RFC 9112 section 9.6).
	lingerTime  = time.Second
	lingerBytes = 8 << 20
)

// past is a deadline that has long gone by.
var past = time.Unix(1, 0)

// A guard stands between a client's connection and net/http. It reads every
// request head by the strict grammar of package wire before net/http sees a byte
// of it, and follows the framing of bodies in order to know where the next head
// begins. Plain attacks are refused here; a head that only net/http can judge is
// the last one that is served on its connection.
//
// It also knows what net/http does not tell: whether the client has gone,
// whether a request's body is complete, and the target byte for byte.
type guard struct {
	net.Conn                      // bare, or TLS; read by one goroutine at a time
	bare     *net.TCPConn         // under Conn; nil in tests with other connections
	secure   *tls.ConnectionState // nil: not TLS; set before the first request is given out
	maxHead  int
	headTime time.Duration // for a head to arrive, from its first byte on; 0: any
	watch    *hangup.Watch
	gone     atomic.Bool              // the client has closed its side
	current  atomic.Pointer[exchange] // the request that net/http serves (HTTP/1)
	onClose  func(*guard)
	talker   atomic.Pointer[goaway.Conn] // once the client has turned out to speak HTTP/2
	heads    atomic.Pointer[heads]       // likewise
	closing  sync.Once
	reset    atomic.Bool // close with a reset
	place    *connlimit.Place
	answered atomic.Bool // a request has been served on the connection
	yields   atomic.Bool // an HTTP/2 client has been told that another one waits for its place

	// Of the reader.
	buf     []byte
	r, w    int // buf[r:w] has been read from Conn
	pass    int // so many of them may be given out
	lent    int // so many of the next head have been given out unread: 0 or 1
	state   state
	left    int64 // of a body with a length
	request wire.Request
	chunks  wire.Chunks
	target  string    // of the present request, when net/http may not see it; else ""
	begun   bool      // a head has been judged: HTTP/2 cannot begin any more
	last    bool      // nothing behind the present request is served
	headEnd time.Time // when the head that has begun to arrive must be there; zero: any time
	hurried bool      // headEnd has been drawn in, because the connection retires

	open    atomic.Bool // the present request's body has not arrived in full
	bad     atomic.Bool // nor will it: its chunks are none; net/http does not always say so
	stop    atomic.Bool // read nothing any more
	cutOff  atomic.Bool // what the client still sends is lost: linger
	refused atomic.Bool // we have answered; net/http has nothing to say

	serving atomic.Bool // a request has been given out and not ended (HTTP/1)

	// Of what is written (see hurry).
	sending   sync.Mutex
	writing   bool      // to an HTTP/2 client
	overdue   int       // its requests that are over and have not ended
	sendEnd   time.Time // when that has to be done with; zero: sendLimit decides
	sendLimit time.Time // as net/http has set it

	// Of the end (see retire).
	ending   sync.Mutex
	waiting  bool // the reader waits for a head, or for the rest of one
	retiring bool
	nudged   bool // retire has ended that wait
	evicted  bool // it ends, so that another connection can be served
	late     bool // a request had come when it was; of the reader alone
}

// state is what the next bytes are.
type state uint8

const (
	atHead state = iota
	inBody
	inChunks
	opaque // HTTP/2, or a request that net/http judges alone
	ended
)

// Read gives out bytes that have been judged.
func (g *guard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := g.read(p)
	if h := g.heads.Load(); h != nil && h.follow(p[:n]) {
		g.place.Stir() // before net/http sees the head
	}
	return n, err
}

func (g *guard) read(p []byte) (int, error) {
	for {
		switch {
		case g.stop.Load() || g.state == ended:
			return 0, io.EOF
		case g.pass > 0:
			return g.give(p, g.pass), nil
		case g.state == opaque:
			if g.w > g.r {
				g.pass = g.w - g.r
				continue
			}
			g.buf = nil
			return g.Conn.Read(p)
		case g.state == inBody && g.w == g.r:
			n, err := g.Conn.Read(p[:min(int64(len(p)), g.left)])
			g.took(int64(n))
			return n, err
		case g.state == atHead && len(p) == 1 && g.lent == 0:
			// net/http waits for the client to go while a request is being served. The
			// head that comes instead is judged when its turn has come.
			if g.w > g.r {
				p[0] = g.buf[g.r]
				g.lent = 1
				return 1, nil
			}
		case g.w > g.r:
			ok, err := g.judge()
			if err != nil {
				return 0, err
			}
			if ok {
				continue
			}
		}
		if err := g.wait(); err != nil {
			return 0, err
		}
	}
}

// lastLook is how long a connection that is to be closed is still listened to: a
// request that is on its way finds a server.
const lastLook = 20 * time.Millisecond

// wait reads more bytes. It bounds the time in which a head arrives: net/http does
// so on the first request of a connection alone, because it counts from the first
// byte that it is shown, and the guard shows it whole heads. A connection that
// retires ends here.
func (g *guard) wait() error {
	if g.state != atHead || g.serving.Load() {
		return g.fill()
	}
	defer g.place.Serving() // until it is said again that it waits
	for {
		if g.late {
			g.state = ended
			return io.EOF
		}
		retiring := g.enterWait()
		if g.w > g.r { // behind enterWait: evict must find the connection waiting
			g.place.Reading()
		} else {
			g.place.Idle(g.answered.Load())
		}
		err := g.fill()
		nudged, evicted := g.leaveWait()
		switch {
		case evicted && err == nil && !g.late:
			g.late = true // what came in the same moment is served
			g.Conn.SetReadDeadline(time.Time{})
			return nil
		case evicted:
			g.state = ended // net/http reads again behind an error
			return io.EOF
		case err == nil && (retiring || nudged):
			g.Conn.SetReadDeadline(time.Time{})
			return nil
		case !isTimeout(err): // nil is none, too
			return err
		case nudged: // look again, for the last time
		case retiring:
			return io.EOF
		default:
			return err
		}
	}
}

// enterWait notes that the reader waits, sets the time until which it does, and
// reports whether the connection retires.
func (g *guard) enterWait() (retiring bool) {
	g.ending.Lock()
	defer g.ending.Unlock()
	g.waiting = true
	if g.w > g.r {
		g.boundHead()
	} else if g.retiring {
		g.Conn.SetReadDeadline(time.Now().Add(lastLook))
	}
	return g.retiring
}

// boundHead sets the time until which the head that has begun to arrive must be
// there; a connection that retires leaves it less.
func (g *guard) boundHead() {
	if g.headEnd.IsZero() && g.headTime > 0 {
		g.headEnd = time.Now().Add(g.headTime)
	}
	if g.retiring && !g.hurried {
		g.hurried = true
		if end := time.Now().Add(lingerTime); g.headEnd.IsZero() || end.Before(g.headEnd) {
			g.headEnd = end
		}
	}
	if !g.headEnd.IsZero() {
		g.Conn.SetReadDeadline(g.headEnd)
	}
}

// headIsThere takes back the time that boundHead has set.
func (g *guard) headIsThere() {
	if !g.headEnd.IsZero() {
		g.headEnd, g.hurried = time.Time{}, false
		g.Conn.SetReadDeadline(time.Time{})
	}
}

// leaveWait undoes enterWait and reports whether retire has ended the wait, or evict
// the connection.
func (g *guard) leaveWait() (nudged, evicted bool) {
	g.ending.Lock()
	defer g.ending.Unlock()
	nudged = g.nudged
	g.waiting, g.nudged = false, false
	return nudged, g.evicted
}

// evict ends the connection, so that another one can be served, and reports whether
// it does: not while a request is being served, nor when one is about to be read.
// Any goroutine may call it. An HTTP/2 client is told to go, and has lastLook for
// what has been written to it.
func (g *guard) evict() bool {
	g.ending.Lock()
	defer g.ending.Unlock()
	t := g.talker.Load()
	switch {
	case g.evicted:
	case t != nil:
		go t.GoAway()
		time.AfterFunc(lastLook, func() { _ = g.closeNow() })
	case !g.waiting || !g.silent():
		return false
	default:
		g.Conn.SetReadDeadline(past)
	}
	g.evicted = true
	return true
}

// silent reports whether nothing has come that the reader will see to. Inside TLS
// nobody can tell: what comes may be no part of a request.
func (g *guard) silent() bool {
	if l, ok := g.Conn.(*link.Conn); ok {
		return l.Secure() || l.Silent()
	}
	if g.bare == nil || g.Conn != net.Conn(g.bare) {
		return true
	}
	silent := false
	raw, err := g.bare.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { silent = socket.Silent(fd) })
	}
	return silent && err == nil
}

// becomes follows what net/http says of the connection. Of HTTP/1 the guard itself
// knows more.
func (g *guard) becomes(s http.ConnState) {
	switch {
	case g.talker.Load() == nil:
	case s == http.StateActive:
		g.place.Serving()
	case s == http.StateIdle:
		g.place.Idle(g.answered.Load())
		if g.yields.Load() { // whatever streams it opens behind the GOAWAY
			g.evict()
		}
	}
}

// retire makes the connection end once it is idle and nothing is on its way, in
// HTTP/1. Any goroutine may call it. Between a client's write and our read no
// connection is closed, and a head of which a part is there may be completed.
func (g *guard) retire() {
	g.ending.Lock()
	defer g.ending.Unlock()
	g.retiring = true
	if g.waiting { // under the lock: it must not hit a read of what comes next
		g.nudged = true
		g.Conn.SetReadDeadline(past)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// goAway tells an HTTP/2 client to send its next request elsewhere. What it has
// sent and will send on this connection is served.
func (g *guard) goAway() {
	if t := g.talker.Load(); t != nil {
		t.GoAway()
	}
}

// hurry bounds the writes that an HTTP/2 client holds up, until calm: a request that
// is over must not wait for them for as long as others may. It is all of the
// connection that ends then, which others use as well.
func (g *guard) hurry() {
	g.sending.Lock()
	defer g.sending.Unlock()
	g.overdue++
	if g.writing {
		_ = g.limitSend() // of a connection that has been closed
	}
}

// calm says that a request that was over has ended.
func (g *guard) calm() {
	g.sending.Lock()
	defer g.sending.Unlock()
	g.overdue--
}

// SetWriteDeadline implements net.Conn. net/http moves it away with each piece that
// an HTTP/2 client takes.
func (g *guard) SetWriteDeadline(t time.Time) error {
	g.sending.Lock()
	defer g.sending.Unlock()
	g.sendLimit = t
	return g.limitSend()
}

// limitSend sets the time until which what is written has to be taken. g.sending is
// held.
func (g *guard) limitSend() error {
	if g.overdue > 0 && g.sendEnd.IsZero() {
		g.sendEnd = time.Now().Add(answerTimeout)
	}
	return g.Conn.SetWriteDeadline(earlier(g.sendLimit, g.sendEnd))
}

// earlier returns the earlier of two deadlines, of which a zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// writeH2 writes what net/http says to an HTTP/2 client.
func (g *guard) writeH2(t *goaway.Conn, p []byte) (int, error) {
	g.sending.Lock()
	g.writing = true
	g.sending.Unlock()
	n, err := t.Write(p)
	g.sending.Lock()
	defer g.sending.Unlock()
	if g.writing = false; err == nil {
		g.sendEnd = time.Time{}
	} else {
		g.reset.Store(true) // TLS would say goodbye, and wait for that as well
	}
	return n, err
}

// give copies at most n judged bytes to p.
func (g *guard) give(p []byte, n int) int {
	n = copy(p, g.buf[g.r:g.r+n])
	g.r += n
	g.pass -= n
	if g.r == g.w && g.state != inChunks {
		g.buf, g.r, g.w = nil, 0, 0 // an idle connection holds no buffer
	}
	return n
}

// fill reads more bytes behind those that are not judged yet.
func (g *guard) fill() error {
	if g.r > 0 {
		g.w = copy(g.buf, g.buf[g.r:g.w])
		g.r = 0
	}
	if g.w == len(g.buf) {
		size := max(guardBuffer, 2*len(g.buf))
		grown := make([]byte, min(size, max(g.maxHead, guardBuffer)))
		copy(grown, g.buf[:g.w])
		g.buf = grown
	}
	n, err := g.Conn.Read(g.buf[g.w:])
	g.w += n
	if n > 0 {
		return nil
	}
	if g.w == 0 {
		g.buf = nil
	}
	return err
}

// judge looks at what has arrived and raises pass, or returns false when it
// needs more.
func (g *guard) judge() (bool, error) {
	b := g.buf[g.r:g.w]
	switch g.state {
	case inBody:
		g.pass = int(min(int64(len(b)), g.left))
		g.took(int64(g.pass))
		return true, nil
	case inChunks:
		_, n, err := g.chunks.Next(b)
		if err == nil && n == 0 && len(b) >= g.maxHead {
			err = errLongChunk
		}
		if err != nil {
			g.state = ended
			g.cutOff.Store(true)
			g.bad.Store(true)
			return false, err
		}
		g.pass = n
		if g.chunks.Done() {
			g.state = atHead
			g.open.Store(false)
		}
		return n > 0, nil
	}
	return g.judgeHead(b)
}

var errLongChunk = errors.New("chunk head or trailer section too long")

func (g *guard) judgeHead(b []byte) (bool, error) {
	if !g.begun { // afterwards a preface is HTTP/1 of another version (RFC 9113 section 3.4)
		if c, ok := g.Conn.(*tls.Conn); ok && g.secure == nil {
			state := c.ConnectionState()
			g.secure = &state
		}
		switch is, maybe := wire.HasPreface(b); {
		case is:
			g.state = opaque
			g.headIsThere()
			g.talker.Store(goaway.HTTP2(g.Conn))
			g.heads.Store(newHeads(g.headTime, func() { g.Conn.SetReadDeadline(past) }))
			return true, nil
		case maybe:
			return false, nil
		case g.secure != nil && g.secure.NegotiatedProtocol == "h2":
			g.state = ended // HTTP/1.1 is not what was agreed on, nor what an answer could be in (RFC 9113 section 3.4)
			return false, io.EOF
		}
	}
	g.target = ""
	n, err := g.request.Parse(b)
	var refused *wire.Refused
	var odd *wire.Odd
	switch {
	case errors.As(err, &refused):
		return false, g.refuse(refused.Status())
	case n > g.maxHead || n == 0 && len(b) >= g.maxHead:
		return false, g.refuse(431)
	case n == 0:
		return false, nil
	case errors.As(err, &odd) && !odd.Framed:
		g.state, g.last = opaque, true
		g.cutOff.Store(true)
		g.open.Store(true) // for all that is known: nobody waits for the rest of it
		g.passHead(n)
		return true, nil
	}
	if g.request.Close {
		g.cutOff.Store(true) // what is behind it
	}
	if g.request.BadEscape {
		g.hideTarget()
	}
	switch length, framing := g.request.BodyLength(); framing {
	case wire.Length:
		if length > 0 {
			g.state, g.left = inBody, length
			g.open.Store(length > int64(len(b)-n))
		}
	case wire.Chunked:
		g.state = inChunks
		g.chunks.MaxTrailer = wire.MaxRequestTrailer
		g.chunks.Reset()
		g.open.Store(true)
	}
	g.passHead(n)
	return true, nil
}

// passHead gives out the head of n bytes, of which the first may be lent already.
func (g *guard) passHead(n int) {
	g.begun = true
	g.r += g.lent
	g.pass = n - g.lent
	g.lent = 0
	g.headIsThere()
	g.serving.Store(true)
}

// hideTarget keeps a target that net/http would refuse and puts another one of
// the same length in its place: the user container is to judge it, not we.
func (g *guard) hideTarget() {
	g.target = string(g.request.Target)
	for i, c := range g.request.Target {
		if c == '%' {
			g.request.Target[i] = '_'
		}
	}
}

// took notes n bytes of the body.
func (g *guard) took(n int64) {
	if g.left -= n; g.left == 0 {
		g.state = atHead
		g.open.Store(false)
	}
}

// refuse answers a head that is not served. It is net/http's turn to read the
// next request, so no response is under way.
func (g *guard) refuse(status int) error {
	text := http.StatusText(status)
	body := text + "\n"
	g.Conn.SetWriteDeadline(time.Now().Add(lingerTime))
	fmt.Fprintf(g.Conn, "HTTP/1.1 %d %s\r\n%s: %s; error=http_request_error; details=\"bad-request\"\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nDate: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, text, header.ProxyStatus, header.ProxyName, time.Now().UTC().Format(http.TimeFormat), len(body), body)
	g.state = ended
	g.refused.Store(true)
	g.cutOff.Store(true)
	return io.EOF
}

// Write drops what net/http says of a head that we have answered.
func (g *guard) Write(p []byte) (int, error) {
	if g.refused.Load() {
		return len(p), nil
	}
	if t := g.talker.Load(); t != nil {
		return g.writeH2(t, p)
	}
	return g.Conn.Write(p)
}

// cut makes the present request the last, wherever its body is: nothing more is
// read.
func (g *guard) cut() {
	g.stop.Store(true)
	g.cutOff.Store(true)
}

// release gives the connection away after a hijack, with what has been read
// from it and not given out.
func (g *guard) release() (early []byte) {
	g.watch.Stop()
	early = g.buf[g.r+g.lent : g.w]
	g.state = opaque
	g.buf, g.r, g.w, g.pass, g.lent = nil, 0, 0, 0, 0
	return early
}

// Close closes the connection so that what was answered can be read.
func (g *guard) Close() error {
	err := net.ErrClosed
	g.closing.Do(func() {
		g.watch.Stop()
		if h := g.heads.Load(); h != nil {
			h.stop()
		}
		switch {
		case g.reset.Load() && g.bare != nil:
			g.bare.SetLinger(0)
			err = g.closeNow() // TLS, if there is any, would say goodbye, as if nothing was missing
		case g.wasEvicted():
			err = g.closeNow() // likewise, and wait for that
		case g.cutOff.Load():
			g.linger()
			fallthrough
		default:
			err = g.Conn.Close()
		}
		g.onClose(g)
	})
	return err
}

func (g *guard) wasEvicted() bool {
	g.ending.Lock()
	defer g.ending.Unlock()
	return g.evicted
}

// closeNow closes the connection under TLS, if there is any.
func (g *guard) closeNow() error {
	if g.bare != nil {
		return g.bare.Close()
	}
	return g.Conn.Close()
}

// linger ends our side and takes what the client still sends.
func (g *guard) linger() {
	w, ok := g.Conn.(interface{ CloseWrite() error })
	if !ok || w.CloseWrite() != nil {
		return
	}
	g.Conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, g.Conn, lingerBytes)
}

// CloseWrite ends our side.
func (g *guard) CloseWrite() error {
	if w, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return net.ErrClosed
}

// hangup notes that the client has closed its side.
func (g *guard) hangup() {
	g.gone.Store(true)
	if x := g.current.Load(); x != nil {
		x.Wake()
	}
}
