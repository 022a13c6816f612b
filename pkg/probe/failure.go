package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// A Word is the reason why the user container is not ready. The words are a closed list and can be used as label
// values and in responses. They do not contain addresses, paths or header fields (docs/promises.md 2.4).
type Word string

// Reasons about a probe.
const (
	wordPending       Word = "pending"       // no attempt has ended
	wordRefused       Word = "refused"       // nothing listens on the port
	wordTimeout       Word = "timeout"       // no response before the timeout
	wordReset         Word = "reset"         // the connection was closed before the response
	wordUnreachable   Word = "unreachable"   // no route to the host, or the host does not exist
	wordTLS           Word = "tls"           // the TLS handshake failed
	wordStatus        Word = "status"        // the HTTP status does not pass; the code is the status
	wordRedirect      Word = "redirect"      // there were too many redirects, or a redirect to another scheme
	wordGarbage       Word = "garbage"       // the response uses another protocol
	wordNotServing    Word = "not-serving"   // the gRPC health service is not serving; the code is the serving status
	wordUnimplemented Word = "unimplemented" // the gRPC server has no health service
	wordRPC           Word = "rpc-status"    // the gRPC call failed; the code is the gRPC status
	wordThreshold     Word = "threshold"     // fewer than successThreshold consecutive passes
	wordLocal         Word = "local"         // the sidecar has no file descriptor, no local port or no memory for the connection
)

// Reasons about the caller of Ready.
const (
	wordCrowded Word = "crowded" // too many callers are waiting
	wordStopped Word = "stopped" // the process is terminating
)

// Words returns all words.
func Words() []Word {
	return []Word{
		wordPending, wordRefused, wordTimeout, wordReset, wordUnreachable, wordTLS, wordStatus, wordRedirect, wordGarbage,
		wordNotServing, wordUnimplemented, wordRPC, wordThreshold, wordLocal, wordCrowded, wordStopped,
	}
}

// An ask makes one attempt of a probe. The attempt passes if the error is nil or a [warning]. An ask returns
// promptly when ctx is done.
type ask func(context.Context) error

func passes(err error) bool {
	_, isWarning := errors.AsType[warning](err)
	return err == nil || isWarning
}

// failure is the error of an attempt with its word.
type failure struct {
	word Word
	code int // for wordStatus, wordNotServing and wordRPC
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// warning is the error of an attempt that passes with a warning, like ProbeWarning in the kubelet.
type warning string

func (w warning) Error() string { return string(w) }

// failed returns err as a failure. It determines the word if err is not a failure.
func failed(err error) *failure {
	if known, ok := errors.AsType[*failure](err); ok {
		return &failure{known.word, known.code, err}
	}
	return &failure{word: wordOf(err), err: err}
}

func wordOf(err error) Word {
	var timeout interface{ Timeout() bool }
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return wordTimeout
	case netconn.Exhausted(err), noLocalPort(err):
		return wordLocal
	case errors.Is(err, syscall.ECONNREFUSED):
		return wordRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return wordReset
	case isOp && op.Op == "remote error": // crypto/tls received an alert after the handshake
		return wordTLS
	case isOp:
		return wordUnreachable
	}
	return wordGarbage
}

// noLocalPort reports whether a dial failed because the host has no local port for the connection.
// The error is EADDRNOTAVAIL. For [::1], it can also mean that the host does not support IPv6.
func noLocalPort(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return false
	}
	to, ok := op.Addr.(*net.TCPAddr)
	return ok && to.IP.To4() != nil
}
