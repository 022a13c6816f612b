package http1

import (
	"net/http"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// interim are the informational responses to a request (RFC 9110 section 15.2). They
// are written by the goroutine that serves it, and by the one that sends its body:
// that tells the client to go on, where the user container does not. A client gets one
// 100 at most, and nothing of this once the final response has begun.
type interim struct {
	mu        sync.Mutex
	expected  bool // the client waits for a 100 before it sends the body
	continued bool // it has got one
	ended     bool // the final response has begun
}

// begin makes i new for a request.
func (i *interim) begin(expected bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expected, i.continued, i.ended = expected, false, false
}

// endInterim says that the final response begins: the goroutine that sends the body must
// write nothing into it.
func (x *exchange) endInterim() {
	x.interim.mu.Lock()
	defer x.interim.mu.Unlock()
	x.interim.ended = true
}

// sayContinue tells the client to send the body, if it waits for that and has not been
// sent.
func (x *exchange) sayContinue() error {
	i := &x.interim
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.expected || i.continued || i.ended {
		return nil
	}
	i.continued = true
	if _, err := x.c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n"), nil); err != nil {
		x.c.nc.Cut() // a part of it may have been written
		return err
	}
	return nil
}

// Info implements forward.Client: it passes an informational response on. A client of
// HTTP/1.0 knows none (RFC 9110 section 15.2).
func (x *exchange) Info(head *wire.Response) {
	if x.request.Minor == 0 {
		return
	}
	i := &x.interim
	i.mu.Lock()
	defer i.mu.Unlock()
	if head.Status == http.StatusContinue {
		if i.continued {
			return
		}
		i.continued = true
	}
	x.room()
	x.out = appendStatus(x.out[:0], 1, head.Status, wire.String(head.Reason))
	forward.EachResponseField(head.Fields, (*forward.Lines)(&x.out))
	x.out, x.waiting = append(x.out, "\r\n"...), true
	_ = x.flush(nil) // whoever writes next gets the error
	x.leaveRoom()
}
