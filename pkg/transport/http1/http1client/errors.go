package http1client

import (
	"errors"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

var (
	errUnexpectedSwitch = errors.New("unexpected status 101")
	errNoUpgrade        = errors.New("status 101 without an Upgrade header")
	errHTTP2Response    = errors.New("unexpected HTTP/2 response")
	errEndedEarly       = errors.New("incomplete body")
	errStale            = errors.New("idle connection closed by the application")
	errPartly           = errors.New("incomplete request header") // returned by sendOrRead to rawRead only
)

// refused reports whether a dial failed with err because no process listens on the address or because the host does not
// have the address. Dial tries the other address only after such an error.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || netconn.LoopbackMissing(err)
}

// isLocal reports whether a dial failed because the sidecar lacks a file descriptor, memory for a socket, or a
// local port. For 127.0.0.1, EADDRNOTAVAIL means that no local port is free. If the host does not have this
// address, the error is ENETUNREACH.
func isLocal(err error) bool {
	return transport.Exhausted(err) || errors.Is(err, syscall.EADDRNOTAVAIL)
}
