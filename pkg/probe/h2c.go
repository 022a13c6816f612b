package probe

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// detect returns an attempt that sends a probe over h2c with prior knowledge, and then over HTTP/1.1 if the first probe
// does not pass. After a probe has passed, later attempts use only its protocol until an attempt fails
// (docs/promises.md 2.3). Both probes send the same request with the header fields that the user configured.
//
// The probe over h2c has half of the timeout, because an HTTP/1.1 application might not respond to the HTTP/2 preface.
// It has the whole timeout if the application has responded with an HTTP/2 frame.
//
// The detection in package http1client cannot be used, because a probe must send the request that the user configured,
// and because the detected protocol is valid only until a probe fails.
func detect(d *dialer, overH2C func(dialFunc) attemptFunc, overHTTP1 attemptFunc) attemptFunc {
	var speaks atomic.Bool // the app has responded to the preface in this attempt
	h2c := overH2C(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &prefaceConn{Conn: conn, answered: &speaks}, nil
	})
	first := func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		speaks.Store(false)
		if deadline, ok := ctx.Deadline(); ok {
			half := time.AfterFunc(time.Until(deadline)/2, func() {
				if !speaks.Load() {
					cancel()
				}
			})
			defer half.Stop()
		}
		return h2c(ctx)
	}

	var learnt atomic.Pointer[attemptFunc] // protocol of the last attempt that passed
	return func(ctx context.Context) error {
		if way := learnt.Load(); way != nil {
			err := (*way)(ctx)
			if !passes(err) {
				learnt.Store(nil)
			}
			return err
		}
		err2 := first(ctx)
		if passes(err2) {
			learnt.Store(&h2c)
			return err2
		}
		if wordOf(err2) == observation.WordRefused {
			return err2 // the app would also refuse a connection for HTTP/1.1
		}
		err1 := overHTTP1(ctx)
		if passes(err1) {
			learnt.Store(&overHTTP1)
			return err1
		}
		if isStatus(err2) && !isStatus(err1) {
			return err2
		}
		return err1
	}
}

// A prefaceConn detects an HTTP/2 server. The first frame of such a server is SETTINGS (RFC 9113 section 3.4).
// Read must not be called concurrently.
type prefaceConn struct {
	net.Conn
	answered *atomic.Bool
	read     int // number of bytes read; not updated after the type of the first frame was read
}

const (
	frameTypeAt  = 3 // offset of the type in a frame (RFC 9113 section 4.1)
	settingsType = 4
)

func (c *prefaceConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if at := frameTypeAt - c.read; at >= 0 {
		if n > at && b[at] == settingsType {
			c.answered.Store(true)
		}
		c.read += n
	}
	return n, err
}
