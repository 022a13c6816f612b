package fair_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Each bound has two tests. The first test attacks the bound, and the second test acts as the most
// demanding legitimate peer. docs/bounds.md lists the bounds and their tests.

// recordingServer starts a server with a limit of most connections. It returns the address of the server
// and the recorder of its bounds.
func recordingServer(t *testing.T, most int) (addr string, bounds *bound.Recorder) {
	t.Helper()
	bounds = bound.NewRecorder()
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })}
	limit := fair.LimitPort(s, fair.PortLimits{Connections: most, HeadBytes: headBytes, Bounds: bounds})
	ln := harness.Listen(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(limit.Listener(ln)) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return ln.Addr().String(), bounds
}

// wantBounds waits until events were recorded for the named bounds, and checks that no event was
// recorded for another bound.
func wantBounds(t *testing.T, bounds *bound.Recorder, names ...bound.Name) {
	t.Helper()
	for _, name := range names {
		harness.Until(t, "event of the bound "+name.String(), func() bool { return bounds.Count(name) > 0 })
	}
	harness.Equal(t, len(bounds.States(time.Now())), len(names), "bounds with events")
}

func TestMaxConnectionsClosesSilentConnection(t *testing.T) {
	t.Parallel()
	addr, bounds := recordingServer(t, 2)
	for range 3 {
		dial(t, addr, "")
	}
	wantBounds(t, bounds, bound.PortConnections)
}

// Two Prometheus replicas and the autoscaler each keep one connection open.
func TestScrapersKeepConnections(t *testing.T) {
	t.Parallel()
	addr, bounds := recordingServer(t, 3)
	var scrapers []net.Conn
	for range 3 {
		scrapers = append(scrapers, dial(t, addr, ""))
	}
	for range 100 {
		for _, c := range scrapers {
			harness.NoError(t, ask(c, "/"))
		}
	}
	wantBounds(t, bounds)
}

func TestIncompleteHeadersAreClosed(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"long fields": "X: " + strings.Repeat("x", headBytes),
		"many fields": strings.Repeat("a:b\r\n", 200),
	} {
		t.Run(name, func(t *testing.T) {
			addr, bounds := recordingServer(t, 10)
			dial(t, addr, "GET / HTTP/1.1\r\nHost: a\r\n"+text)
			wantBounds(t, bounds, bound.PortHeaderSection)
		})
	}
}

// Prometheus sends 7 fields with 500 bytes in total.
func TestScraperHeaderReturns200(t *testing.T) {
	t.Parallel()
	addr, bounds := recordingServer(t, 10)
	c := dial(t, addr, "")
	for range 100 {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("X: "+strings.Repeat("x", 60)+"\r\n", 7)+"\r\n")
		harness.NoError(t, answered(c))
	}
	wantBounds(t, bounds)
}

func TestIncompleteHandshakeIsClosed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		time time.Duration
		size int // size of the certificate in bytes
	}{"long": {harness.Patience, 100 << 10}, "slow": {time.Millisecond, 0}} {
		t.Run(name, func(t *testing.T) {
			bounds := bound.NewRecorder()
			g := guard(t, func(h *fair.Handshakes) { h.Bounds, h.Time = bounds, c.time })
			if c.size > 0 {
				_, _ = g.client(t, certificate(t, c.size))
			} else {
				dial(t, g.addr, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
			}
			wantBounds(t, bounds, bound.PortHandshake)
		})
	}
}

// The scraper uses a client certificate.
func TestScraperHandshakeSucceeds(t *testing.T) {
	t.Parallel()
	bounds := bound.NewRecorder()
	g := guard(t, func(h *fair.Handshakes) { h.Bounds = bounds })
	for range 10 {
		_, err := g.client(t, certificate(t, 2<<10))
		harness.NoError(t, err)
	}
	wantBounds(t, bounds)
}
