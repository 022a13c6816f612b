package http2client

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// A Check validates the header blocks and the content of a response as they arrive (RFC 9113 section 8.1). Its methods
// return errors of type *[transport.Error] with the fault FaultGarbage. If a method returns an error, the caller must
// not forward the header block or the content, because an HTTP/1.1 client could interpret excess content as the next
// response. The caller sets Method. All other fields must be zero before the response arrives. A Check must not be used
// concurrently.
type Check struct {
	Method string // method of the request

	Infos  int // number of informational responses
	Status int // status of the final response; 0 if it has not arrived

	transport.Counter // counts the content of the final response

	firstInfo time.Time // time of the first informational response
	err       error     // error of the first rejected header block; nil if none was rejected
}

var (
	errHead      = errors.New("malformed response header")
	errBadLength = errors.New("invalid content-length")
)

// Head checks the next header block of a response. Informational responses precede the final response, and a trailer
// section may follow it. end reports whether the header block has END_STREAM. by is the connection of the stream. If the
// header block exceeds a bound, Head records the bound on this connection. After an error, Head returns the same error
// for each later header block.
func (k *Check) Head(by *http2conn.Conn, h *http2conn.Head, end bool) error {
	if k.err != nil {
		return k.err
	}
	if k.err = k.head(h, end); k.err != nil {
		if name, ok := rewrite.AppBound(k.err); ok {
			by.Hit(name)
		}
	}
	return k.err
}

func (k *Check) head(h *http2conn.Head, end bool) error {
	switch {
	case h.TooLarge && k.Status != 0:
		return garbage(wire.Garbage(wire.WordTrailerTooLong))
	case h.TooLarge:
		return garbage(rewrite.ErrHeadTooLarge)
	case h.Malformed:
		return garbage(errHead)
	case k.Status != 0: // a trailer section, whose h.Status is 0
	case h.Status < 200:
		return k.info()
	default:
		length, ok := contentLength(h.Fields)
		if !ok {
			return garbage(errBadLength)
		}
		k.Status, k.Length = h.Status, length
	}
	return k.Data(0, end)
}

// info counts an informational response and returns an error if there are too many.
func (k *Check) info() error {
	if k.Infos++; k.Infos == 1 {
		k.firstInfo = time.Now()
	}
	if rewrite.TooManyInfos(k.Infos, time.Since(k.firstInfo)) {
		return garbage(rewrite.ErrTooManyInfos)
	}
	return nil
}

// Data checks the length of content. n is the number of bytes, and end reports whether the content is complete. Data
// ignores content if the response is Bodiless.
func (k *Check) Data(n int, end bool) error {
	switch {
	case k.Status == 0:
		return garbage(errHead)
	case k.Bodiless():
		return nil
	}
	if err := k.Add(n, end); err != nil {
		return garbage(err)
	}
	return nil
}

// Bodiless reports whether the method or the status requires that the final response has no content (RFC 9110 section
// 6.4.1).
func (k *Check) Bodiless() bool {
	return k.Method == http.MethodHead || k.Status == http.StatusNoContent || k.Status == http.StatusNotModified
}

// Answered reports whether any header block of a response has arrived.
func (k *Check) Answered() bool { return k.Infos > 0 || k.Status != 0 }

func garbage(err error) error { return &transport.Error{Fault: transport.FaultGarbage, Err: err} }

// contentLength returns the value of Content-Length in bytes, or -1 if the field is missing. ok is false if a value is
// not a number or if several values differ (RFC 9110 section 8.6).
func contentLength(fields []wire.Field) (length int64, ok bool) {
	length = -1
	for _, f := range fields {
		if transport.RoleOf(f.Name) != transport.LengthRole {
			continue
		}
		n, err := strconv.ParseUint(wire.String(f.Value), 10, 63)
		if err != nil || length >= 0 && length != int64(n) {
			return -1, false
		}
		length = int64(n)
	}
	return length, true
}
