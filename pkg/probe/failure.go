package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// An attemptFunc makes one attempt of a probe. The attempt passes if the error is nil or a [warning]. It returns
// promptly when ctx is done.
type attemptFunc func(context.Context) error

func passes(err error) bool {
	_, isWarning := errors.AsType[warning](err)
	return err == nil || isWarning
}

// failure is the error of a failed attempt, and the word that describes the error in responses and metrics.
type failure struct {
	word observation.ReadinessWord
	code int // status code; set only for WordStatus, WordNotServing and WordRPC
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// warning is returned by an attempt that passes with a warning, like ProbeWarning in the kubelet.
type warning string

func (w warning) Error() string { return string(w) }

// failed returns err as a failure. If err does not wrap a failure, failed determines the word.
func failed(err error) *failure {
	if known, ok := errors.AsType[*failure](err); ok {
		return &failure{known.word, known.code, err}
	}
	return &failure{word: wordOf(err), err: err}
}

func wordOf(err error) observation.ReadinessWord {
	var timeout interface{ Timeout() bool }
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return observation.WordTimeout
	case transport.Exhausted(err), noLocalPort(err):
		return observation.WordLocal
	case errors.Is(err, syscall.ECONNREFUSED):
		return observation.WordRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return observation.WordReset
	case isOp && op.Op == "remote error": // crypto/tls received an alert after the handshake
		return observation.WordTLS
	case isOp:
		return observation.WordUnreachable
	}
	return observation.WordGarbage
}

// noLocalPort reports whether a dial failed with EADDRNOTAVAIL because the host has no free local port
// for the connection. It returns false for IPv6 addresses such as [::1], because the error may then
// mean that the host does not support IPv6.
func noLocalPort(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return false
	}
	to, ok := op.Addr.(*net.TCPAddr)
	return ok && to.IP.To4() != nil
}
