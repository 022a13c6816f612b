package http1client

import (
	"io"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// Response is the final response to a [Call]. It must not be used after Close or Tunnel returns, because its memory
// belongs to the connection to the user container.
type Response struct {
	// Head refers to the buffer of the connection. The caller must copy the values that it needs before the first call
	// to Next.
	Head wire.Response

	call    *Call
	app     *App
	conn    *clientConn
	framing wire.Framing
	left    int64 // remaining bytes of a body with Content-Length
	chunks  wire.Chunks
	ended   bool
}

// Length returns the remaining length of the body in bytes, or -1 if it is unknown.
func (r *Response) Length() int64 {
	switch r.framing {
	case wire.None:
		return 0
	case wire.Length:
		return r.left
	}
	return -1
}

// Next returns the next bytes of the body, which are valid until the next call. At the end of the body, it returns
// io.EOF. Any other error has a [transport.Fault]. Next calls Call.Client.Waiting before it blocks.
func (r *Response) Next() ([]byte, error) {
	for {
		data, n, err := r.decode(r.conn.buffered())
		r.conn.r += n
		if err != nil && err != io.EOF {
			r.app.recordBound(r.conn, err)
			return nil, r.call.failureCause(&transport.Error{Fault: transport.FaultGarbage, Err: err})
		}
		if len(data) > 0 {
			return data, nil
		}
		if err == io.EOF {
			r.ended = true
			return nil, io.EOF
		}
		if n > 0 {
			continue
		}
		r.call.Client.Waiting()
		r.shrink()
		if err := r.conn.fill(bufferSize); err != nil {
			if r.framing == wire.UntilClose && err == io.EOF {
				r.ended = true
				return nil, io.EOF
			}
			if err == io.EOF {
				err = errEndedEarly
			}
			if transport.FaultOf(err) == 0 {
				err = &transport.Error{Fault: transport.FaultReset, Err: err}
			}
			return nil, r.call.failureCause(err)
		}
	}
}

// shrink releases an empty buffer that is too long, because receiving the body may take a long time. The buffer is too
// long after a long header section, or when memory has become scarce. The caller must have copied the fields of the
// header section.
func (r *Response) shrink() {
	c := r.conn
	if len(c.buf) > c.memory.Account.BufferSize(bufferSize) && c.r == c.w {
		r.Head.Release()
		c.park()
	}
}

// decode decodes the first n bytes of b and returns the content in these bytes. At the end of the body, it returns
// io.EOF.
func (r *Response) decode(b []byte) (data []byte, n int, err error) {
	switch r.framing {
	case wire.None:
		return nil, 0, io.EOF
	case wire.Length:
		if r.left == 0 {
			return nil, 0, io.EOF
		}
		n = int(min(int64(len(b)), r.left))
		r.left -= int64(n)
		return b[:n], n, nil
	case wire.Chunked:
		if r.chunks.Done() {
			return nil, 0, io.EOF
		}
		data, n, err = r.chunks.Next(b)
		if err == nil && len(data) == 0 && r.chunks.Done() {
			err = io.EOF
		}
		return data, n, err
	default:
		return b, len(b), nil
	}
}

// Trailer returns the trailer fields. It must be called after Next returns io.EOF. The fields are valid until Close.
func (r *Response) Trailer() []wire.Field {
	if r.framing != wire.Chunked {
		return nil
	}
	return r.chunks.Trailer()
}

// Close ends the exchange. If the request and the response are complete, Close returns the connection to the pool.
// Otherwise it closes the connection. The response must not be used after Close.
func (r *Response) Close() {
	c := r.call
	lag := time.Duration(0)
	if r.ended {
		lag = lagTimeout
		if c.Client.BodyArrived() {
			lag = arrivedTimeout
		}
	}
	sent := c.endUpload(lag)
	aborted := c.detach()
	conn := r.conn
	if c.Request.Method == "HEAD" && r.ended && conn.w != conn.r {
		r.app.settings.Bounds.Hit(bound.AppHeadBody, conn.RemoteAddr().String())
	}
	keepAlive := time.Duration(r.Head.KeepAliveTimeout) * time.Second
	keep := r.ended && sent && !aborted && !r.Head.Close && r.framing != wire.UntilClose && conn.w == conn.r
	suspect := c.Request.Method == "HEAD" && r.Head.ContentLength > 0
	r.call = nil
	r.Head.Reset() // must precede put, after which another request can use the connection and its response
	switch {
	case !keep:
		conn.close()
	case suspect:
		r.app.putWhenSilent(conn, keepAlive)
	default:
		r.app.put(conn, keepAlive)
	}
}
