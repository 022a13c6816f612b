package conformance

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
)

// protocolVersions contains the HTTP version and the ALPN name for each protocol of httpClient.
var protocolVersions = map[string]struct {
	http   int
	alpn   string
	secure bool
}{
	"h1":     {1, "http/1.1", false},
	"tls":    {1, "http/1.1", true},
	"h2c":    {2, "h2", false},
	"tls-h2": {2, "h2", true},
}

// The memory of a connection is not part of the memory budget. Each connection has a request
// that the user container does not complete.
func TestConnectionsWithRequestsFitSmallPod(t *testing.T) {
	const connections = 4000
	for protocol, version := range protocolVersions {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			app := &countingApp{running: map[int]bool{}}
			p.appSpeaking(app, "h1")
			p.start(inSmallPod("REQUEST_LOG=false")...)
			attack := memoryAttack{http: version.http, make: func(a *attacker) {
				if version.http == 2 {
					a.requests(1, "/wait")
				} else {
					a.lines("/wait", "\r\n")
				}
			}}
			input, addr := attack.input(), p.addr()
			if version.secure {
				addr = p.tlsAddr()
			}
			var all connectionGroup
			defer func() { all.close() }()
			for range connections {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, c.(*net.TCPConn))
				go sendRequest(c, version.secure, version.alpn, input)
			}
			p.awaitLog("connection limit reached; new connections are waiting")
			p.poll("the app received requests", func() error {
				if n := app.came.Load(); n < 300 {
					return fmt.Errorf("got %d requests, want at least 300", n)
				}
				return nil
			})
			peak := p.memory("VmHWM")
			t.Logf("peak memory: %d MB, with %d requests in the app", peak>>20, app.came.Load())
			if peak > smallPod && os.Getenv("QUEUE_PROXY_RACE") == "" {
				t.Errorf("got %d MB of memory, want at most %d", peak>>20, smallPod>>20)
			}
			all.close()
			p.probe(t, p.addr())
		})
	}
}

// sendRequest sends input, over TLS if secure is true, and reads until the connection is closed.
func sendRequest(c net.Conn, secure bool, alpn string, input []byte) {
	if secure {
		c = tls.Client(c, unverified(func(c *tls.Config) { c.NextProtos = []string{alpn} }))
	}
	if _, err := c.Write(input); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// 500 open connections are the highest legitimate load of a small pod.
func TestConnectionsOfSmallPodStayOpen(t *testing.T) {
	const connections = 500
	for protocol := range protocolVersions {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.sample()
			p.start(inSmallPod("REQUEST_LOG=false")...)
			clients := newFleet(t, p, protocol, connections)
			for range 2 {
				if ok := clients.requests(); ok != connections {
					t.Errorf("got %d responses with status 200, want %d\n%s", ok, connections, clients.failures())
				}
			}
			if err := p.hasMetric(`queue_proxy_bounds_total{bound="max-connections"} 0`); err != nil {
				t.Errorf("the sidecar closed connections: %v", err)
			}
			if peak := p.memory("VmHWM"); peak > smallPod && os.Getenv("QUEUE_PROXY_RACE") == "" {
				t.Errorf("got %d MB of memory, want at most %d", peak>>20, smallPod>>20)
			}
		})
	}
}

// A gatedConn returns limit bytes, and returns the rest after gate is closed.
type gatedConn struct {
	net.Conn
	limit int
	gate  <-chan struct{}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	if c.limit <= 0 {
		<-c.gate
	} else {
		p = p[:min(len(p), c.limit)]
	}
	n, err := c.Conn.Read(p)
	c.limit -= n
	return n, err
}

// Clients that read slowly are legitimate. No client reads the rest of the response until all
// clients have received a part of it.
func TestSlowDownloadsFitSmallPod(t *testing.T) {
	const clients, size, early = 180, 1 << 20, 64 << 10
	for protocol := range protocolVersions {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.sample()
			p.start(inSmallPod("REQUEST_LOG=false")...)
			gate := make(chan struct{})
			fleet := newFleet(t, p, protocol, clients)
			var bodies []io.Reader
			for _, client := range fleet.clients {
				client.Transport.(*http.Transport).DialContext = func(_ context.Context, network, addr string) (net.Conn, error) {
					c, err := net.Dial(network, addr)
					return &gatedConn{c, early, gate}, err
				}
				res, err := client.Get(fleet.url + fmt.Sprint("bytes/", size))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				bodies = append(bodies, res.Body)
			}
			close(gate)
			var all sync.WaitGroup
			for _, body := range bodies {
				all.Go(func() {
					if n, err := io.Copy(io.Discard, body); n != size || err != nil {
						t.Errorf("got %d bytes and %v, want %d", n, err, size)
					}
				})
			}
			all.Wait()
			if err := p.hasMetric(`queue_proxy_bounds_total{bound="memory"} 0`); err != nil {
				t.Errorf("the sidecar closed connections: %v", err)
			}
		})
	}
}
