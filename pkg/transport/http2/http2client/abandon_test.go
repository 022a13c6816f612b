package http2client_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Go's HTTP/2 server runs 250 handlers at a time. It closes the connection if 1000 more requests wait for
// a handler, even if their streams were reset.
func TestCanceledRequestsDoNotCloseSharedConnection(t *testing.T) {
	const abandoned = 1600
	release := make(chan struct{})
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.(http.Flusher).Flush()
		}
		<-release // the handler continues after its context was canceled
	})
	t.Cleanup(func() { close(release) })
	client := newClient(t, a)
	c, _ := newCall(http.MethodGet)
	r, err := c.Do(client)
	harness.NoError(t, err)
	defer r.Close()
	for range abandoned {
		c, o := newCall(http.MethodPost)
		sent := make(chan struct{}, 2)
		o.sending = func() { sent <- struct{}{} }
		done := run(client, c)
		harness.Receive(t, sent, "request to be sent")
		c.Abort()
		mustAbort(t, done)
	}
	cut := make(chan error, 1)
	go func() {
		_, err := r.Next()
		cut <- err
	}()
	select {
	case err := <-cut:
		t.Errorf("the response to another request failed: %v", err)
	case <-time.After(100 * time.Millisecond): // an error would have arrived by now
	}
	c.Abort()
	<-cut
	// Requests avoid a connection after 250 canceled requests, the limit of the server.
	if got, most := a.connections(), abandoned/250+1; got > most {
		t.Errorf("got %d connections for %d streams, want at most %d", got, abandoned, most)
	}
}
