package http2

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
)

// body is the content of a request. The reader goroutine of the client's connection adds the received content. If the
// user container uses HTTP/1.1, another goroutine calls Read. If the user container uses HTTP/2, the reader goroutine
// also sends the content on the stream to the user container; see passTo.
type body struct {
	x *exchange

	mu         sync.Mutex
	arrived    chan struct{} // wakes Read and awaitEnd when content arrives or the body ends
	data       []byte        // received content that has not been read yet
	uncredited int           // number of bytes to credit to the client after the last byte of data is read
	n          int64         // number of received bytes
	length     int64         // value of Content-Length; -1 if absent
	end        bool          // the complete content was received
	err        error         // reason why the content is incomplete, or nil
	stopped    bool          // stop or release was called
	trailer    []wire.Field
	to         *http2conn.Stream // stream to the user container; nil if the content is not sent on a stream
	held       int               // number of bytes that are pending on the stream to the user container and were not credited to the client
	kept       bool              // data still contains the complete body, although the body was sent to the user container
	charged    int               // number of bytes charged to the memory budget
}

// dataKept is the maximum capacity of data in bytes that is kept for the next request.
const dataKept = 1 << 10

// heldSpare is the ratio of pending content to the estimated unused capacity of its buffers. This capacity is also
// charged to the memory budget.
const heldSpare = 4

var (
	errStopped = errors.New("read from a closed body")
	errReset   = fmt.Errorf("stream reset by the client: %w", syscall.ECONNRESET)
)

func (b *body) init(x *exchange) { b.x, b.arrived = x, make(chan struct{}, 1) }

// begin prepares b for a new request. length is the value of Content-Length, or -1. end reports whether the request has
// no body.
func (b *body) begin(length int64, end bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cap(b.data) > dataKept {
		b.data = nil
	}
	b.data, b.uncredited, b.n, b.length, b.end = b.data[:0], 0, 0, length, end
	b.err, b.stopped, b.trailer, b.to, b.held, b.kept = nil, false, nil, nil, 0, false
	select {
	case <-b.arrived:
	default:
	}
}

// charge charges the memory budget for the capacity of data and for the content to send to the user container. A
// capacity of at most dataKept is already included in requestBytes. b.mu must be held.
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

// release releases the memory of the body. The client's stream must have been released, or must not exist.
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

// add adds received content. The arguments are the same as for [http2conn.Owner].Data.
func (b *body) add(by *http2conn.Conn, p []byte, n int, end bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += int64(len(p))
	b.end = b.end || end
	limit := b.x.server.settings.MaxBodyBytes
	switch {
	case b.length >= 0 && (b.n > b.length || b.end && b.n < b.length): // RFC 9113 section 8.1.1
		b.malformed(by)
	case limit > 0 && b.n > limit:
		b.breakOff(transport.FaultTooLarge)
	}
	switch {
	case b.err != nil || b.stopped: // the content is discarded
		b.credit(by, n)
	case b.to != nil:
		b.pass(by, p, n, b.end && len(b.trailer) == 0)
		return // no Read waits
	default:
		b.data = append(b.data, p...)
		b.uncredited += n
		b.charge()
	}
	b.signal()
}

// breakOff records err as the reason why the body is incomplete, unless a reason is already recorded. b.mu must be
// held.
func (b *body) breakOff(err error) {
	if b.err == nil {
		b.err = err
		b.x.wake()
	}
}

// malformed resets the stream of a request whose content does not match Content-Length (RFC 9113 section
// 8.1.1). b.mu must be held.
func (b *body) malformed(by *http2conn.Conn) {
	// Reset the stream first, because the worker sends a response when it receives the error.
	b.x.stream.Reset(http2conn.ProtocolError)
	b.breakOff(&transport.Error{Fault: transport.FaultBadRequest, Err: wire.BadBody(wire.WordContentLength)})
	by.FlushLater(b.x.conn.Conn)
}

// fail is like breakOff, but acquires b.mu and does nothing if the body is complete.
func (b *body) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.end {
		b.breakOff(err)
	}
	b.signal()
}

// signal wakes Read or awaitEnd. b.mu must be held.
func (b *body) signal() {
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// pass sends content on the stream to the user container. The arguments are the same as for add. b.mu must be held.
func (b *body) pass(by *http2conn.Conn, p []byte, n int, end bool) {
	b.x.state.GotBody(end)
	waits, err := b.to.SendData(p, end)
	switch {
	case err != nil: // the stream has ended, and relay receives the error
	case waits:
		b.held += n
		b.charge()
	default:
		b.credit(by, n)
	}
	by.FlushLater(b.to.Conn())
	if !end {
		b.await()
	}
}

// await records that the next content is expected from the client. While the user container does not read the content,
// await does nothing, because the client may be unable to send more. b.mu must be held.
func (b *body) await() {
	if b.held == 0 {
		b.x.state.AwaitBody()
	}
}

// credit allows the client to send n more bytes (RFC 9113 section 5.2). Content is credited only after it is read, sent
// or discarded, so a body contains at most one window of unread content.
func (b *body) credit(by *http2conn.Conn, n int) {
	if b.x.stream.Credit(n) {
		by.FlushLater(b.x.conn.Conn)
	}
}

// drained credits the content that was pending on the stream to the user container. It is called after this content is
// added to the output of the connection.
func (b *body) drained(by *http2conn.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held > 0 && b.to != nil && !b.to.Waits() {
		b.credit(by, b.held)
		b.held = 0
		b.charge()
		if !b.end && b.err == nil {
			b.await()
		}
	}
}

// whole returns the unread content. ok reports whether the body is complete and has no trailer section.
func (b *body) whole() (content []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data, b.end && b.err == nil && len(b.trailer) == 0
}

// moved returns the number of content bytes that were received.
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

// complete reports whether the complete body was received.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}

// stop makes Read return errStopped after the content in data. Content that arrives later is discarded.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if !b.end { // otherwise no Read waits
		b.signal()
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for {
		n, uncredited, err := b.take(p)
		if uncredited > 0 && b.x.stream.Credit(uncredited) {
			b.x.conn.Flush(false)
		}
		if n > 0 || errors.Is(err, io.EOF) {
			b.x.state.GotBody(errors.Is(err, io.EOF))
		}
		if n > 0 || err != nil {
			return n, err
		}
		b.x.state.AwaitBody()
		<-b.arrived
	}
}

// emptyBodyTimeout is the maximum time that awaitEnd waits. Clients usually send END_STREAM immediately.
const emptyBodyTimeout = time.Second

// awaitEnd waits up to emptyBodyTimeout for the END_STREAM flag of a request whose Content-Length is 0.
//
// Some clients, such as httpx, send END_STREAM in an empty DATA frame after the header section or the content. An
// application that uses HTTP/1.1 could respond before this frame arrives. The sidecar would then reset the stream
// (RFC 9113 section 8.1), and the client would report an error.
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

// take moves received content to p. n is the number of bytes, and uncredited is the number of bytes that the caller
// must credit to the client.
func (b *body) take(p []byte) (n, uncredited int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data := b.data
	if b.length > 0 && b.n == b.length && !b.end && b.err == nil {
		data = data[:max(len(data)-1, 0)] // keep the last byte until END_STREAM arrives; see awaitEnd
	}
	n = copy(p, data)
	// A single WINDOW_UPDATE frame credits all content after the last byte of data is read.
	if b.data = b.data[n:]; len(b.data) == 0 {
		uncredited, b.uncredited = b.uncredited, 0
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
	return n, uncredited, err
}

// trail stores the trailer section, which ends the body (RFC 9113 section 8.1).
func (b *body) trail(by *http2conn.Conn, fields []wire.Field) {
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
	b.signal()
}

// passTrailer ends the stream to the user container with the trailer section, or with an empty DATA frame if the
// trailer section has no fields. b.mu must be held.
func (b *body) passTrailer() {
	b.x.state.GotBody(true)
	if len(b.trailer) == 0 {
		_, _ = b.to.SendData(nil, true)
		return
	}
	k := b.x.server.block()
	defer b.x.server.putBlock(k)
	k.Fields(b.trailer)
	_, _ = b.to.SendTrailer(k) // if the stream has ended, relay receives the error
}

// fields returns the trailer section. It must be called after the body ends.
func (b *body) fields() []wire.Field {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trailer
}

// passTo sends the content in data on a stream to the user container. Content that arrives later is also sent on this
// stream. If the body is already complete, data is kept for a retry. passTo(nil) stops sending content.
func (b *body) passTo(stream *http2conn.Stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = stream
	if stream == nil || b.err != nil {
		return
	}
	data, uncredited := b.data, b.uncredited
	b.uncredited = 0
	if !b.end {
		b.data = nil
	}
	b.kept = b.end
	if len(data) > 0 || b.end && len(b.trailer) == 0 {
		if waits, err := stream.SendData(data, b.end && len(b.trailer) == 0); err == nil && waits {
			b.held += uncredited
		} else {
			b.credit(nil, uncredited)
		}
	}
	b.charge()
	if len(b.trailer) > 0 {
		b.passTrailer()
	}
	if !b.end {
		b.await()
	}
}

// heldWhole reports whether the complete body is available for a retry.
func (b *body) heldWhole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept || b.end && b.n == 0
}
