package netconn

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

const (
	// handshakeTime is the maximum time that a handshake waits for its client. The client sends two or
	// three messages in a handshake.
	handshakeTime = 10 * time.Second
	// helloBytes is the number of handshake bytes that each client can send without using extraBytes. Most clients
	// send less than 2 KiB. crypto/tls buffers up to four times as many bytes.
	helloBytes = 8 << 10
	// chainBytes replaces helloBytes if the server requests a client certificate. A certificate chain is rarely longer
	// than 10 KiB.
	chainBytes = 32 << 10
	// maxHelloBytes and maxChainBytes are the maximum numbers of handshake bytes. A handshake that is longer than
	// helloBytes or chainBytes takes the rest from extraBytes.
	maxHelloBytes = 64 << 10
	maxChainBytes = 128 << 10
	// recordTime is the maximum time to wait for the rest of a TLS record or message. A record contains at most 16
	// KiB of content.
	recordTime = time.Minute
	// idleBytes is the maximum number of bytes without content that an idle connection can have
	// received. A KeyUpdate is 27 bytes long.
	idleBytes = 512
	// maxUnread is the maximum number of bytes that a client can send until its next content is
	// complete. A record is slightly longer than 16 KiB (RFC 8446 section 5.2), and a message such
	// as KeyUpdate is a few bytes long. Without this limit, crypto/tls would buffer up to 64 KiB of
	// a message.
	maxUnread = 20 << 10
	// encryptAtOnce is the maximum number of content bytes that are encrypted before the encrypted bytes are sent.
	encryptAtOnce = 32 << 10
	// recordOverhead is an upper bound for the bytes that encryption adds to 16 KiB of content.
	recordOverhead = 512
	// replyBatch is the number of bytes of replies to TLS messages that are collected while content arrives, and then
	// sent together. The overhead of many small segments could fill the receive buffer of the client.
	replyBatch = 4 << 10
)

// MaxRecord is the maximum length of a record's content in bytes.
const MaxRecord = 16 << 10

// MaxUnsent is the maximum number of unsent encrypted bytes, including replies to TLS messages from a client that
// does not read.
const MaxUnsent = 2 * largeOut

var (
	errNotRead       = errors.New("tls: the client does not read the replies")
	errLongHandshake = errors.New("tls: the handshake is too large")
	errNoContent     = errors.New("tls: too many messages without content")
)

// Values of the Op field in the *net.OpError that crypto/tls returns for an alert.
const (
	localError  = "local error"  // an alert from the server
	remoteError = "remote error" // an alert from the client
)

// Sizes of the buffers for unsent encrypted bytes. A small buffer holds a record with 4 KiB of content and
// the framing of a chunk.
const (
	smallOut = 4<<10 + 256
	largeOut = encryptAtOnce + encryptAtOnce/MaxRecord*recordOverhead
)

// Server is the state that all TLS connections of a listener share. It is safe for concurrent use.
type Server struct {
	config     *tls.Config
	recordTime time.Duration // maximum time to wait for the rest of a record or message
	buffers    *Buffers
	bounds     *bound.Recorder
	handshakes handshakes
}

// NewServer returns a server with a TLS configuration. A handshake waits for its client for at most 10 seconds, and
// a connection waits for the rest of a TLS record for at most a minute. If limit is positive, it is an additional
// upper bound for both times. If bounds is not nil, it records the bounds that clients exceed.
func NewServer(config *tls.Config, limit time.Duration, bounds *bound.Recorder) *Server {
	s := &Server{config: config, recordTime: recordTime, bounds: bounds, buffers: NewBuffers(smallOut, largeOut)}
	timeout := handshakeTime
	if limit > 0 {
		timeout, s.recordTime = min(limit, handshakeTime), min(limit, recordTime)
	}
	s.handshakes.init(timeout, bounds)
	return s
}

// encryption is the TLS state of a connection. It is also the net.Conn that crypto/tls uses.
type encryption struct {
	link   *Conn
	server *Server
	conn   *tls.Conn

	// The following fields are owned by the reader.
	fd             uintptr    // file descriptor of the socket; valid inside WaitRead
	shaking        *handshake // nil after the handshake
	received       int        // number of bytes received since the last content
	header         [5]byte    // first headerLen bytes of a record header
	headerLen      int
	recordLeft     int  // remaining payload bytes of the current record
	alert          byte // description of the last unencrypted alert, if alerted is true
	alerted        bool
	inputEnded     bool // a read of encrypted bytes has returned an error other than ErrAgain
	recordReported bool // an invalid record was reported

	rest wait // measures the wait for the rest of a record or message

	// The following fields hold the output of crypto/tls, which is written by the reader and the
	// writer. They are guarded by mu.
	mu            sync.Mutex
	pooled        *[]byte // the pooled buffer of out; nil if there is none
	out           []byte  // unsent bytes
	replyOverflow bool    // a reply exceeded MaxUnsent; crypto/tls cannot decrypt later records

	writing atomic.Bool  // content is being encrypted
	replied atomic.Int32 // number of unsent bytes in replies to TLS messages; see replyBatch
}

// Handshake completes a TLS handshake as the server. Handshake blocks, and must be called before any method that
// reads or writes. It first waits for the ClientHello and then for a slot, so that a client that sends nothing does
// not use a slot. If ctx is canceled, Handshake stops waiting for a slot.
//
// waiting is called each time the handshake starts or stops waiting for the client, and before Handshake waits for
// a slot. answered reports whether the ClientHello was valid and the server has sent its first messages.
//
// The client can send 8 KiB, or 32 KiB if the server requests a certificate. If only a few other handshakes exceed this
// limit, it is increased to 64 KiB or 128 KiB. The owner of the connection can end the handshake with a deadline.
func (c *Conn) Handshake(ctx context.Context, s *Server, waiting func(client, answered bool)) error {
	if err := c.awaitHello(s); err != nil {
		return err
	}
	h := &handshake{conn: c, server: &s.handshakes, waiting: waiting, allowed: helloBytes, extendable: maxHelloBytes - helloBytes}
	if s.config.ClientAuth != tls.NoClientCert {
		h.allowed, h.extendable = chainBytes, maxChainBytes-chainBytes
	}
	waiting(false, false)
	if err := h.start(ctx); err != nil {
		return err
	}
	e := &encryption{link: c, server: s, shaking: h}
	e.conn = tls.Server(e, s.config)
	err := e.alertError(e.conn.Handshake())
	h.wait.begin(true)                   // sendAll waits for a client that does not read
	if sent := e.sendAll(); err == nil { // after a failed handshake, sendAll sends the alert
		err = sent
	}
	h.wait.end()
	h.end(err == nil)
	if err != nil {
		h.recordFailure(err)
		return err
	}
	e.shaking = nil
	c.tls = e
	return nil
}

// awaitHello waits until the first TLS record of the client has arrived, without reading the
// record. If the record has arrived when the timeout expires, the connection stays open, because
// the client is not the cause of the delay.
func (c *Conn) awaitHello(s *Server) error {
	c.greeting.Store(true)
	timer := time.AfterFunc(s.handshakes.timeout, func() {
		var silent, late bool
		_ = c.raw.Control(func(fd uintptr) { silent, late = Silent(fd), !recordArrived(fd) })
		if !late || !c.greeting.CompareAndSwap(true, false) {
			return
		}
		name := bound.TLSHandshakeTimeout
		if silent {
			name = bound.SilentConnection
		}
		s.bounds.Hit(name, c.RemoteAddr().String())
		_ = c.Cut()
	})
	defer timer.Stop()
	err := c.raw.Read(recordArrived)
	if !c.greeting.CompareAndSwap(true, false) && err == nil {
		err = net.ErrClosed
	}
	return err
}

// recordArrived reports whether the first TLS record, the end of the input or an error can be read
// from a socket (RFC 8446 section 5.1). It also returns true for input that is not a TLS handshake, and
// if the receive buffer is too small for the record.
func recordArrived(fd uintptr) bool {
	const handshakeType = 22
	var header [5]byte
	n, err := Peek(fd, header[:])
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return false
	case err != nil || n == 0 || header[0] != handshakeType:
		return true
	}
	const usable = 4 // the kernel can use up to three quarters of a small buffer for its own data
	unread := Unread(fd)
	complete := n == len(header) && unread >= n+int(header[3])<<8+int(header[4])
	return complete || unread >= ReceiveBuffer(fd)/usable || Ended(fd)
}

// hit records that the connection is closed because of a bound.
func (e *encryption) hit(name bound.Name) { e.server.bounds.Hit(name, e.link.RemoteAddr().String()) }

// sendAll sends the output of crypto/tls during a handshake.
func (e *encryption) sendAll() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.out) == 0 {
		return nil
	}
	_, err := e.link.tcp.Write(e.out)
	e.putBack()
	return err
}

// Read implements net.Conn for crypto/tls. It reads encrypted bytes.
func (e *encryption) Read(p []byte) (n int, err error) {
	if e.shaking != nil {
		return e.readHandshake(p)
	}
	if e.received >= maxUnread {
		e.inputEnded = true
		e.hit(bound.TLSNoContent)
		return 0, errNoContent
	}
	n, err = receive(e.fd, p)
	e.inputEnded = err != nil && !errors.Is(err, ErrAgain)
	e.received += n
	e.follow(p[:n])
	return n, err
}

// readHandshake implements Read during the handshake. It first sends the messages that the client waits for.
func (e *encryption) readHandshake(p []byte) (n int, err error) {
	h := e.shaking
	if h.allowed == 0 && !h.extend() {
		h.exceeded.Store(true)
		e.hit(bound.TLSHandshakeSize)
		return 0, errLongHandshake
	}
	h.begin(len(e.out) > 0) // no other goroutine writes during a handshake
	defer h.pause()
	if err := e.sendAll(); err != nil {
		return 0, err
	}
	h.reading.Store(true)
	n, err = e.link.tcp.Read(p[:min(len(p), h.allowed)])
	h.reading.Store(false)
	h.allowed -= n
	h.received = h.received || n > 0
	e.follow(p[:n])
	return n, err
}

// follow tracks record boundaries in the received bytes (RFC 8446 section 5.1).
func (e *encryption) follow(p []byte) {
	for len(p) > 0 {
		if e.recordLeft == 0 {
			n := copy(e.header[e.headerLen:], p)
			p = p[n:]
			if e.headerLen += n; e.headerLen == len(e.header) {
				e.recordLeft = int(e.header[3])<<8 | int(e.header[4])
				e.headerLen = 0
			}
			continue
		}
		n := min(len(p), e.recordLeft)
		if e.recordLeft -= n; e.recordLeft == 0 && e.isAlert() {
			e.alert, e.alerted = p[n-1], true
		}
		p = p[n:]
	}
}

// isAlert reports whether the current record is an unencrypted alert (RFC 8446 section 6). It checks the length, because
// an encrypted alert is longer than an unencrypted alert.
func (e *encryption) isAlert() bool {
	const alertType, alertLength = 21, 2
	return e.header[0] == alertType && int(e.header[3])<<8|int(e.header[4]) == alertLength
}

// alertError returns the alert of the client if it caused err. OpenSSL does not encrypt the alert with which it
// rejects a certificate in TLS 1.3. crypto/tls expects an encrypted record, so its error describes an invalid
// record.
func (e *encryption) alertError(err error) error {
	if local, ok := errors.AsType[*net.OpError](err); ok && local.Op == localError && e.alerted {
		return &net.OpError{Op: remoteError, Err: tls.AlertError(e.alert)}
	}
	return err
}

// stalled reports whether a record is incomplete or a TLS message may be incomplete.
func (e *encryption) stalled() bool {
	return e.received > idleBytes || e.recordLeft > 0 || e.headerLen > 0
}

// awaitRest starts the timeout if a record or message is incomplete. The timer continues to run
// when the rest arrives, because the input of a busy connection often ends within a record. When
// the timer fires, closeLate checks whether the connection still waits for the rest.
func (e *encryption) awaitRest() {
	if !e.stalled() {
		e.rest.earlier.Store(0)
		return
	}
	e.rest.begin(false)
	if e.link.late.Load() == nil {
		e.checkLate(e.server.recordTime)
	}
}

// checkLate starts a timer that calls closeLate after d.
func (e *encryption) checkLate(d time.Duration) {
	e.link.late.Store(time.AfterFunc(d, e.closeLate))
}

// closeLate closes the connection if the rest of a record or message has not arrived within Server.recordTime.
func (e *encryption) closeLate() {
	e.link.late.Store(nil)
	waited := e.rest.time(time.Now())
	switch {
	case waited == 0:
	case waited < e.server.recordTime:
		e.checkLate(e.server.recordTime - waited)
	default:
		e.hit(bound.TLSRecordTimeout)
		_ = e.link.Cut()
	}
}

// Write implements net.Conn for crypto/tls. It buffers encrypted bytes until they are sent.
func (e *encryption) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.out)+len(p) > MaxUnsent {
		e.replyOverflow = true
		e.hit(bound.TLSUnreadReplies)
		return 0, errNotRead
	}
	if e.pooled == nil {
		e.take(len(p))
	}
	if !e.writing.Load() {
		e.replied.Add(int32(len(p)))
	}
	e.out = append(e.out, p...)
	return len(p), nil
}

// unsent implements Conn.Unsent.
func (e *encryption) unsent() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pooled == nil {
		return 0
	}
	return len(*e.pooled)
}

// take gets a buffer for n encrypted bytes from the pool. e.mu must be held.
func (e *encryption) take(n int) {
	e.pooled = e.server.buffers.Get(min(n, largeOut))
	e.out = (*e.pooled)[:0]
}

// putBack releases the buffer. e.mu must be held.
func (e *encryption) putBack() {
	e.server.buffers.Put(e.pooled)
	e.pooled, e.out = nil, nil
}

// send sends as many buffered bytes as possible without blocking.
func (e *encryption) send(fd uintptr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.out) > 0 {
		n, err := Write(fd, e.out)
		e.out = e.out[n:]
		if err != nil {
			return asAgain(err)
		}
	}
	e.putBack()
	return nil
}

// read implements Conn.TryRead.
func (e *encryption) read(fd uintptr, p []byte) (int, error) {
	e.fd = fd
	e.rest.end()
	n, err := e.conn.Read(p)
	if n > 0 {
		e.received = 0
		e.rest.earlier.Store(0)
		// Send the collected replies even if the client sends content without a pause, because the
		// client may also be reading. If the send fails, the next write returns the error.
		if e.replied.Load() >= replyBatch {
			e.replied.Store(0)
			_ = e.send(fd)
		}
		return n, nil
	}
	if err != nil && !errors.Is(err, ErrAgain) {
		e.recordInvalid(err)
	}
	// The output may contain the reply to a TLS message such as KeyUpdate.
	if answer := e.send(fd); answer != nil && !errors.Is(answer, ErrAgain) {
		return 0, answer
	}
	if err == nil { // the record has no content
		err = ErrAgain
	}
	if errors.Is(err, ErrAgain) {
		e.awaitRest()
	}
	return 0, err
}

// overflowed reports whether a reply to a TLS message from the client exceeded MaxUnsent.
func (e *encryption) overflowed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.replyOverflow
}

// recordInvalid records err if crypto/tls rejected a record or a message from the client. It does not record an
// alert from the client, the end of the input, a socket error, or a bound.
func (e *encryption) recordInvalid(err error) {
	alert, isAlert := errors.AsType[*net.OpError](err)
	if e.recordReported || e.inputEnded || errors.Is(err, io.EOF) || e.overflowed() || isAlert && alert.Op == remoteError {
		return
	}
	e.recordReported = true
	e.server.bounds.Fail(bound.TLSRecord, e.link.RemoteAddr().String(), err)
}

// write implements Conn.TryWrite.
func (e *encryption) write(fd uintptr, p, q []byte) (n int, err error) {
	if err := e.send(fd); err != nil {
		return 0, err
	}
	if len(p)+len(q) > smallOut-recordOverhead {
		e.mu.Lock()
		if e.pooled == nil {
			e.take(largeOut)
		}
		e.mu.Unlock()
	}
	for _, piece := range [2][]byte{p, q} {
		piece = piece[:min(len(piece), encryptAtOnce-n)]
		if len(piece) == 0 {
			continue
		}
		e.writing.Store(true)
		taken, err := e.conn.Write(piece)
		e.writing.Store(false)
		n += taken
		if err != nil {
			return n, err
		}
	}
	err = e.send(fd)
	if errors.Is(err, ErrAgain) && n > 0 {
		err = nil
	}
	return n, err
}

// sendCloseNotify sends close_notify if this does not block.
func (c *Conn) sendCloseNotify() {
	if c.tls == nil {
		return
	}
	_ = c.tls.conn.CloseWrite() // crypto/tls appends the alert to c.tls.out
	_ = c.raw.Control(func(fd uintptr) { _ = c.tls.send(fd) })
}

// Close and the following methods implement net.Conn for crypto/tls. Close and the deadline methods have no effect,
// because the owner of the connection closes it and sets the deadlines.
func (e *encryption) Close() error                     { return nil }
func (e *encryption) LocalAddr() net.Addr              { return e.link.LocalAddr() }
func (e *encryption) RemoteAddr() net.Addr             { return e.link.RemoteAddr() }
func (e *encryption) SetDeadline(time.Time) error      { return nil }
func (e *encryption) SetReadDeadline(time.Time) error  { return nil }
func (e *encryption) SetWriteDeadline(time.Time) error { return nil }
