package nethttp_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// A timer looks at the request at any time, also when it has just become a tunnel.
func TestAnUpgradeWhileATimerLooksIsNoRace(t *testing.T) {
	const clock = 300 * time.Millisecond
	port := serve(t, true, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		// Real time: the upgrade is answered about when the clock of the request before,
		// which begins half a clock earlier, looks.
		time.Sleep(clock * 7 / 10)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: it\r\n\r\n")
	})
	proxy := start(t, port, func(p *queue.Proxy, _ *proxytest.Options) { p.Clocks.ResponseStart = clock })
	for range 5 {
		first := proxy.Dial()
		first.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // whose ring is left to who has its exchange next
		first.Receive("GET")
		time.Sleep(clock / 2) // see the app
		c := proxy.Dial()
		c.Send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: it\r\n\r\n")
		if r, err := http.ReadResponse(c.In, nil); err != nil || r.StatusCode != 101 && r.StatusCode != 504 {
			t.Errorf("got %v, %v, want 101, or 504 on a busy host", r, err)
		}
	}
}
