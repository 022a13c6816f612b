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
	// listenTimeout is how long a request body is delayed while it is unknown whether the user container supports
	// HTTP/1.1. A response in HTTP/2 may arrive during this time, and the request can be sent again only if its
	// body was not sent.
	listenTimeout = 25 * time.Millisecond
	// lagTimeout is how long Close waits for the rest of the request body after the response has
	// ended. If the body ends within this time, both connections can be reused.
	lagTimeout = 20 * time.Millisecond
	// arrivedTimeout replaces lagTimeout if the complete body has arrived from the client. It is longer because the
	// client is not the cause of the delay. On a busy host, it may take more than lagTimeout until the goroutine
	// that sends the body runs.
	arrivedTimeout = time.Second
)

// past is a time in the past. A deadline that is set to past interrupts a blocked read or write.
var past = time.Unix(1, 0)

// Call is one request to the user container in HTTP/1.1. It can be reused for the next request with
// [Call.Begin] after [Response.Close], [Response.Tunnel] or a failed [Call.Do] has returned.
type Call struct {
	rewrite.Call
	Hold bool // store the connection in Held if Do is aborted
	Many bool // read at most 32 KiB of the response at a time, not 64 KiB; the client sends many concurrent requests

	mu      sync.Mutex
	conn    *clientConn
	cancel  context.CancelCauseFunc // cancels the running dial; may be nil
	aborted bool
	upload  upload
}

// upload is the state of sending a request body. A separate goroutine sends the body, so that a response that
// arrives before the end of the body is processed. The fields are guarded by Call.mu.
type upload struct {
	turn    int // sequence number of the upload; the starter of an earlier upload has no effect
	state   uploadState
	starter *time.Timer   // starts the upload after a delay; may be nil
	done    chan struct{} // closed when the goroutine has ended; nil if it was not started
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

// Begin prepares c for the next request. It must be called before another goroutine can call Abort, because an
// abort between Begin and Do must not be lost.
func (c *Call) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = false
	c.upload = upload{turn: c.upload.turn + 1}
}

// Abort makes the running Do or Next fail with the fault [transport.FaultAborted]. If neither is running, the next
// Do fails unless Begin is called before. Abort is safe for concurrent use.
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

// Buffered returns the number of buffered bytes of an unread response that are not charged to Memory.
// It must be called by the goroutine that runs the call.
func (c *Call) Buffered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0
	}
	return max(0, len(c.conn.buf)-c.conn.memory.Held())
}

// Do sends the request and returns the final response after its header section was read. If the request fails, Do
// sends the request again on a new connection if [rewrite.Request.MayReplay] allows it and no byte of the body was
// read.
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
		err = c.failureCause(err) // called before endUpload, because stopping the body causes another error
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

// connect gets a connection and attaches it to the call. If fresh is true, it is a new connection.
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

// detach removes the connection from the call. It reports whether the call was aborted.
func (c *Call) detach() (aborted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.aborted
}

// exchange sends the request on conn and reads the header section of the final response. again reports whether the
// request can be repeated on another connection if its body was not read.
//
//nolint:gocognit // one loop over what may come, in its order
func (c *Call) exchange(a *App, conn *clientConn) (r *Response, again bool, err error) {
	if err := conn.send(c); err != nil {
		return nil, true, &transport.Error{Fault: transport.FaultReset, Err: err}
	}
	h1 := a.speech.http1()
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
		if n > a.settings.MaxHeaderBytes { // a buffer can be larger than the limit
			err = rewrite.ErrHeadTooLarge
		}
		if err != nil {
			if couldBeSettings(conn.buffered()) && conn.fill(a.settings.MaxHeaderBytes) == nil {
				continue
			}
			if isSettings(conn.buffered()) {
				a.speech.learnH1(false)
				err = errSpeaksH2
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

// final returns the final response, whose header section is the first n buffered bytes.
func (c *Call) final(a *App, conn *clientConn, n int) (*Response, bool, error) {
	r := &conn.response
	if r.Head.Status == 101 && !c.Request.Upgrade {
		return nil, false, &transport.Error{Fault: transport.FaultGarbage, Err: errNotAsked}
	}
	if _, ok := wire.Find(r.Head.Fields, transport.Upgrade); r.Head.Status == 101 && !ok { // RFC 9110 section 15.2.2
		return nil, false, &transport.Error{Fault: transport.FaultGarbage, Err: errNoUpgrade}
	}
	if a.speech.http1() != yes {
		a.speech.learnH1(true)
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

// bodyUntouched reports whether a failed Do has read nothing from Body, so that the request can be repeated.
func (c *Call) bodyUntouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.upload.done == nil
}

// OnlyH2Behind reports whether a request for which Do returned err can be repeated in HTTP/2. It returns true if
// the user container supports only HTTP/2 and cannot have processed the request. This is certain if the user
// container has responded in HTTP/2. If the user container has closed the connection without a response, it may
// have read the request and crashed (docs/promises.md 3.7). In this case, OnlyH2Behind detects whether the user
// container supports HTTP/1.1, and stops if the canceler fires.
func (c *Call) OnlyH2Behind(canceler *transport.Canceler, a *App, err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	if !ok || !c.bodyUntouched() {
		return false
	}
	if e.Silent {
		ctx, cancel := canceler.Context()
		defer cancel()
		defer canceler.Abortable(nil)
		only, err := a.speaksOnlyH2(ctx)
		return err == nil && only
	}
	return e.Fault == transport.FaultGarbage && a.OnlyH2()
}

// failureCause returns the cause of err. If the call was aborted or the body could not be read, err is only a
// consequence.
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

// startUploadIn starts the upload after d, unless the upload is started or refused earlier.
func (c *Call) startUploadIn(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.upload.turn
	c.upload.starter = time.AfterFunc(d, func() { c.startUploadOf(turn) })
}

// startUpload starts the upload if it was not started or refused.
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

// send writes the body. If reading the body fails, send interrupts the exchange. A write error does not interrupt
// the exchange, because the user container may already have sent a response.
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

// copyBody sends Body with the framing of Request.
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

// endUpload waits up to lag for the upload to complete, stops it, and waits for its goroutine to end.
// It returns true if the complete body was sent and the upload was not interrupted.
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
