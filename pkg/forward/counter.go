package forward

import "errors"

// ErrTooLarge is returned when a request body that is longer than MAX_BODY_BYTES is read. ErrLength is
// returned for a body that does not have the length of its Content-Length (RFC 9112 section 6.3, RFC 9113
// section 8.1.1).
var (
	ErrTooLarge = errors.New("request body too large")
	ErrLength   = errors.New("the body is not as long as the head says")
)

// A Counter counts the bytes of a body and compares them with the limits. It is used by one goroutine at
// a time.
type Counter struct {
	N      int64 // number of bytes that were added
	Length int64 // value of Content-Length; -1 if there is none
	Max    int64 // maximum of N; 0 means no limit
}

// Add adds n bytes. end reports whether they are the last ones. If the body has the wrong length, the error
// is ErrLength. If it is too long, the error is ErrTooLarge.
func (c *Counter) Add(n int, end bool) error {
	c.N += int64(n)
	switch {
	case c.Length >= 0 && (c.N > c.Length || end && c.N < c.Length):
		return ErrLength
	case c.Max > 0 && c.N > c.Max:
		return ErrTooLarge
	}
	return nil
}
