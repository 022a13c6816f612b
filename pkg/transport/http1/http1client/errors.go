package http1client

import (
	"errors"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

var (
	errNotAsked   = errors.New("unexpected status 101")
	errNoUpgrade  = errors.New("status 101 without an Upgrade header")
	errSpeaksH2   = errors.New("unexpected HTTP/2 response")
	errEndedEarly = errors.New("incomplete body")
	errStale      = errors.New("idle connection closed by the application")
	errPartly     = errors.New("incomplete request header") // returned by sendOrRead to rawRead only
)

// refused reports whether err means that no process listens on the address. Dial tries the other address only after such
// an error. On a host without IPv6, the error is not ECONNREFUSED.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || netconn.LoopbackMissing(err)
}

// isLocal reports whether a dial failed because the sidecar lacks a file descriptor, memory for a socket, or a
// local port. For 127.0.0.1, EADDRNOTAVAIL means that no local port is free. If the host does not have this
// address, the error is ENETUNREACH.
func isLocal(err error) bool {
	return transport.Exhausted(err) || errors.Is(err, syscall.EADDRNOTAVAIL)
}
