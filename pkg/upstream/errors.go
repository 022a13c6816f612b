package upstream

import (
	"errors"
	"syscall"
)

var (
	errNotAsked   = errors.New("switched protocols without being asked")
	errNoUpgrade  = errors.New("switched protocols without saying to which")
	errSpeaksH2   = errors.New("answered in HTTP/2")
	errEndedEarly = errors.New("the body ended early")
	errStale      = errors.New("the idle connection had ended")
	errPartly     = errors.New("the head is written in part") // never shown
)

// refused reports whether nothing listened: the one failure to dial after which
// the next attempt is worth making at once. A host without IPv6 says so in its
// own ways.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EAFNOSUPPORT) ||
		errors.Is(err, syscall.ENETUNREACH)
}
