package http1

import (
	"net/http"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// interim is the state of the informational responses to a request (RFC 9110 section 15.2). The goroutine that serves
// the request forwards the informational responses of the user container. If the user container reads the body without
// sending a 100 (Continue) response, the goroutine that forwards the body sends this response. A client receives at
// most one 100 response, and no informational response after the final response begins.
type interim struct {
	mu        sync.Mutex
	expected  bool // the client waits for a 100 response before it sends the body, and the final response has not begun
	continued bool // a 100 response was sent
}

// begin resets i for a new request.
func (i *interim) begin(expected bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.expected, i.continued = expected, false
}

// endInterim records that the final response begins. After the call, the goroutine that forwards the body does not
// write to the client.
func (x *exchange) endInterim() {
	x.interim.mu.Lock()
	defer x.interim.mu.Unlock()
	x.interim.expected = false
}

// sendContinue sends a 100 response if the client waits for it, no 100 response was sent, and the final response has
// not begun.
func (x *exchange) sendContinue() error {
	i := &x.interim
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.expected || i.continued {
		return nil
	}
	i.continued = true
	if _, err := x.c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n"), nil); err != nil {
		x.c.nc.Cut() // a part of the response may have been written
		return err
	}
	return nil
}

// Info implements rewrite.Client. It forwards an informational response, except to a client that uses HTTP/1.0, which
// does not define informational responses (RFC 9110 section 15.2).
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
	rewrite.EachResponseField(head.Fields, (*rewrite.Lines)(&x.out))
	x.out, x.waiting = append(x.out, "\r\n"...), true
	_ = x.flush(nil) // ignore the error, because the next write returns it
	x.leaveRoom()
}
