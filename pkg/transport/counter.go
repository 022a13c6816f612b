package transport

import "errors"

// ErrLength is returned if the length of a body differs from its Content-Length (RFC 9112 section
// 6.3, RFC 9113 section 8.1.1).
var ErrLength = errors.New("body length does not match Content-Length")

// A Counter counts the bytes of a body and validates their number. It must not be used concurrently.
type Counter struct {
	N      int64 // number of counted bytes
	Length int64 // value of Content-Length; -1 if there is none
	Max    int64 // maximum of N; 0 means no limit
}

// Add counts n bytes. end reports whether they are the last bytes of the body. Add returns ErrLength if the length of
// the body differs from Length, and FaultTooLarge if the body is longer than Max.
func (c *Counter) Add(n int, end bool) error {
	c.N += int64(n)
	switch {
	case c.Length >= 0 && (c.N > c.Length || end && c.N < c.Length):
		return ErrLength
	case c.Max > 0 && c.N > c.Max:
		return FaultTooLarge
	}
	return nil
}
