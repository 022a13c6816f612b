package http2client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// A Call sends a single request. Its methods block. [Call.Do] returns the response, and [Response.Next] returns the
// next part of the response body. After [Response.Close] or a failed call to Do, [Call.Begin] prepares the Call for
// another request.
type Call struct {
	rewrite.Call

	client   *Client
	response Response
	woken    chan struct{} // wakes Do and Next when a field guarded by mu changes
	drained  chan struct{} // wakes the goroutine that runs upload
	uploaded chan struct{} // closed when the goroutine that runs upload ends; nil if it was not started

	mu         sync.Mutex
	stream     *http2conn.Stream
	cancel     context.CancelFunc // ends the wait for a connection
	aborted    bool
	left       bool  // leave was called, so the upload must end
	asked      bool  // the user container sent a 100 response, so Body can be sent
	bodyErr    error // error of reading Body
	check      Check
	infos      []wire.Response // informational responses that have not been sent to the client yet
	ended      bool            // the complete response was received
	err        error           // reason why the response is incomplete, or nil
	held       *[window]byte   // buffer for content; nil until content is received
	r, w       int             // held[r:w] is content that Next has not returned yet
	uncredited int             // number of bytes to credit when held is empty
	trailer    []wire.Field

	headSize   int // size in bytes of the final response's header section (RFC 9113 section 6.5.2)
	headMemory netconn.HeadMemory
	waiting    int // bytes charged to Memory for infos and for a long header section of the final response; guarded by mu
}

// Response is the final response to a [Call]. It is valid until Close is called.
type Response struct {
	Head wire.Response // Reason is the standard phrase, because HTTP/2 has no reason phrases

	call   *Call
	length int64
}

var errAborted = &transport.Error{Fault: transport.FaultAborted}

// Begin prepares c for its next request. It must return before another goroutine calls Abort for this request.
func (c *Call) Begin() {
	if c.woken == nil {
		c.woken, c.drained = make(chan struct{}, 1), make(chan struct{}, 1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = false
	c.reset()
}

// Buffered returns the size of the buffer for response content in bytes, or 0 if there is no buffer. It does not
// include header sections, whose size is charged to Memory.
func (c *Call) Buffered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return 0
	}
	return len(c.held)
}

// reset prepares c to send the request for the first time or again. c.mu must be held.
func (c *Call) reset() {
	c.stream, c.left, c.asked, c.bodyErr, c.check, c.infos = nil, false, false, nil, Check{Method: c.Request.Method}, nil
	c.ended, c.err, c.r, c.w, c.uncredited, c.trailer = false, nil, 0, 0, 0, nil
	c.uploaded = nil
	for _, sign := range []chan struct{}{c.woken, c.drained} {
		select {
		case <-sign:
		default:
		}
	}
}

// Abort makes Do and Next return an error with the fault [transport.FaultAborted], until Begin is called. A call that
// is blocked returns immediately. Abort is safe for concurrent use.
func (c *Call) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	if c.cancel != nil {
		c.cancel()
	}
	signal(c.woken)
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Do sends the request, waits for the header section of the final response, and returns the response. A request without
// a body is retried once if docs/promises.md 3.7 allows the retry, or if the user container reports that it did not
// process the request (RFC 9113 section 8.7). The error contains a [transport.Fault] or was returned by Settings.Dial.
func (c *Call) Do(client *Client) (*Response, error) {
	c.client, c.headMemory.Account = client, c.Memory.Account
	since := 0
	for c.Sends = 0; ; {
		reused, err := c.send(since)
		if err == nil {
			err = c.awaitHead()
		}
		if err == nil {
			if c.headMemory.Reserve(c.headSize, rewrite.ResponseCopies) {
				return &c.response, nil
			}
			err = rewrite.ErrNoMemory
		}
		again := c.Sends == 1 && c.Body == nil && c.mayRepeat(err, reused)
		c.leave()
		if !again {
			return nil, err
		}
		since = client.Since(err)
		c.mu.Lock()
		c.reset()
		c.mu.Unlock()
	}
}

// send opens a stream and sends the request on it. A separate goroutine sends Body. since and reused have the same
// meaning as for [Client.Open].
func (c *Call) send(since int) (reused bool, err error) {
	k := new(http2conn.Block)
	AppendRequest(k, c.Request)
	if c.Expect100 && c.Body != nil {
		k.Field(transport.Expect, "100-continue")
	}
	end := len(c.Content) == 0 && c.Body == nil
	stream, reused, err := c.client.Open(c.context, http2conn.Request{Owner: (*events)(c), Head: k, End: end, Upload: c.content()}, since)
	c.mu.Lock()
	c.cancel, c.stream = nil, stream
	aborted := c.aborted
	c.mu.Unlock()
	switch {
	case aborted:
		return false, errAborted
	case err != nil:
		return false, err
	}
	c.Sends++
	c.Client.Sending()
	if len(c.Content) > 0 {
		_, _ = stream.SendData(c.Content, true) // if the stream has ended, Failed receives the reason
	}
	if c.Body != nil {
		c.uploaded = make(chan struct{})
		go c.upload(stream)
	}
	stream.Conn().Flush(true)
	return reused, nil
}

// content describes the content of the request.
func (c *Call) content() http2conn.Upload {
	n := int64(len(c.Content))
	if c.Body != nil {
		n = c.Request.Length
	}
	if n == 0 {
		return http2conn.Upload{}
	}
	return http2conn.Upload{Client: c.client.NewSender(), Length: n}
}

// context returns a context that is canceled by Abort.
func (c *Call) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel = cancel; c.aborted {
		cancel()
	}
	return ctx, cancel
}

// awaitHead waits for the header section of the final response. It forwards informational responses to the client.
func (c *Call) awaitHead() error {
	for {
		c.mu.Lock()
		infos, bytes, err, headed := c.infos, c.waiting, c.failure(), c.check.Status != 0
		c.infos, c.waiting = nil, 0
		c.mu.Unlock()
		for i := range infos {
			c.Client.Info(&infos[i])
		}
		c.Memory.Account.Sub(bytes)
		switch {
		// If the stream is reset after the header section, Next first returns the received content and then the error.
		case headed && (err == nil || transport.FaultOf(err) == transport.FaultReset):
			return nil
		case err != nil:
			return err
		case len(infos) == 0:
			<-c.woken
		}
	}
}

// addInfo stores an informational response until awaitHead forwards it. HTTP/2 has no flow control for header blocks,
// so addInfo charges the memory of the response to the budget. c.mu must be held.
func (c *Call) addInfo(h *http2conn.Head) {
	n := h.Size()
	if !c.Memory.Account.Admit(n) {
		c.fail(rewrite.ErrNoMemory)
		return
	}
	c.waiting += n
	c.infos = append(c.infos, newHead(h.Status, h.Take(nil), -1))
}

// failure returns the reason why the call failed, or nil. c.mu must be held.
func (c *Call) failure() error {
	switch {
	case c.aborted:
		return errAborted
	case c.bodyErr != nil:
		return transport.BodyError(c.bodyErr)
	}
	return c.err
}

// mayRepeat reports whether a request that failed with err can be retried.
func (c *Call) mayRepeat(err error, reused bool) bool {
	c.mu.Lock()
	answered := c.check.Answered()
	c.mu.Unlock()
	return !answered && MayRepeat(err, reused, c.Request)
}

// MayRepeat reports whether a request can be retried after err. The caller must still have the whole body of the
// request, and must not have received a part of a response. A request that was reset with REFUSED_STREAM can always
// be retried, because it was not processed. A request that was reset with another code can be retried only if the
// code is ENHANCE_YOUR_CALM and the connection accepts no more streams. In this case, and if the connection failed,
// [rewrite.Request.MayReplay] must also allow the retry. reused reports whether the connection was used before.
func MayRepeat(err error, reused bool, q *rewrite.Request) bool {
	if transport.FaultOf(err) != transport.FaultReset {
		return false
	}
	if reset, ok := errors.AsType[*http2conn.ResetError](err); ok {
		calm := reset.Code == http2conn.EnhanceYourCalm && reset.Ending && q.MayReplay(reused, false)
		return reset.Code == http2conn.RefusedStream || calm
	}
	return q.MayReplay(reused, errors.Is(err, http2conn.ErrUnsent))
}

// Length returns the length of the body in bytes. It returns -1 if the length is unknown or if a trailer
// section is announced.
func (r *Response) Length() int64 { return r.length }

// Next returns the next bytes of the body. The bytes are valid until the next method call. Next
// blocks until bytes are available. After the last bytes, it returns io.EOF. Any other error
// contains a [transport.Fault].
func (r *Response) Next() ([]byte, error) {
	c := r.call
	for {
		c.mu.Lock()
		data, credit, err := c.take()
		c.mu.Unlock()
		if credit > 0 && c.stream.Credit(credit) {
			c.stream.Conn().Flush(false)
		}
		if data != nil || err != nil {
			return data, err
		}
		c.Client.Waiting()
		<-c.woken
	}
}

// take returns received content. If no content is available, it returns the error for Next and the number of previously
// returned bytes that the caller must credit. c.mu must be held.
func (c *Call) take() (data []byte, credit int, err error) {
	if c.w > c.r && !c.aborted {
		data = c.held[c.r:c.w]
		c.r = c.w
		return data, 0, nil
	}
	c.r, c.w = 0, 0
	credit, c.uncredited = c.uncredited, 0
	if c.ended && !c.aborted {
		return nil, 0, io.EOF
	}
	return nil, credit, c.failure()
}

// Trailer returns the trailer fields. It must not be called before Next returns io.EOF.
func (r *Response) Trailer() []wire.Field { return r.call.trailer }

// Close ends the exchange, even if the response is not complete.
func (r *Response) Close() { r.call.leave() }

// leave ends the upload, resets the stream if it is still open, and releases the memory of the response.
func (c *Call) leave() {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	signal(c.drained)
	if c.uploaded != nil {
		select {
		case <-c.uploaded:
		default:
			c.Client.StopBody()
			<-c.uploaded
		}
	}
	if s := c.stream; s != nil {
		s.Release()
		if s.Abandon() {
			s.Conn().Flush(false)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != nil {
		c.client.bodies.Put(c.held)
		c.held = nil
	}
	c.Memory.Account.Sub(c.waiting)
	c.infos, c.waiting = nil, 0
	c.headMemory.Release()
}

// upload sends Body and the trailer section on s.
func (c *Call) upload(s *http2conn.Stream) {
	defer close(c.uploaded)
	defer c.ReleaseBody()
	if c.Expect100 && !c.awaitContinue() {
		return
	}
	pooled := c.client.buffers.Get(c.BodyBuffer())
	defer c.client.buffers.Put(pooled)
	for {
		n, err := c.Body.Read(*pooled)
		var trailer []wire.Field
		if err == io.EOF && c.Trailer != nil {
			trailer = c.Trailer()
		}
		if err != nil && err != io.EOF {
			c.mu.Lock()
			if !c.left {
				c.bodyErr = err
			}
			signal(c.woken)
			c.mu.Unlock()
			return
		}
		end := err == io.EOF
		if !c.uploadPiece(s, (*pooled)[:n], end && len(trailer) == 0) {
			return
		}
		c.Memory.Account.Progress(n)
		if len(trailer) > 0 {
			k := new(http2conn.Block)
			k.Fields(trailer)
			_, _ = s.SendTrailer(k)
			s.Conn().Flush(false)
		}
		if end {
			return
		}
	}
}

// awaitContinue waits up to rewrite.ContinueTimeout for a 100 (Continue) response (RFC 9110 section 10.1.1). It returns
// false if the body must not be sent because a final response arrived, the call failed, or the call was closed.
func (c *Call) awaitContinue() bool {
	timeout := time.After(rewrite.ContinueTimeout)
	for {
		c.mu.Lock()
		asked, unwanted := c.asked, c.left || c.check.Status != 0 || c.err != nil
		c.mu.Unlock()
		if asked || unwanted {
			return asked
		}
		select {
		case <-c.drained:
		case <-timeout:
			return true
		}
	}
}

// uploadPiece sends content and waits until all content is added to the output of the connection. It returns false if
// the upload must end.
func (c *Call) uploadPiece(s *http2conn.Stream, p []byte, end bool) bool {
	waits := false
	if len(p) > 0 || end {
		var err error
		if waits, err = s.SendData(p, end); err != nil {
			return false
		}
		s.Conn().Flush(false)
	}
	for waits && s.Waits() {
		<-c.drained
		c.mu.Lock()
		left := c.left
		c.mu.Unlock()
		if left {
			return false
		}
	}
	return true
}

// events implements http2conn.Owner for the stream of a call.
type events Call

// Head implements http2conn.Owner.
func (e *events) Head(by *http2conn.Conn, h *http2conn.Head, end bool) {
	c := (*Call)(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer signal(c.woken)
	defer signal(c.drained)
	headed := c.check.Status != 0
	err := c.check.Head(by, h, end)
	switch {
	case err != nil:
		c.fail(err)
	case headed:
		c.trailer = h.Take(nil)
		c.ended = true
	case h.Status < 200:
		c.asked = c.asked || h.Status == http.StatusContinue
		if c.err == nil {
			c.addInfo(h)
		}
	default:
		if c.headSize = h.Size(); c.headSize > netconn.LongHead {
			c.Memory.Account.Add(c.headSize)
			c.waiting += c.headSize
		}
		c.begin(h.Status, h.Take(nil), end)
	}
}

// begin stores the header section of the final response. c.mu must be held.
func (c *Call) begin(status int, fields []wire.Field, end bool) {
	r := &c.response
	*r = Response{Head: newHead(status, fields, c.check.Length), call: c}
	_, announced := wire.Find(fields, transport.Trailer)
	switch {
	case c.check.Bodiless():
		r.length = 0
	case end && r.Head.ContentLength <= 0:
		r.length, r.Head.ContentLength = 0, 0
	case announced:
		r.length = -1
	default:
		r.length = r.Head.ContentLength
	}
	c.ended = end
}

func newHead(status int, fields []wire.Field, length int64) wire.Response {
	return wire.Response{Status: status, Reason: []byte(http.StatusText(status)), Fields: fields, ContentLength: length}
}

// fail records err as the reason why the response is incomplete. It does nothing if the response is complete or has
// already failed. c.mu must be held.
func (c *Call) fail(err error) {
	if c.err == nil && !c.ended {
		c.err = err
	}
}

// Data implements http2conn.Owner.
func (e *events) Data(_ *http2conn.Conn, p []byte, n int, end bool) {
	c := (*Call)(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.check.Data(len(p), end)
	switch {
	case err != nil:
		c.fail(err)
	case c.err == nil: // the response has not failed
		c.keep(p, n)
		c.ended = c.ended || end
	}
	signal(c.woken)
}

// keep stores content until Next returns it, and adds n to the number of bytes to be credited. It discards the content
// of a response that must not have content. c.mu must be held.
func (c *Call) keep(p []byte, n int) {
	c.uncredited += n
	if c.check.Bodiless() {
		return
	}
	if c.held == nil {
		c.held = c.client.bodies.Get().(*[window]byte)
	}
	c.w += copy(c.held[c.w:], p) // held has the size of the window, so the content fits
}

// Failed implements http2conn.Owner.
func (e *events) Failed(_ *http2conn.Conn, err error) {
	c := (*Call)(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(Failure(err))
	signal(c.woken)
	signal(c.drained)
}

// Failure wraps err, which is the error of a stream, in a *[transport.Error]. The fault is FaultGarbage if the user
// container violated the protocol, and otherwise FaultReset.
func Failure(err error) error {
	if _, ok := errors.AsType[*http2conn.Error](err); ok {
		return &transport.Error{Fault: transport.FaultGarbage, Err: err}
	}
	return &transport.Error{Fault: transport.FaultReset, Err: err}
}

// Drained implements http2conn.Owner.
func (e *events) Drained(*http2conn.Conn) { signal(e.drained) }
