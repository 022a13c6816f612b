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

// body is the content of a request. The goroutine that reads the connection adds received content. If the user
// container uses HTTP/1.1, another goroutine reads the content. If the user container uses HTTP/2, the content is
// sent on the stream to it immediately.
type body struct {
	x *exchange

	mu         sync.Mutex
	arrived    chan struct{} // holds a signal that the state has changed
	data       []byte        // received content that was not yet read
	uncredited int           // number of bytes to credit to the client when data has been read
	n          int64         // number of received bytes
	length     int64         // value of Content-Length; -1 if absent
	end        bool          // the content was received completely
	err        error         // reason why the content will not be complete; nil if none
	stopped    bool          // the content is not read any more
	trailer    []wire.Field
	to         *http2conn.Stream // stream to the user container; nil if the content is not sent on a stream
	held       int               // number of bytes that are pending on to and not credited to the client
	kept       bool              // data contains the complete body, although it was sent on the stream
	charged    int               // number of bytes in the memory budget
}

// dataKept is the maximum capacity of data that is kept for the next request, in bytes.
const dataKept = 1 << 10

// heldSpare limits the estimated spare capacity of pending content. append allocates at most 1/heldSpare more
// memory than the content that waits for the user container.
const heldSpare = 4

var (
	errStopped = errors.New("read from a closed body")
	errReset   = fmt.Errorf("stream reset by the client: %w", syscall.ECONNRESET)
)

func (b *body) init(x *exchange) { b.x, b.arrived = x, make(chan struct{}, 1) }

// begin resets b for a new request. end reports whether the request has no body.
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

// charge updates the memory budget of data and of the content that waits for the user container. The
// first dataKept bytes are part of requestBytes. b.mu must be held.
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

// release releases the memory of the body. The owner must not receive more events.
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

// come adds received content. n is the number of bytes to credit to the client for the content.
func (b *body) come(by *http2conn.Conn, p []byte, n int, end bool) {
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
	case b.err != nil || b.stopped: // return the window, because other streams need the window of the connection
		b.credit(by, n)
	case b.to != nil:
		b.pass(by, p, n, b.end && len(b.trailer) == 0)
		return // no Read waits
	default:
		b.data = append(b.data, p...)
		b.uncredited += n
		b.charge()
	}
	b.tell()
}

// breakOff records the reason why the body will not be complete. b.mu must be held.
func (b *body) breakOff(err error) {
	if b.err == nil {
		b.err = err
		b.x.wake()
	}
}

// malformed resets the stream of a request whose content does not match Content-Length (RFC 9113 section
// 8.1.1). b.mu must be held.
func (b *body) malformed(by *http2conn.Conn) {
	b.x.stream.Reset(http2conn.ProtocolError) // before the worker receives the error and sends a response
	b.breakOff(&transport.Error{Fault: transport.FaultBadRequest, Err: &wire.BadBody{Word: wire.WordContentLength}})
	by.FlushLater(b.x.conn.Conn)
}

// fail records err unless the body is complete.
func (b *body) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.end {
		b.breakOff(err)
	}
	b.tell()
}

// tell wakes a waiting Read. b.mu must be held.
func (b *body) tell() {
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// pass sends content to the user container. b.mu must be held.
func (b *body) pass(by *http2conn.Conn, p []byte, n int, end bool) {
	b.x.state.GotBody()
	waits, err := b.to.SendData(p, end)
	switch {
	case err != nil: // the user container has reset the stream, and its owner receives the error
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

// credit adds n bytes to the window of the client (RFC 9113 section 5.2). Content is credited only after it was
// read or sent, so a stream holds at most one window of content.
func (b *body) credit(by *http2conn.Conn, n int) {
	if b.x.stream.Credit(n) {
		by.FlushLater(b.x.conn.Conn)
	}
}

// drained credits the pending content after it was added to the output of the connection to the user container.
func (b *body) drained(by *http2conn.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held > 0 && b.to != nil && !b.to.Waits() {
		b.credit(by, b.held)
		b.held = 0
		b.charge()
	}
}

// whole returns the unread content. ok reports whether the body is complete and has no trailer section.
func (b *body) whole() (content []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data, b.end && b.err == nil && len(b.trailer) == 0
}

// moved returns the number of received bytes.
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

// complete reports whether the body was received completely.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end
}

// stop makes Read return errStopped, and discards further content.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if !b.end { // otherwise no Read waits
		b.tell()
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for {
		n, uncredited, err := b.take(p)
		if uncredited > 0 && b.x.stream.Credit(uncredited) {
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
// Some clients, such as httpx, send END_STREAM in an empty DATA frame after the content. An application that uses
// HTTP/1.1 could respond before this frame arrives. The sidecar would then reset the stream (RFC 9113 section 8.1),
// and the client would report an error.
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

// take copies received content to p. uncredited is the number of bytes to credit to the client.
func (b *body) take(p []byte) (n, uncredited int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data := b.data
	if b.length > 0 && b.n == b.length && !b.end && b.err == nil {
		data = data[:max(len(data)-1, 0)] // the last byte is read after END_STREAM, see awaitEnd
	}
	n = copy(p, data)
	// The credit is sent in one frame after all content is read, instead of in one frame for each read.
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

// trail adds the trailer section and ends the body (RFC 9113 section 8.1).
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
	b.tell()
}

// passTrailer ends the body with the trailer section, or with an empty DATA frame if the trailer section has no
// fields. b.mu must be held.
func (b *body) passTrailer() {
	if len(b.trailer) == 0 {
		_, _ = b.to.SendData(nil, true)
		return
	}
	k := b.x.server.block()
	defer b.x.server.putBlock(k)
	k.Fields(b.trailer)
	_, _ = b.to.SendTrailer(k) // after a reset by the user container, the owner of its stream receives the error
}

// fields returns the trailer section. It is valid after the body has ended.
func (b *body) fields() []wire.Field {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trailer
}

// passTo sends the received content, and content that arrives later, on a stream to the user container. If
// stream is nil, it stops sending. A body that is already complete is kept for a retry.
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
		b.x.state.AwaitBody()
	}
}

// heldWhole reports whether the complete body is still available for a retry.
func (b *body) heldWhole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept || b.end && b.n == 0
}
