package http2

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// body is the content of a request. The goroutine that reads the connection puts in what
// comes; it is read by the one that sends it in HTTP/1.1, or passed on at once where it
// goes to another stream.
type body struct {
	x *exchange

	mu      sync.Mutex
	arrived chan struct{} // holds a sign that something has changed
	data    []byte        // has come and has not been read
	owed    int           // bytes that the client is to be given room for, once data has been read
	n       int64         // bytes that have come
	length  int64         // as Content-Length says it; -1: it says nothing
	end     bool          // all has come
	err     error         // why it will not come to its end
	stopped bool          // nobody reads it any more
	trailer []wire.Field
	to      *h2.Stream // of the user container, where it is passed on; nil: it is not
	held    int        // bytes that are with it and not credited
	kept    bool       // data has all of the body, though it was passed on
	charged int        // bytes in the memory budget
}

// dataKept is how much memory for content is kept for the next request, in bytes.
const dataKept = 1 << 10

// heldSpare is the denominator of the spare capacity: append allocates up to 1/heldSpare more than the content that waits for the user container.
const heldSpare = 4

var (
	errStopped = errors.New("nobody reads the body any more")
	errReset   = fmt.Errorf("the client has reset the stream: %w", syscall.ECONNRESET)
)

func (b *body) init(x *exchange) { b.x, b.arrived = x, make(chan struct{}, 1) }

// begin makes b new for a request; end: it has no body.
func (b *body) begin(length int64, end bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cap(b.data) > dataKept {
		b.data = nil
	}
	b.data, b.owed, b.n, b.length, b.end = b.data[:0], 0, 0, length, end
	b.err, b.stopped, b.trailer, b.to, b.held, b.kept = nil, false, nil, nil, 0, false
	select {
	case <-b.arrived:
	default:
	}
}

// charge updates the memory of data in the budget, and of the content that waits for the user
// container. dataKept bytes are part of requestBytes. b.mu is held.
func (b *body) charge() {
	n := cap(b.data)
	if n <= dataKept {
		n = 0
	}
	n += b.held + b.held/heldSpare
	if n != b.charged {
		b.charged = b.x.conn.memory.Set(b.charged, n)
	}
}

// release releases the memory of the body. The owner receives no more events.
func (b *body) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if cap(b.data) > dataKept {
		b.data = nil
	}
	b.trailer, b.held = nil, 0
	b.charge()
}

// come takes a piece that has come; n bytes are to be credited for it.
func (b *body) come(by *h2.Conn, p []byte, n int, end bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += int64(len(p))
	b.end = b.end || end
	limit := b.x.server.settings.MaxBodyBytes
	switch {
	case b.length >= 0 && (b.n > b.length || b.end && b.n < b.length): // RFC 9113 section 8.1.1
		b.malformed(by)
	case limit > 0 && b.n > limit:
		b.breakOff(forward.ErrTooLarge)
	}
	switch {
	case b.err != nil || b.stopped: // nobody reads it, but it counts in the connection's window, which others need
		b.credit(by, n)
	case b.to != nil:
		b.pass(by, p, n, b.end && len(b.trailer) == 0)
	default:
		b.data = append(b.data, p...)
		b.owed += n
		b.charge()
	}
	b.tell()
}

// breakOff notes that the body will not come to its end. b.mu is held.
func (b *body) breakOff(err error) {
	if b.err == nil {
		b.err = err
		b.x.wake()
	}
}

// malformed ends the stream of a request that is not as long as it says (RFC 9113 section
// 8.1.1). b.mu is held.
func (b *body) malformed(by *h2.Conn) {
	b.x.stream.Reset(h2.ProtocolError) // before the worker learns of it, which would answer the request
	b.breakOff(&wire.BadChunk{Word: wire.WordContentLength})
	by.FlushLater(b.x.conn.Conn)
}

// fail is breakOff for others.
func (b *body) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.end {
		b.breakOff(err)
	}
	b.tell()
}

// tell makes a Read look again. b.mu is held.
func (b *body) tell() {
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// pass passes a piece on. b.mu is held.
func (b *body) pass(by *h2.Conn, p []byte, n int, end bool) {
	b.x.state.GotBody()
	waits, err := b.to.SendData(p, end)
	switch {
	case err != nil: // the user container has ended the stream, and says so elsewhere
	case waits:
		b.held += n
		b.charge()
	default:
		b.credit(by, n)
	}
	by.FlushLater(b.to.Conn())
	if !end {
		b.x.state.AwaitBody()
	}
}

// credit gives the client room for n more bytes (RFC 9113 section 5.2): only for what has
// been read or taken, so that a stream holds a window at most.
func (b *body) credit(by *h2.Conn, n int) {
	if b.x.stream.Credit(n) {
		by.FlushLater(b.x.conn.Conn)
	}
}

// drained credits what the user container has taken.
func (b *body) drained(by *h2.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held > 0 && b.to != nil && !b.to.Waits() {
		b.credit(by, b.held)
		b.held = 0
		b.charge()
	}
}

// whole returns the content; ok: all of it has come, and there is no trailer section.
func (b *body) whole() (content []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data, b.end && b.err == nil && len(b.trailer) == 0
}

// moved returns how many bytes have come.
func (b *body) moved() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func (b *body) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// complete reports whether all of the body has come.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}

// stop makes a Read return, and drops what comes.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.tell()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for {
		n, owed, err := b.take(p)
		if owed > 0 && b.x.stream.Credit(owed) {
			b.x.conn.Flush(false)
		}
		if n > 0 || err != nil {
			b.x.state.GotBody()
			return n, err
		}
		b.x.state.AwaitBody()
		<-b.arrived
	}
}

// emptyBodyTimeout is the time that awaitEnd waits. Clients send END_STREAM immediately.
const emptyBodyTimeout = time.Second

// awaitEnd waits up to emptyBodyTimeout for END_STREAM of a request with the content length 0.
//
// Some clients, such as httpx, send END_STREAM in an empty DATA frame after the content. An application
// that uses HTTP/1.1 could respond before this frame, and the client would fail when its stream is reset
// (RFC 9113 section 8.1).
func (b *body) awaitEnd() {
	if b.complete() {
		return
	}
	timer := time.NewTimer(emptyBodyTimeout)
	defer timer.Stop()
	for !b.complete() && b.failed() == nil {
		select {
		case <-b.arrived:
		case <-timer.C:
			return
		}
	}
}

// take takes what is there.
func (b *body) take(p []byte) (n, owed int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data := b.data
	if b.length > 0 && b.n == b.length && !b.end && b.err == nil {
		data = data[:max(len(data)-1, 0)] // the last byte is read after END_STREAM, see awaitEnd
	}
	n = copy(p, data)
	// Room for the client comes when all is read, in one frame instead of one for each read.
	if b.data = b.data[n:]; len(b.data) == 0 {
		owed, b.owed = b.owed, 0
		b.data = nil
		b.charge()
	}
	switch {
	case n > 0:
	case b.stopped:
		err = errStopped
	case b.err != nil:
		err = b.err
	case b.end:
		err = io.EOF
	}
	return n, owed, err
}

// trail takes the trailer section, which ends the body (RFC 9113 section 8.1).
func (b *body) trail(by *h2.Conn, fields []wire.Field) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end, b.trailer = true, fields
	if b.length >= 0 && b.n < b.length {
		b.malformed(by)
	}
	if b.to != nil && b.err == nil {
		b.passTrailer()
		by.FlushLater(b.to.Conn())
	}
	b.tell()
}

// passTrailer ends the body with the trailer section, or with DATA if it has no field. b.mu is held.
func (b *body) passTrailer() {
	if len(b.trailer) == 0 {
		_, _ = b.to.SendData(nil, true)
		return
	}
	k := b.x.server.block()
	defer b.x.server.putBlock(k)
	k.Fields(b.trailer)
	_, _ = b.to.SendTrailer(k) // if the user container has ended the stream, it says so elsewhere
}

// fields returns the trailer section once the body has ended.
func (b *body) fields() []wire.Field {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trailer
}

// passTo passes what has come, and will come, on to a stream of the user container; nil:
// no more. What has come as a whole is kept as well, in case the request has to be sent
// again.
func (b *body) passTo(stream *h2.Stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = stream
	if stream == nil || b.err != nil {
		return
	}
	data, owed := b.data, b.owed
	b.owed = 0
	if !b.end {
		b.data = nil
	}
	b.kept = b.end
	if len(data) > 0 || b.end && len(b.trailer) == 0 {
		if waits, err := stream.SendData(data, b.end && len(b.trailer) == 0); err == nil && waits {
			b.held += owed
		} else {
			b.credit(nil, owed)
		}
	}
	b.charge()
	if len(b.trailer) > 0 {
		b.passTrailer()
	}
	if !b.end {
		b.x.state.AwaitBody()
	}
}

// heldWhole reports whether all of the body is still there to be sent again.
func (b *body) heldWhole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept || b.end && b.n == 0
}
