package http2

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// relay connects the client's stream to the stream of a user container that uses HTTP/2. The reader goroutine of one
// connection adds the received content to the output of the other connection. The worker of the request only waits
// until the response ends. Content is credited to its sender after it is added to the output of the other connection.
type relay struct {
	x *exchange

	mu       sync.Mutex
	stream   *http2conn.Stream // stream to the user container; nil if there is none
	check    http2client.Check
	held     int   // number of response bytes that are pending on the client's stream and not credited
	finished bool  // end was called
	err      error // reason why the response is incomplete, or nil
	result   transport.Result

	// killed reports whether the rest of the response must not be sent. abort sets it without holding mu, because the
	// drain holds a lock when it calls abort, and respond acquires this lock while it holds mu.
	killed atomic.Bool
}

// forward implements Forward for a user container that uses HTTP/2.
func (y *relay) forward(state transport.State) transport.Result {
	x := y.x
	replayed, since := false, 0
	for {
		reused, err := y.open(state, since)
		if err == nil {
			err = y.wait()
		}
		killed := x.canceler.Abortable(nil)
		y.leave()
		result := y.result
		result.In, result.Replayed = x.body.moved(), replayed
		switch {
		case err == nil:
		case killed == nil && errors.Is(err, http2conn.ErrGone):
			result.Err = transport.FaultClientGone
		case killed == nil && !replayed && y.mayRepeat(err, reused):
			replayed, since = true, x.server.client.Since(err)
			continue
		default:
			result.Err = x.cause(killed, err)
			x.forwardReset(&result)
		}
		if result.Begun {
			x.conclude(&result)
		}
		return result
	}
}

// open opens the stream to the user container and sends the request with the content received so far.
func (y *relay) open(state transport.State, since int) (reused bool, err error) {
	x := y.x
	y.mu.Lock()
	y.stream, y.held, y.finished, y.err = nil, 0, false, nil
	y.killed.Store(false)
	y.check = http2client.Check{Method: x.request.Method}
	y.result = transport.Result{}
	y.mu.Unlock()
	content, whole := x.body.whole()
	end := whole && len(content) == 0
	upload := http2conn.Upload{Client: x.conn.sender, Length: x.request.Length}
	if whole {
		upload.Length = int64(len(content))
	}
	k := x.server.block()
	http2client.AppendRequest(k, &x.request)
	if x.request.Expect100 && !end && len(content) == 0 {
		k.Field(transport.Expect, "100-continue")
	}
	stream, reused, err := x.server.client.Open(x.canceler.Context, http2conn.Request{Owner: (*fromApp)(x), Head: k, End: end, Upload: upload}, since)
	x.call.Memory.Release()
	x.server.putBlock(k) // not deferred, because Flush lets other goroutines run, which can then reuse a long block
	if err != nil {
		return false, err
	}
	state.Send()
	y.mu.Lock()
	y.stream = stream
	early := y.held > 0 // content arrived before y.stream was set
	y.mu.Unlock()
	if early && !x.stream.Waits() {
		y.credit(nil)
	}
	if !end {
		x.body.passTo(stream)
	}
	if x.canceler.Abortable(y.abort) == nil {
		stream.Conn().Flush(true)
	} else {
		y.abort() // the request was aborted before y.abort was registered
	}
	return reused, nil
}

// abort makes wait return errKilled. It is called by the canceler and must not wait for mu.
func (y *relay) abort() {
	y.killed.Store(true)
	y.x.wake()
}

// wait waits until the response is sent completely or the exchange fails, and returns the error.
func (y *relay) wait() error {
	x := y.x
	for {
		<-x.woken
		bodyErr := x.body.failed()
		y.mu.Lock()
		finished, killed, err := y.finished, y.killed.Load(), y.err
		y.mu.Unlock()
		switch {
		case killed:
			return errKilled
		case finished && errors.Is(err, http2conn.ErrGone) && bodyErr != nil: // bodyErr is the cause of ErrGone
			return transport.BodyError(bodyErr)
		case finished && err != nil:
			return err
		case finished && !x.stream.Waits():
			switch {
			case x.tookAll():
				return nil
			case bodyErr != nil:
				return transport.BodyError(bodyErr)
			}
			return http2conn.ErrGone
		case bodyErr != nil && !finished:
			return transport.BodyError(bodyErr)
		}
	}
}

var errKilled = errors.New("request aborted")

// leave stops sending the body and ends the stream to the user container.
func (y *relay) leave() {
	x := y.x
	x.body.passTo(nil)
	y.mu.Lock()
	stream := y.stream
	y.mu.Unlock()
	if stream == nil {
		return
	}
	stream.Release()
	if stream.Abandon() {
		stream.Conn().Flush(false)
	}
	y.mu.Lock()
	y.stream = nil
	y.mu.Unlock()
}

// mayRepeat reports whether a request that failed with err can be retried (docs/promises.md 3.7).
func (y *relay) mayRepeat(err error, reused bool) bool {
	x := y.x
	return !y.check.Answered() && x.body.heldWhole() && http2client.MayRepeat(err, reused, &x.request)
}

// credit allows the user container to replace the response content that was pending on the client's stream. It must be
// called when no output of the client's stream is pending. by is the connection whose reader goroutine calls credit,
// or nil.
func (y *relay) credit(by *http2conn.Conn) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.held > 0 && y.stream != nil {
		if y.stream.Credit(y.held) {
			by.FlushLater(y.stream.Conn())
		}
		y.held = 0
	}
}

// fromApp implements http2conn.Owner for an exchange's stream to the user container.
type fromApp exchange

// Head implements http2conn.Owner.
func (f *fromApp) Head(by *http2conn.Conn, h *http2conn.Head, end bool) {
	x := (*exchange)(f)
	y := &x.relay
	if err := y.check.Head(by, h, end); err != nil {
		y.end(err)
		return
	}
	switch {
	case h.Status == 0:
		y.trailer(by, h)
	case h.Status < 200:
		y.info(by, h)
	default:
		y.respond(by, h, end)
	}
}

// info sends an informational response to the client.
func (y *relay) info(by *http2conn.Conn, h *http2conn.Head) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.killed.Load() && !y.finished {
		y.x.sendInfo(h.Status, h.Fields)
		by.FlushLater(y.x.conn.Conn)
	}
}

// respond sends the header section of the final response to the client.
func (y *relay) respond(by *http2conn.Conn, h *http2conn.Head, end bool) {
	x := y.x
	if n := h.Size(); n > netconn.LongHead {
		if !x.conn.memory.Admit(n) {
			y.end(rewrite.ErrNoMemory)
			return
		}
		defer x.conn.memory.Sub(n)
	}
	y.mu.Lock()
	if y.killed.Load() || y.finished {
		y.mu.Unlock()
		return
	}
	y.result.FirstByte, y.result.Status, y.result.Begun = time.Now(), h.Status, true
	rewrite.Respond(x.state, h.Fields)
	k := x.server.block()
	x.beginResponse(k, h.Status, h.Fields, y.check.Length)
	err := x.stream.SendHead(k, end)
	x.server.putBlock(k)
	by.FlushLater(x.conn.Conn)
	y.mu.Unlock()
	if err != nil || end {
		y.end(err)
	}
}

// trailer sends the trailer section, which ends the response.
func (y *relay) trailer(by *http2conn.Conn, h *http2conn.Head) {
	x := y.x
	k := x.server.block()
	defer x.server.putBlock(k)
	y.mu.Lock()
	waits, err := false, error(nil)
	if !y.killed.Load() && !y.finished {
		k.Fields(rewrite.ResponseTrailer(x.state, h.Fields))
		waits, err = x.stream.SendTrailer(k)
		by.FlushLater(x.conn.Conn)
	}
	y.mu.Unlock()
	if waits {
		y.offer(by)
	}
	y.end(err)
}

// Data implements http2conn.Owner.
func (f *fromApp) Data(by *http2conn.Conn, p []byte, n int, end bool) {
	x := (*exchange)(f)
	y := &x.relay
	if err := y.check.Data(len(p), end); err != nil {
		y.end(err)
		return
	}
	x.state.Touch()
	if y.check.Bodiless() {
		p = nil // the client does not expect content
	}
	y.mu.Lock()
	waits, err := false, error(nil)
	if !y.killed.Load() && !y.finished { // otherwise the content is discarded
		y.result.Out += int64(len(p))
		waits, err = x.sendContent(p, end)
		by.FlushLater(x.conn.Conn)
	}
	// If y.stream is nil, open has not set it yet and will credit the content.
	if waits || y.stream == nil {
		y.held += n
	} else if !end && y.stream.Credit(n) {
		by.FlushLater(by)
	}
	y.mu.Unlock()
	if waits && err == nil {
		y.offer(by)
	}
	if err != nil || end {
		y.end(err)
	}
}

// offer starts the send timeout for pending output of the client's stream.
func (y *relay) offer(by *http2conn.Conn) {
	x := y.x
	x.canceler.WriteStarted(x.state)
	if !x.stream.Waits() { // Drained may have been called before the timeout was started
		x.state.WriteDone()
		y.credit(by)
	}
}

// end records that the response has ended, and wakes the worker. err is nil if the response is complete. Only the err
// of the first call is recorded.
func (y *relay) end(err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.finished {
		y.finished, y.err = true, err
	}
	y.x.wake()
}

// Failed implements http2conn.Owner.
func (f *fromApp) Failed(_ *http2conn.Conn, err error) {
	f.relay.end(http2client.Failure(err))
}

// Drained implements http2conn.Owner.
func (f *fromApp) Drained(by *http2conn.Conn) { f.body.drained(by) }
