package upstream

import (
	"errors"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

var (
	errNotAsked   = errors.New("switched protocols without being asked")
	errNoUpgrade  = errors.New("switched protocols without saying to which")
	errSpeaksH2   = errors.New("answered in HTTP/2")
	errEndedEarly = errors.New("the body ended early")
	errStale      = errors.New("the idle connection had ended")
	errPartly     = errors.New("the head is written in part") // internal, never returned to callers
)

// refused reports whether no process listened on the address. Only in this case Dial tries the other
// address immediately. A host without IPv6 returns other errors than ECONNREFUSED.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT) ||
		errors.Is(err, syscall.ENETUNREACH)
}

// isLocal reports whether a dial failed because the sidecar lacks a file descriptor, memory for a
// socket, or a local port. EADDRNOTAVAIL has this meaning for 127.0.0.1, because the error is
// ENETUNREACH if the host does not have this address.
func isLocal(err error) bool {
	return socket.Exhausted(err) || errors.Is(err, syscall.EADDRNOTAVAIL)
}
