package upstream

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

const (
	// maxHead is Settings.MaxHeaderBytes where that is 0.
	maxHead = 1 << 20
	// listenTimeout is how long the first body waits for a sign that the user
	// container speaks something else than HTTP/1.1, while that is not known: a
	// body that has been sent can't be sent again.
	listenTimeout = 25 * time.Millisecond
	// lagTimeout is how long a response's end waits for a request body whose last
	// bytes are on their way, so that both connections can be kept.
	lagTimeout = 20 * time.Millisecond
	// arrivedTimeout is the same for a body of which all is here: then it is only the
	// goroutine that sends it that has not had its turn, and a busy host may take long.
	arrivedTimeout = time.Second
)

// past is a deadline that has long gone by.
var past = time.Unix(1, 0)

// Call is one request to the user container in HTTP/1.1. Its memory may be used
// for the next one, by way of [Call.Begin], once [Response.Close],
// [Response.Tunnel] or a failed [Call.Do] has returned.
type Call struct {
	forward.Call
	Hold bool // a Do that is broken off leaves its connection to Held
	Many bool // the client has others like it: the response is read in pieces of 32 KB, not 64

	mu      sync.Mutex
	conn    *conn
	cancel  context.CancelCauseFunc // of a running dial
	aborted bool
	upload  upload
}

// upload is the sending of a request's body, which has a goroutine of its own so
// that an early answer is heard. Guarded by Call.mu.
type upload struct {
	turn    int // tells a late starter that its turn is over
	state   uploadState
	starter *time.Timer   // starts it unless something else does before
	done    chan struct{} // closed when the goroutine has ended
	err     error         // Body's
}

type uploadState uint8

const (
	notStarted uploadState = iota
	running
	complete // all of the body has been written
	broken   // reading or writing has failed
	unwanted // the response came first: never to be started
)

// Begin makes c ready for its next request. It comes before Abort is handed to
// anybody: an abort between Begin and Do is not lost.
func (c *Call) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = false
	c.upload = upload{turn: c.upload.turn + 1}
}

// Abort makes a running Do or Next, or the Do to come, return an Aborted error.
// Any goroutine may call it; what comes too late is forgotten by Begin.
func (c *Call) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	if c.cancel != nil {
		c.cancel(&forward.Error{Fault: forward.Aborted})
	}
	if c.conn != nil {
		c.conn.SetDeadline(past)
	}
}

// Buffered returns the number of bytes that are buffered for a response which is not read, and that
// are not part of Memory. It is called by the goroutine that makes the call.
func (c *Call) Buffered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0
	}
	return max(0, len(c.conn.buf)-c.conn.memory.Held())
}

// Do sends the request and returns its final response after the header section was read. The request
// is sent again, on a new connection, if [forward.Request.MayReplay] allows it and no byte of the
// body was read.
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
		err = c.verdict(err) // before the body is stopped, which is an error too
		c.endUpload(0)
		c.detach()
		if c.hold(a, conn, err) {
			return nil, err
		}
		conn.close()
		if !again || !c.bodyUntouched() || forward.FaultOf(err) == forward.Aborted {
			return nil, err
		}
	}
}

// connect attaches a connection to the call.
func (c *Call) connect(a *App, fresh bool) (*conn, error) {
	n, reserved := a.tryGet(fresh)
	if n == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		c.mu.Lock()
		c.cancel = cancel
		if c.aborted {
			cancel(&forward.Error{Fault: forward.Aborted})
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
		return nil, &forward.Error{Fault: forward.Aborted}
	}
	return n, nil
}

// attach brings n within the reach of Abort, unless that has come already.
func (c *Call) attach(n *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		return false
	}
	c.conn, c.upload = n, upload{turn: c.upload.turn + 1}
	n.memory.Account = c.Memory
	if n.most = bufferSize; c.Many {
		n.most = pieceSize
	}
	if c.Body == nil {
		c.upload.state = complete
	}
	return true
}

// detach ends the reach of Abort and reports whether it came.
func (c *Call) detach() (aborted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	return c.aborted
}

// exchange sends the request on conn and reads the head of the final response.
// again says that the request may be sent once more, if its body still can.
//
//nolint:gocognit // one loop over what may come, in its order
func (c *Call) exchange(a *App, conn *conn) (r *Response, again bool, err error) {
	if err := conn.send(c); err != nil {
		return nil, true, &forward.Error{Fault: forward.Reset, Err: err}
	}
	h1 := a.speech.http1()
	switch {
	case c.Body == nil:
	case c.Expect100:
		c.startUploadIn(forward.ContinueTimeout)
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
		if n > a.settings.MaxHeaderBytes { // the smallest buffers may have room for more
			err = forward.ErrHeadTooLarge
		}
		if err != nil {
			if couldBeSettings(conn.buffered()) && conn.fill(a.settings.MaxHeaderBytes) == nil {
				continue
			}
			if isSettings(conn.buffered()) {
				a.speech.learnH1(false)
				err = errSpeaksH2
			}
			return nil, false, &forward.Error{Fault: forward.Garbage, Err: err}
		}
		if n == 0 {
			silent := conn.w == conn.r && infos == 0
			if err := conn.fill(a.settings.MaxHeaderBytes); err != nil {
				if forward.FaultOf(err) != 0 {
					return nil, false, err
				}
				again := silent && c.Request.MayReplay(conn.reused, !conn.written)
				return nil, again, &forward.Error{Fault: forward.Reset, Err: err, Silent: silent && !conn.reused && h1 == unknown}
			}
			continue
		}
		if head.Status >= 200 || head.Status == 101 {
			return c.final(a, conn, n)
		}
		if infos++; infos == 1 {
			firstInfo = time.Now()
		}
		if forward.TooManyInfos(infos, time.Since(firstInfo)) {
			return nil, false, &forward.Error{Fault: forward.Garbage, Err: forward.ErrTooManyInfos}
		}
		if head.Status == 100 {
			c.startUpload()
		}
		c.Client.Info(head)
		conn.r += n
	}
}

// final makes the response whose head takes the first n buffered bytes.
func (c *Call) final(a *App, conn *conn, n int) (*Response, bool, error) {
	r := &conn.response
	if r.Head.Status == 101 && !c.Request.Upgrade {
		return nil, false, &forward.Error{Fault: forward.Garbage, Err: errNotAsked}
	}
	if _, ok := wire.Find(r.Head.Fields, header.Upgrade); r.Head.Status == 101 && !ok { // RFC 9110 section 15.2.2
		return nil, false, &forward.Error{Fault: forward.Garbage, Err: errNoUpgrade}
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
		c.startUpload() // one that still listened has its sign
	}
	return r, false, nil
}

// bodyUntouched reports whether not a byte of Body was asked for, after a Do
// that has failed: the request can still be sent in another way.
func (c *Call) bodyUntouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.upload.done == nil
}

// OnlyH2Behind reports whether a request that was not understood in HTTP/1.1 can be sent
// in HTTP/2 instead, after a Do that has failed with err: the user container speaks
// that, and it cannot have acted on what it got. That is so if it has answered in
// HTTP/2. If it has closed without a word, it may have read the head and died
// (docs/promises.md 3.7): then it must not speak HTTP/1.1 at all, and is asked, until the
// alarm breaks that off.
func (c *Call) OnlyH2Behind(alarm *queue.Alarm, a *App, err error) bool {
	e, ok := errors.AsType[*forward.Error](err)
	if !ok || !c.bodyUntouched() {
		return false
	}
	if e.Silent {
		ctx, cancel := alarm.Context()
		defer cancel()
		defer alarm.Abortable(nil)
		only, err := a.speaksOnlyH2(ctx)
		return err == nil && only
	}
	return e.Fault == forward.Garbage && a.OnlyH2()
}

// verdict returns the error that explains why the exchange ended: one that
// somebody caused is the cause of what the connection said.
func (c *Call) verdict(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.aborted:
		return &forward.Error{Fault: forward.Aborted}
	case c.upload.err != nil:
		return &forward.Error{Fault: forward.Body, Err: c.upload.err}
	}
	return err
}

// startUploadIn starts the upload after d, unless something else does before.
func (c *Call) startUploadIn(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.upload.turn
	c.upload.starter = time.AfterFunc(d, func() { c.startUploadOf(turn) })
}

// startUpload starts the upload if there is one and it has not been started.
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

// send writes the body. A body that can't be read breaks the exchange off; one
// that can't be written does not: the answer may already be on its way.
func (c *Call) send(conn *conn, done chan struct{}) {
	defer close(done)
	state, bodyErr := c.copyBody(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upload.state, c.upload.err = state, bodyErr
	if bodyErr != nil {
		conn.SetDeadline(past)
	}
}

// chunkRoom is what stands before a chunk of at most pieceSize bytes.
const chunkRoom = len("8000\r\n")

// copyBody sends Body in the framing that Request says.
func (c *Call) copyBody(conn *conn) (state uploadState, bodyErr error) {
	pooled := conn.buffers.Get(pieceSize)
	defer conn.buffers.Put(pooled)
	buf := *pooled
	chunked, body := c.Request.Chunked, forward.Counter{Length: c.Request.Length}
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

// refuseUpload sees to it that an upload that has not been started never is.
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

// endUpload stops the upload, after lag if it is not complete by then, and waits
// until its goroutine has ended. It reports whether the whole body was sent and
// the connection was left alone.
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
	return c.upload.state == complete && !stopped
}
