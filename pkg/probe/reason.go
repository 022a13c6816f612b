package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

// A Word says in one word why the user container is not ready. The words are a
// closed list, fit for a metric's label and for people outside the pod: they tell
// nothing of addresses, paths or headers (docs/promises.md 2.4).
type Word string

// Words about a probe.
const (
	wordPending       Word = "pending"       // no try has ended yet
	wordRefused       Word = "refused"       // nothing listens on the port
	wordTimeout       Word = "timeout"       // no answer in time
	wordReset         Word = "reset"         // the connection was closed before an answer came
	wordUnreachable   Word = "unreachable"   // no way to the host, or no such host
	wordTLS           Word = "tls"           // the TLS handshake failed
	wordStatus        Word = "status"        // an HTTP status that does not pass; the code is with it
	wordRedirect      Word = "redirect"      // redirected too often, or to something that cannot be asked
	wordGarbage       Word = "garbage"       // the answer is not in the protocol that was spoken
	wordNotServing    Word = "not-serving"   // the gRPC health service says so; its serving status is with it
	wordUnimplemented Word = "unimplemented" // the gRPC server has no health service
	wordRPC           Word = "rpc-status"    // the gRPC call failed; its status code is with it
	wordThreshold     Word = "threshold"     // passes, but not yet successThreshold times in a row
	wordLocal         Word = "local"         // the sidecar has no file descriptor, no local port or no memory for the connection
)

// Words about the one who asked.
const (
	wordCrowded Word = "crowded" // too many wait for the answer already
	wordStopped Word = "stopped" // the process is ending
)

// Words are all of them, for a metric that counts from zero.
func Words() []Word {
	return []Word{
		wordPending, wordRefused, wordTimeout, wordReset, wordUnreachable, wordTLS, wordStatus, wordRedirect, wordGarbage,
		wordNotServing, wordUnimplemented, wordRPC, wordThreshold, wordLocal, wordCrowded, wordStopped,
	}
}

// An ask is one try. nil and a [warning] pass; every other error does not. It
// returns soon after ctx is done.
type ask func(context.Context) error

func passes(err error) bool {
	_, isWarning := errors.AsType[warning](err)
	return err == nil || isWarning
}

// failure is the error of a try, with its word.
type failure struct {
	word Word
	code int // of Status, NotServing and RPC
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// warning is the error of a try that passes nevertheless, as the kubelet's
// ProbeWarning does.
type warning string

func (w warning) Error() string { return string(w) }

// failed finds the word for an error that has none yet.
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
	case socket.Exhausted(err), noLocalPort(err):
		return wordLocal
	case errors.Is(err, syscall.ECONNREFUSED):
		return wordRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return wordReset
	case isOp && op.Op == "remote error": // crypto/tls: an alert, after the handshake
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
