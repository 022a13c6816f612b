package h2client_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Clients that come and go must not end the connection that others share: a server that
// is still at work on streams which were reset bears only so many more.
func TestStreamsThatAreAbandonedStillCountForAWhile(t *testing.T) {
	const abandoned = 1600 // net/http takes 250 streams at once, and ends a connection on which 1000 more wait
	release := make(chan struct{})
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.(http.Flusher).Flush()
		}
		<-release // it does not look at its context
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
		harness.Receive(t, sent, "sign that the request is sent")
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
		t.Errorf("the response to somebody else was cut: %v", err)
	case <-time.After(100 * time.Millisecond): // an end would have come by now
	}
	c.Abort()
	<-cut
	if n := a.connections(); n < abandoned/250 || n > abandoned/100 {
		t.Errorf("got %d connections for %d streams", n, abandoned)
	}
}
