package http1client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

const (
	// maxHead is the default of Settings.MaxHeaderBytes.
	maxHead = 1 << 20
	// listenTimeout is the delay of a request body while it is unknown whether the user container supports HTTP/1.1. If
	// the user container responds in HTTP/2 during this time, the request can be sent again over HTTP/2, because its
	// body was not read.
	listenTimeout = 25 * time.Millisecond
	// lagTimeout is the maximum time that Close waits for the rest of the request body after the response ends. If the
	// body ends within this time, the connections of the client and of the user container can be reused.
	lagTimeout = 20 * time.Millisecond
	// arrivedTimeout replaces lagTimeout if the complete body has arrived from the client. It is longer because the
	// client does not cause the delay. On a busy host, it may take longer than lagTimeout until the goroutine that
	// sends the body runs.
	arrivedTimeout = time.Second
)

// past is a time in the past. A deadline that is set to past interrupts a blocked read or write.
var past = time.Unix(1, 0)

// Call sends one request to the user container over HTTP/1.1. After [Response.Close], [Response.Tunnel] or a failed
// call to [Call.Do], [Call.Begin] prepares the Call for another request.
type Call struct {
	rewrite.Call
	Hold bool // store the connection in Held if Do is aborted
	Many bool // limits the response buffer to 32 KiB, because the client sends many concurrent requests

	mu      sync.Mutex
	conn    *clientConn
	cancel  context.CancelCauseFunc // ends the wait for a connection; nil if connect does not wait
	aborted bool
	upload  upload
}

// upload is the state of sending Body. A separate goroutine sends Body, so that a response that arrives before the end
// of the body is processed. The fields are guarded by Call.mu.
type upload struct {
	turn    int // sequence number of the upload, so that the timer of an earlier upload has no effect
	state   uploadState
	starter *time.Timer   // starts the upload after a delay; nil if there is no delay
	done    chan struct{} // closed when the goroutine ends; nil if the goroutine was not started
	err     error         // error of reading Body
}

type uploadState uint8

const (
	notStarted uploadState = iota
	running
	complete // the complete body was written
	broken   // reading or writing failed
	unwanted // the final response arrived before the upload started
)

// Begin prepares c for the next request. It must return before another goroutine calls Abort for this request, because
// Begin resets the effect of Abort.
func (c *Call) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = false
	c.upload = upload{turn: c.upload.turn + 1}
}

// Abort makes Do and Next fail with the fault [transport.FaultAborted], until Begin is called. A call that is blocked
// returns immediately. Abort is safe for concurrent use.
func (c *Call) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	if c.cancel != nil {
		c.cancel(&transport.Error{Fault: transport.FaultAborted})
	}
	if c.conn != nil {
		c.conn.SetDeadline(past)
	}
}

// Buffered returns the size of the response buffer in bytes, except for bytes that are charged to Memory. It must be
// called by the goroutine that calls Do and Next.
func (c *Call) Buffered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0
	}
	return max(0, len(c.conn.buf)-c.conn.memory.Held())
}

// Do sends the request, waits for the header section of the final response, and returns the response. After a failure,
// Do sends the request again on a new connection if [rewrite.Request.MayReplay] allows it and no byte of Body was read.
func (c *Call) Do(a *App) (*Response, error) {
	for c.Sends = 0; ; {
		conn, err := c.connect(a, c.Sends > 0)
		if err != nil {
			return nil, err
		}
		r, again, err := c.exchange(a, conn)
		if err == nil {
			return r, nil
		}
		a.recordBound(conn, err)
		err = c.failureCause(err) // must precede endUpload, which can cause another error by stopping the body
		c.endUpload(0)
		c.detach()
		if c.hold(a, conn, err) {
			return nil, err
		}
		conn.close()
		if !again || !c.bodyUntouched() || transport.FaultOf(err) == transport.FaultAborted {
			return nil, err
		}
	}
}

// connect gets a connection and attaches it to the call. If fresh is true, the connection is new.
func (c *Call) connect(a *App, fresh bool) (*clientConn, error) {
	n, reserved := a.tryGet(fresh)
	if n == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		c.mu.Lock()
		c.cancel = cancel
		if c.aborted {
			cancel(&transport.Error{Fault: transport.FaultAborted})
		}
		c.mu.Unlock()
		var err error
		if !reserved {
			n, err = a.await(ctx, fresh)
		}
		if n == nil && err == nil {
			n, err = a.openConn(ctx)
		}
		c.mu.Lock()
		c.cancel = nil
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	if !c.attach(n) {
		n.close()
		return nil, &transport.Error{Fault: transport.FaultAborted}
	}
	return n, nil
}

// attach sets n as the connection that Abort interrupts. It returns false if the call was already aborted.
func (c *Call) attach(n *clientConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		return false
	}
	c.conn, c.upload = n, upload{turn: c.upload.turn + 1}
	n.memory.Account = c.Memory.Account
	if n.most = bufferSize; c.Many {
		n.most = pieceSize
	}
	if c.Body == nil {
		c.upload.state = complete
	}
	return true
}

// detach removes the connection from the call, so that Abort no longer interrupts it. It reports whether the call was
// aborted.
func (c *Call) detach() (aborted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.aborted
}

// exchange sends the request on conn and reads the header section of the final response. If exchange fails, again
// reports whether the request can be sent again on another connection, provided that Body was not read.
//
//nolint:gocognit // one loop that handles all events in order
func (c *Call) exchange(a *App, conn *clientConn) (r *Response, again bool, err error) {
	if err := conn.send(c); err != nil {
		return nil, true, &transport.Error{Fault: transport.FaultReset, Err: err}
	}
	h1 := a.versions.http1()
	switch {
	case c.Body == nil:
	case c.Expect100:
		c.startUploadIn(rewrite.ContinueTimeout)
	case h1 == unknown:
		c.startUploadIn(listenTimeout)
	default:
		c.startUpload()
	}
	head := &conn.response.Head
	head.Reset()
	var firstInfo time.Time
	for infos := 0; ; {
		n, err := head.Parse(conn.buffered())
		if n > a.settings.MaxHeaderBytes { // fill does not enforce a limit that is smaller than the buffer
			err = rewrite.ErrHeadTooLarge
		}
		if err != nil {
			if couldBeSettings(conn.buffered()) && conn.fill(a.settings.MaxHeaderBytes) == nil {
				continue
			}
			if isSettings(conn.buffered()) {
				a.versions.setH1(false)
				err = errHTTP2Response
			}
			return nil, false, &transport.Error{Fault: transport.FaultGarbage, Err: err}
		}
		if n == 0 {
			silent := conn.w == conn.r && infos == 0
			if err := conn.fill(a.settings.MaxHeaderBytes); err != nil {
				if transport.FaultOf(err) != 0 {
					return nil, false, err
				}
				again := silent && c.Request.MayReplay(conn.reused, !conn.written)
				return nil, again, &transport.Error{Fault: transport.FaultReset, Err: err, Silent: silent && !conn.reused && h1 == unknown}
			}
			continue
		}
		if head.Status >= 200 || head.Status == 101 {
			return c.final(a, conn, n)
		}
		if infos++; infos == 1 {
			firstInfo = time.Now()
		}
		if rewrite.TooManyInfos(infos, time.Since(firstInfo)) {
			return nil, false, &transport.Error{Fault: transport.FaultGarbage, Err: rewrite.ErrTooManyInfos}
		}
		if head.Status == 100 {
			c.startUpload()
		}
		c.Client.Info(head)
		conn.r += n
	}
}

// final returns the final response. The first n buffered bytes are its header section.
func (c *Call) final(a *App, conn *clientConn, n int) (*Response, bool, error) {
	r := &conn.response
	if r.Head.Status == 101 && !c.Request.Upgrade {
		return nil, false, &transport.Error{Fault: transport.FaultGarbage, Err: errUnexpectedSwitch}
	}
	if _, ok := wire.Find(r.Head.Fields, transport.Upgrade); r.Head.Status == 101 && !ok { // RFC 9110 section 15.2.2
		return nil, false, &transport.Error{Fault: transport.FaultGarbage, Err: errNoUpgrade}
	}
	if a.versions.http1() != yes {
		a.versions.setH1(true)
	}
	conn.r += n
	r.call, r.app, r.conn = c, a, conn
	r.left, r.framing = r.Head.BodyLength(c.Request.Method)
	r.ended = false
	r.chunks.Reset()
	r.chunks.Lenient = true
	if c.Expect100 {
		c.refuseUpload()
	} else {
		c.startUpload() // the response shows that the user container supports HTTP/1.1
	}
	return r, false, nil
}

// bodyUntouched reports whether nothing was read from Body, so that the request can be sent again.
func (c *Call) bodyUntouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.upload.done == nil
}

// OnlyH2Behind reports whether the user container supports only HTTP/2 and has not processed the request, so that the
// request can be sent again over HTTP/2. err is the error that Do returned. A response in HTTP/2 shows that HTTP/1.1
// is not supported. If the user container has closed the connection without a response, it may also have processed
// the request and crashed (docs/promises.md 3.7). To distinguish these cases, OnlyH2Behind detects whether the user
// container supports HTTP/1.1, until the canceler fires.
func (c *Call) OnlyH2Behind(canceler *transport.Canceler, a *App, err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	if !ok || !c.bodyUntouched() {
		return false
	}
	if e.Silent {
		ctx, cancel := canceler.Context()
		defer cancel()
		defer canceler.Abortable(nil)
		only, err := a.supportsOnlyH2(ctx)
		return err == nil && only
	}
	return e.Fault == transport.FaultGarbage && a.OnlyH2()
}

// failureCause returns the abort or the error of Body that caused err. If neither occurred, it returns err.
func (c *Call) failureCause(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.aborted:
		return &transport.Error{Fault: transport.FaultAborted}
	case c.upload.err != nil:
		return transport.BodyError(c.upload.err)
	}
	return err
}

// startUploadIn starts the upload after the duration d, unless startUpload or refuseUpload is called earlier.
func (c *Call) startUploadIn(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.upload.turn
	c.upload.starter = time.AfterFunc(d, func() { c.startUploadOf(turn) })
}

// startUpload starts the upload. It does nothing if the upload was already started or refused.
func (c *Call) startUpload() {
	c.mu.Lock()
	turn := c.upload.turn
	c.mu.Unlock()
	c.startUploadOf(turn)
}

func (c *Call) startUploadOf(turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.upload
	if u.turn != turn || u.state != notStarted || c.conn == nil {
		return
	}
	if u.starter != nil {
		u.starter.Stop()
	}
	u.state = running
	u.done = make(chan struct{})
	go c.send(c.conn, u.done)
}

// send writes Body. If reading Body fails, send ends the exchange. After a write error, the exchange continues, because
// the user container may already have sent a response.
func (c *Call) send(conn *clientConn, done chan struct{}) {
	defer close(done)
	state, bodyErr := c.copyBody(conn)
	c.ReleaseBody()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upload.state, c.upload.err = state, bodyErr
	if bodyErr != nil {
		conn.SetDeadline(past)
	}
}

// chunkRoom is the maximum length of the chunk size line for a chunk of at most pieceSize bytes.
const chunkRoom = len("8000\r\n")

// copyBody writes Body to conn, in chunks if Request.Chunked is true.
func (c *Call) copyBody(conn *clientConn) (state uploadState, bodyErr error) {
	pooled := conn.buffers.Get(c.BodyBuffer())
	defer conn.buffers.Put(pooled)
	buf := *pooled
	chunked, body := c.Request.Chunked, transport.Counter{Length: c.Request.Length}
	room := buf
	if chunked {
		room = buf[chunkRoom : len(buf)-len(wire.ChunkTail)]
	}
	for {
		n, err := c.Body.Read(room)
		out := room[:n]
		if chunked && n > 0 {
			var size [chunkRoom]byte
			head := wire.AppendChunkHead(size[:0], n)
			start := chunkRoom - len(head)
			copy(buf[start:], head)
			end := chunkRoom + n
			end += copy(buf[end:], wire.ChunkTail)
			out = buf[start:end]
		}
		if body.Add(n, err == io.EOF) != nil {
			return broken, io.ErrUnexpectedEOF
		}
		if len(out) > 0 {
			if _, werr := conn.Write(out); werr != nil {
				return broken, nil
			}
			c.Memory.Account.Progress(n)
		}
		switch {
		case err == io.EOF && chunked:
			var trailer []wire.Field
			if c.Trailer != nil {
				trailer = c.Trailer()
			}
			if _, werr := conn.Write(wire.AppendLastChunk(buf[:0], trailer)); werr != nil {
				return broken, nil
			}
			return complete, nil
		case err == io.EOF, body.N == body.Length:
			return complete, nil
		case err != nil:
			return broken, err
		}
	}
}

// refuseUpload prevents an upload that was not started.
func (c *Call) refuseUpload() {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.upload
	if u.state == notStarted {
		u.state = unwanted
	}
	if u.starter != nil {
		u.starter.Stop()
	}
}

// endUpload waits up to lag for the upload to complete. It then stops the upload and waits until its goroutine ends. It
// returns true if the complete body was sent and the upload was not stopped.
func (c *Call) endUpload(lag time.Duration) bool {
	c.refuseUpload()
	c.mu.Lock()
	state, done, conn := c.upload.state, c.upload.done, c.conn
	c.mu.Unlock()
	if done == nil {
		return state == complete
	}
	if lag > 0 {
		select {
		case <-done:
		case <-time.After(lag):
		}
	}
	stopped := false
	select {
	case <-done:
	default:
		stopped = true
		conn.SetDeadline(past)
		c.Client.StopBody()
		<-done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.truncated = c.upload.state != complete
	return c.upload.state == complete && !stopped
}
