package http1client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// versions stores which HTTP versions the user container supports. The versions are detected on separate connections,
// or from responses to requests. After a failed dial, both versions are set to unknown, because the user container may
// have been replaced.
type versions struct {
	mu        sync.Mutex    // guards detection and changes of h1 and h2
	h1, h2    atomic.Uint32 // values of type answer
	detection *detection    // the running HTTP/2 detection, or nil
}

// detection is a running HTTP/2 detection. All requests that need the result wait for it. Only one detection runs at a
// time, because a user container that does not support HTTP/2 may process the preface as a request.
type detection struct {
	needed    bool          // the preface may be sent even if the user container responds in HTTP/1.1
	done      chan struct{} // closed when supported and err are set
	supported bool
	err       error
}

type answer uint32

const (
	unknown answer = iota
	yes
	no
	doubtful // HTTP/2 is probably not supported, but the complete preface was not sent
)

func (v *versions) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.set(unknown, unknown)
}

// Forget resets the detected HTTP versions, because the user container may have been replaced.
func (a *App) Forget() { a.versions.forget() }

// setH1 stores whether the user container supports HTTP/1.1. If supported is false, it also stores that the user
// container supports HTTP/2.
func (v *versions) setH1(supported bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if supported {
		v.h1.Store(uint32(yes))
	} else {
		v.set(no, yes)
	}
}

// set stores both answers. v.mu must be held.
func (v *versions) set(h1, h2 answer) {
	v.h1.Store(uint32(h1))
	v.h2.Store(uint32(h2))
}

func (v *versions) setH2(h2 answer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.h2.Store(uint32(h2))
}

// http1 reports whether the user container supports HTTP/1.1.
func (v *versions) http1() answer { return answer(v.h1.Load()) }

// OnlyH2 reports whether the user container is known to support HTTP/2 and not HTTP/1.1.
func (a *App) OnlyH2() bool { return a.versions.http1() == no }

// needsH2 reports whether a request with the given Content-Type requires HTTP/2. This is the case for gRPC and for
// streams of the Connect protocol.
func needsH2(contentType string) bool {
	return transport.IsGRPC(contentType) || strings.HasPrefix(contentType, "application/connect+")
}

// SupportsH2 reports whether the user container supports HTTP/2. If the answer is not known, SupportsH2 detects it on
// separate connections, until the canceler fires. If the user container does not respond within a second, SupportsH2
// returns false, and stores this answer only if the user container has already responded in HTTP/1.1. The error is a
// *transport.Error if no connection can be opened, or context.Canceled.
//
// Some HTTP/1.1 servers, such as net/http, pass the HTTP/2 preface to their handlers. If the user container responds in
// HTTP/1.1, the preface is sent only if the request x requires HTTP/2, if Settings.H2C is true, or if the user
// container recognizes the preface.
func (a *App) SupportsH2(x transport.Exchange, canceler *transport.Canceler) (bool, error) {
	if supported, known := a.versions.knownH2(true); known { // before needsH2, which is more expensive
		return supported, nil
	}
	needed := a.settings.H2C || needsH2(x.Header(transport.ContentType))
	if supported, known := a.versions.knownH2(needed); known {
		return supported, nil
	}
	ctx, cancel := canceler.Context()
	defer cancel()
	return a.supportsH2(ctx, needed)
}

// knownH2 reports whether the user container supports HTTP/2. known is false if detection is necessary. If needed is
// false, an uncertain result is sufficient.
func (v *versions) knownH2(needed bool) (supported, known bool) {
	h2 := answer(v.h2.Load())
	return h2 == yes, h2 == yes || h2 == no || h2 == doubtful && !needed
}

// supportsH2 is like SupportsH2, but uses a context instead of a canceler. If ctx is canceled, it returns the cause of
// ctx.
func (a *App) supportsH2(ctx context.Context, needed bool) (bool, error) {
	v := &a.versions
	v.mu.Lock()
	if supported, known := v.knownH2(needed); known {
		v.mu.Unlock()
		return supported, nil
	}
	if ctx.Err() != nil {
		v.mu.Unlock()
		return false, context.Cause(ctx)
	}
	q := v.detection
	if q == nil {
		q = &detection{needed: needed, done: make(chan struct{})}
		v.detection = q
		go func() {
			q.supported, q.err = a.detectH2(context.WithoutCancel(ctx), needed)
			v.mu.Lock()
			v.detection = nil
			v.mu.Unlock()
			close(q.done)
		}()
	}
	v.mu.Unlock()
	select {
	case <-q.done:
		if needed && !q.needed && !q.supported && q.err == nil {
			return a.supportsH2(ctx, needed)
		}
		return q.supported, q.err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// detectH2 detects whether the user container supports HTTP/2.
func (a *App) detectH2(ctx context.Context, needed bool) (supported bool, err error) {
	reply, silent, err := a.sendBadRequest(ctx)
	switch {
	case err != nil:
		return false, err
	case reply == inHTTP2:
		a.versions.setH1(false)
		return true, nil
	case reply == inHTTP1:
		a.versions.setH1(true)
	}
	if a.versions.http1() == yes && !silent {
		recognizes, err := a.recognizesPreface(ctx)
		if err != nil {
			return false, err
		}
		if !recognizes && !needed {
			a.versions.setH2(doubtful)
			return false, nil
		}
	}
	switch {
	case silent:
	case reply == none:
		h2, err := a.confirmPreface(ctx)
		if err == nil && h2 != unknown {
			a.versions.setH2(h2)
		}
		return h2 == yes, err
	default:
		supported, silent, err = a.testConn(ctx, acceptsPreface)
	}
	if err != nil {
		return false, err
	}
	if silent && a.versions.http1() != yes {
		return false, nil // the user container may be too busy to respond, so the result is not stored
	}
	result := no
	if supported {
		result = yes
	}
	a.versions.setH2(result)
	return supported, nil
}

// badRequest is malformed in each version of HTTP, so that an HTTP/1.1 server responds with 400 and does not call a
// handler. The method is not a token. The line has more than three words, because Python's http.server checks the
// number of words before it selects a handler. The request is longer than the HTTP/2 preface, so that a server that
// compares the input with the preface does not wait for more bytes.
const badRequest = "@ @ queue-proxy protocol detection HTTP/1.1\r\n\r\n"

// reply is the protocol of the response to a bad request.
type reply uint8

const (
	none    reply = iota // no response
	inHTTP1              // the response of an HTTP/1.1 server
	inHTTP2              // the SETTINGS frame that an HTTP/2 server sends first (RFC 9113 section 3.4)
)

// sendBadRequest sends badRequest on a separate connection. silent reports whether the response
// timed out.
func (a *App) sendBadRequest(ctx context.Context) (r reply, silent bool, err error) {
	_, silent, err = a.testConn(ctx, func(c net.Conn) bool {
		if _, err := io.WriteString(c, badRequest); err != nil {
			return false
		}
		var head [9]byte
		switch n, _ := io.ReadFull(c, head[:]); {
		case isSettings(head[:n]):
			r = inHTTP2
		case n == len(head):
			r = inHTTP1
		}
		return r != none
	})
	return r, silent, err
}

// shortBadRequest is a bad request that is shorter than the preface. A server that compares its input with the preface
// waits for more bytes before it responds.
const shortBadRequest = "@\r\n\r\n"

// recognizesPreface reports whether a user container that responds in HTTP/1.1 also recognizes the HTTP/2 preface. A
// net/http server that supports HTTP/2 waits for 14 bytes, so it does not respond to shortBadRequest. recognizesPreface
// then sends longer bad requests on other connections. The responses to them show that the user container is not too
// busy to respond.
//
// A server that compares the preface in a handler, such as package h2c, is not recognized.
func (a *App) recognizesPreface(ctx context.Context) (bool, error) {
	const laterRequests = 3
	recognizes, _, err := a.testConn(ctx, func(c net.Conn) bool {
		if _, err := io.WriteString(c, shortBadRequest); err != nil {
			return false
		}
		for range laterRequests {
			if r, _, err := a.sendBadRequest(ctx); err != nil || r != inHTTP1 {
				return false
			}
		}
		return isSilent(c)
	})
	return recognizes, err
}

// silentNow reports whether the connection is open and no byte from the user container can be read.
func silentNow(c net.Conn) (silent bool) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { silent = netconn.Silent(fd) })
	return silent && err == nil
}

// isSilent reports whether the connection stays open without input for 100 ms.
func isSilent(c net.Conn) bool {
	const duration = 100 * time.Millisecond
	_ = c.SetReadDeadline(time.Now().Add(duration))
	var b [1]byte
	_, err := c.Read(b[:])
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// supportsOnlyH2 reports whether the user container supports HTTP/2 and does not support HTTP/1.1. If the result is
// true, the user container cannot have processed an HTTP/1.1 request. The error is a *transport.Error if no connection
// can be opened, or the cause of the context.
//
// supportsOnlyH2 first sends a bad request. A response in HTTP/1.1 or in HTTP/2 shows the result. If the user container
// closes the connection without a response, it supports only HTTP/2, or it is about to exit. To distinguish these
// cases, supportsOnlyH2 opens an HTTP/2 connection and sends another bad request. After that, the user container must
// still accept a new connection, and the HTTP/2 connection must still work.
func (a *App) supportsOnlyH2(ctx context.Context) (bool, error) {
	if h1 := a.versions.http1(); h1 != unknown {
		return h1 == no, nil
	}
	r, silent, err := a.sendBadRequest(ctx)
	switch {
	case err != nil || silent:
		return false, err
	case r != none:
		a.versions.setH1(r == inHTTP1)
		return r == inHTTP2, nil
	}
	if h2, err := a.supportsH2(ctx, false); err != nil || !h2 {
		return false, err
	}
	if h1 := a.versions.http1(); h1 != unknown {
		return h1 == no, nil
	}
	var h1 bool
	sure, _, err := a.testConn(ctx, func(witness net.Conn) bool {
		if !acceptsPreface(witness) {
			return false
		}
		r, silent, err := a.sendBadRequest(ctx)
		if h1 = r == inHTTP1; err != nil || silent || h1 {
			return h1
		}
		h2, _, err := a.testConn(ctx, acceptsPreface) // checks that the user container still accepts connections
		return err == nil && h2 && respondsToPing(witness)
	})
	if err != nil || !sure {
		return false, err
	}
	a.versions.setH1(h1)
	return !h1, nil
}

// testConn opens a connection to the user container and returns the result of test for the connection. silent reports
// whether test returned false because of prefaceTimeout.
func (a *App) testConn(ctx context.Context, test func(net.Conn) bool) (result, silent bool, err error) {
	c, err := a.Dial(ctx)
	if err != nil {
		return false, false, err
	}
	defer c.Close()
	limited, cancel := context.WithTimeout(ctx, prefaceTimeout)
	defer cancel()
	stop := context.AfterFunc(limited, func() { c.SetDeadline(past) })
	defer stop()
	result = test(c)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	return result, !result && limited.Err() != nil, nil
}

// prefaceTimeout is the maximum duration of a test in testConn. A server that supports HTTP/2 responds immediately. An
// HTTP/1.1 server may wait for the rest of the request.
const prefaceTimeout = time.Second

// confirmPreface detects HTTP/2 after the user container closes a connection without a response to a bad request. Such
// a user container supports only HTTP/2, or it is starting. confirmPreface therefore first sends only the first line of
// the preface, and then bad requests on other connections. If the user container responds to a bad request in HTTP/1.1,
// confirmPreface does not send the rest of the preface, and the result is unknown. If the user container closes all
// connections, the result is doubtful.
//
// A grpc-go server sends its SETTINGS frame and reads the preface at the same time. It may therefore close one
// connection without a response and respond to the next bad request in HTTP/2.
func (a *App) confirmPreface(ctx context.Context) (h2 answer, err error) {
	const requests = 2
	supported, silent, err := a.testConn(ctx, func(c net.Conn) bool {
		if _, err := io.WriteString(c, prefaceLine); err != nil {
			return false
		}
		for range requests {
			r, silent, err := a.sendBadRequest(ctx)
			if r == inHTTP2 {
				a.versions.setH1(false)
				return true
			}
			if err != nil || silent || r != none {
				return false
			}
		}
		h2 = doubtful
		if !silentNow(c) {
			return readsSettings(c) // some servers send SETTINGS before they receive the preface
		}
		h2 = no
		_, err := io.WriteString(c, prefaceRest)
		return err == nil && readsSettings(c)
	})
	switch {
	case supported:
		return yes, nil
	case silent || err != nil:
		return unknown, err
	}
	return h2, nil
}

// prefaceLine and prefaceRest are the HTTP/2 preface with an empty SETTINGS frame (RFC 9113 section 3.4). For an
// HTTP/1.1 server, prefaceLine is the request line of an incomplete request.
const (
	prefaceLine = "PRI * HTTP/2.0\r\n"
	prefaceRest = "\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
)

// acceptsPreface sends the HTTP/2 preface of a client. It reports whether the server responds with the preface of a
// server, which is a SETTINGS frame (RFC 9113 section 3.4).
func acceptsPreface(c net.Conn) bool {
	_, err := io.WriteString(c, prefaceLine+prefaceRest)
	return err == nil && readsSettings(c)
}

// readsSettings reports whether the next frame is the SETTINGS frame of a server.
func readsSettings(c net.Conn) bool {
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return false
	}
	return isSettings(head[:]) && skipPayload(c, head)
}

// skipPayload discards the payload of the frame with the given header (RFC 9113 section 4.1).
func skipPayload(r io.Reader, head [9]byte) bool {
	_, err := io.CopyN(io.Discard, r, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
	return err == nil
}

// respondsToPing sends a PING frame (RFC 9113 section 6.7) after 20 ms, and reports whether the HTTP/2 server responds
// to it. The server has already responded to the preface. A server that is about to exit does not respond to the PING.
func respondsToPing(c net.Conn) bool {
	const delay = 20 * time.Millisecond
	time.Sleep(delay)
	const ping, ack = 6, 1
	if _, err := io.WriteString(c, "\x00\x00\x08\x06\x00\x00\x00\x00\x00alive???"); err != nil {
		return false
	}
	for {
		var head [9]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return false
		}
		if head[3] == ping && head[4]&ack != 0 {
			return true
		}
		if !skipPayload(c, head) {
			return false
		}
	}
}

// isSettings reports whether b begins with the header of a SETTINGS frame that can start a connection:
// type 4, no ACK, stream 0 (RFC 9113 section 6.5).
func isSettings(b []byte) bool {
	return len(b) >= 9 && b[0] == 0 && b[3] == 4 && b[4] == 0 && b[5]|b[6]|b[7]|b[8] == 0
}

// couldBeSettings reports whether b is an incomplete frame header that isSettings may accept after more bytes arrive.
func couldBeSettings(b []byte) bool {
	head := [9]byte{3: 4}
	copy(head[:], b)
	return len(b) < len(head) && isSettings(head[:])
}
