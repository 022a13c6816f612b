package webhook

import (
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// If there are too many connections, the server closes the oldest one.
func TestConnectionLimitClosesOldestConnection(t *testing.T) {
	s := (&Server{Log: zap.NewNop()}).server(http.NotFoundHandler(), maxConnections)
	ln := harness.Listen(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	var all []net.Conn
	for range maxConnections + 1 {
		c, err := net.Dial("tcp", ln.Addr().String())
		harness.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		all = append(all, c)
	}
	all[0].SetReadDeadline(time.Now().Add(headerTimeout - time.Second)) // the connection must be closed before its header timeout
	if n, err := all[0].Read(make([]byte, 1)); err == nil || harness.IsTimeout(err) {
		t.Errorf("the oldest of %d connections: got %d bytes, %v, want EOF", len(all), n, err)
	}
	r, err := http.Get("http://" + ln.Addr().String())
	if err != nil || r.StatusCode != http.StatusNotFound {
		t.Fatalf("a new connection: got %v, %v, want 404", r, err)
	}
	r.Body.Close()
}
