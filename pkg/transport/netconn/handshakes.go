package netconn

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
)

const (
	// maxHandshakes is the maximum number of handshakes in progress for each listener. crypto/tls buffers up to 32
	// KiB for each of them, 8 MiB in total.
	maxHandshakes = 256
	// maxQueued is the maximum number of handshakes in the queue. One CPU completes about 2000 handshakes per
	// second.
	maxQueued = 20000
	// extraBytes is the total number of bytes that the handshakes in progress can receive in addition to helloBytes or
	// chainBytes for each handshake. crypto/tls buffers up to four times as many bytes.
	extraBytes = 1 << 20
	// extension is the number of bytes that a handshake takes from extraBytes in one step.
	extension = 8 << 10
	// stallTime is the minimum time that a handshake can wait for the next messages of the client while another
	// handshake is queued. The client sends messages two or three times (RFC 8446 section 2). A slow client may need
	// more time, for example if 1000 clients share a busy CPU.
	stallTime = time.Second
	// recheckTime is the time between two checks of a handshake whose next message has arrived but was not read yet.
	recheckTime = time.Second / 5
)

// handshakes limits the number of handshakes in progress. Other handshakes wait in a queue without a timeout, because
// the client is not the cause of the wait. A slot is idle while its handshake waits for the client. If handshakes are
// queued, an idle slot can be reassigned after a time between stallTime and the timeout of a handshake (see
// [fair.Options]). The connection that loses its slot is closed.
type handshakes struct {
	slots   *fair.Semaphore
	timeout time.Duration // maximum time that a handshake waits for its client
	bounds  *bound.Recorder

	mu    sync.Mutex
	extra int // remaining bytes of extraBytes
}

func (s *handshakes) init(timeout time.Duration, bounds *bound.Recorder) {
	s.slots = fair.New(fair.Options{
		Slots: maxHandshakes, Queue: maxQueued, MinPatience: min(stallTime, timeout), MaxPatience: timeout,
	})
	s.timeout, s.bounds, s.extra = timeout, bounds, extraBytes
}

// handshake is a TLS handshake in progress or in the queue.
type handshake struct {
	conn    *Conn
	server  *handshakes
	slot    *fair.Slot
	waiting func(client, answered bool) // see Conn.Handshake
	allowed int                         // remaining number of bytes that the handshake can receive

	extendable int         // remaining number of bytes that the handshake can take from handshakes.extra
	extended   int         // number of bytes taken from handshakes.extra
	idle       bool        // the slot is idle
	answered   bool        // the server has sent its first messages
	received   bool        // the client has sent data
	exceeded   atomic.Bool // the connection was closed because the client exceeded a bound
	wait       wait        // measures the time that the handshake waits for the client
	reading    atomic.Bool // the handshake waits for input
	ended      atomic.Bool
	timer      *time.Timer // calls expire
}

// start waits until h can start. It returns an error if the queue is full or ctx is done.
func (h *handshake) start(ctx context.Context) (err error) {
	s := h.server
	h.slot, err = s.slots.Acquire(ctx, fair.Request{Client: h.conn.Client(), End: func() bool {
		return h.stalled(time.Now()) > 0 && h.close(bound.TLSHandshakeStall)
	}})
	if errors.Is(err, fair.ErrQueueFull) {
		s.bounds.Hit(bound.TLSHandshakeQueue, h.conn.RemoteAddr().String())
	}
	if err == nil {
		h.timer = time.AfterFunc(time.Hour, h.expire) // expire uses h.timer, which must be set before the timer fires
		h.timer.Reset(s.timeout)
	}
	return err
}

// end releases the slot of the handshake. It must be called after start has returned nil.
func (h *handshake) end(completed bool) {
	h.ended.Store(true)
	h.timer.Stop()
	h.server.mu.Lock()
	h.server.extra += h.extended
	h.server.mu.Unlock()
	if completed {
		h.slot.Answered()
	}
	h.slot.Release()
}

// begin records that the handshake waits for the client. next is true if the server has sent a message since the last
// wait, so that the handshake waits for a new message and not for the rest of the previous one.
func (h *handshake) begin(next bool) {
	h.wait.begin(next)
	if next || !h.idle {
		h.idle = true
		h.slot.Idle()
	}
	h.answered = h.answered || next
	h.waiting(true, h.answered)
}

// pause records that the handshake no longer waits for the client.
func (h *handshake) pause() {
	h.wait.end()
	h.waiting(false, h.answered)
}

// stalled returns the total time that the handshake has waited for the client. It returns 0 if the handshake is not
// currently waiting for the client. It also returns 0 if a message has arrived but was not read, because the process
// then lacks CPU time.
func (h *handshake) stalled(now time.Time) time.Duration {
	if h.ended.Load() || h.reading.Load() && !h.conn.Silent() {
		return 0
	}
	return h.wait.total(now)
}

// expire closes the connection if the handshake has waited for its client for the whole timeout.
func (h *handshake) expire() {
	switch waited := h.stalled(time.Now()); {
	case h.ended.Load():
	case waited >= h.server.timeout:
		h.close(bound.TLSHandshakeTimeout)
	default:
		h.timer.Reset(max(h.server.timeout-waited, recheckTime))
	}
}

// close closes the connection because the client exceeded a bound. It always returns true.
func (h *handshake) close(name bound.Name) bool {
	h.exceeded.Store(true)
	h.server.bounds.Hit(name, h.conn.RemoteAddr().String())
	_ = h.conn.Cut()
	return true
}

// recordFailure records the error of a failed handshake. It records nothing if the connection was closed, or if the
// client exceeded a bound, because the bound was already recorded. It also records nothing if the client sent no
// data, because TCP probes send no data.
func (h *handshake) recordFailure(err error) {
	if h.received && !h.exceeded.Load() && !connectionClosed(err) {
		h.server.bounds.Fail(handshakeError(err), h.conn.RemoteAddr().String(), err)
	}
}

// connectionClosed reports whether a handshake failed with err because the sidecar closed the connection, for
// example to serve another connection, or because the client disconnected.
func connectionClosed(err error) bool {
	return slices.ContainsFunc([]error{
		os.ErrDeadlineExceeded, net.ErrClosed, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE,
	}, func(target error) bool { return errors.Is(err, target) })
}

// noCertificate is the end of the error message that crypto/tls returns for a client without a certificate. This
// error has no exported type. VerifyClients of package certs uses the same text.
const noCertificate = "client didn't provide a certificate"

// handshakeError classifies the error of a handshake.
func handshakeError(err error) bound.Name {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return bound.TLSBadCertificate
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == remoteError {
		return bound.TLSRejected
	}
	if strings.HasSuffix(err.Error(), noCertificate) {
		return bound.TLSNoCertificate
	}
	return bound.TLSFailed
}

// extend increases the number of bytes that h can receive. It returns false if no bytes are available.
func (h *handshake) extend() bool {
	s := h.server
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(extension, s.extra, h.extendable)
	s.extra -= n
	h.extendable -= n
	h.extended += n
	h.allowed += n
	return n > 0
}
