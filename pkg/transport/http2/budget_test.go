package http2_test

import (
	"bytes"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// budget is the memory budget of the tests, in bytes.
const budget = 4 << 20

// withBudget returns an option that sets a memory budget and then calls change. It also returns the budget.
func withBudget(change func(*proxy.Proxy)) (func(*proxy.Proxy, *proxytest.Options), *netconn.Budget) {
	b := netconn.NewBudget(budget, bound.NewRecorder())
	return func(p *proxy.Proxy, o *proxytest.Options) {
		o.Memory, o.MaxHeaderBytes = b, 256<<10
		change(p)
	}, b
}

// hanging is an app that responds only to the protocol detection.
func hanging(w http.ResponseWriter, r *http.Request) {
	if r.Method == "PRI" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	<-r.Context().Done()
}

func TestRequestOfClosedConnectionReportsOverload(t *testing.T) {
	for name, limited := range map[string]bool{"in the user container": false, "in the queue": true} {
		for protocol, appH2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				change, b := withBudget(func(p *proxy.Proxy) {
					if limited {
						p.Limit = proxy.NewLimit(1, 10)
					}
				})
				p := start(t, serveApp(t, http.HandlerFunc(hanging), appH2), change)
				connect(t, p).send(request("GET", "/"))
				p.InFlight(1)
				connect(t, p).send(request("GET", "/", repeated("a", strings.Repeat("~", 200<<10), 1)...))
				p.InFlight(2)
				proxytest.HoldMemory(b, budget*15/16)
				harness.Equal(t, p.Observed(1)[0].Reason, observation.Overload, "reason")
			})
		}
	}
}

func TestUploadWaitsForMemory(t *testing.T) {
	change, b := withBudget(func(*proxy.Proxy) {})
	p := start(t, serveApp(t, http.HandlerFunc(reader), false), change)
	connect(t, p).send(request("GET", "/"))
	p.Observed(1)                                                             // the proxy has detected the protocol of the app
	release := proxytest.HoldMemory(b, budget-20<<10-netconn.ConnectionBytes) // the connection of the client is charged
	c := connect(t, p)
	harness.NoError(t, c.WriteHead(1, false, flat(request("POST", "/").fields)...))
	harness.NoError(t, c.WriteData(1, false, []byte("a")))
	p.InFlight(1)
	time.AfterFunc(100*time.Millisecond, release)
	harness.NoError(t, c.WriteData(1, true, []byte("b")))
	harness.Equal(t, p.Observed(2)[1].Reason, observation.OK, "reason")
}

// A connection above the limit is closed and releases its memory late.
func TestConnectionReadsLittleAboveTheLimit(t *testing.T) {
	change, b := withBudget(func(*proxy.Proxy) {})
	p := start(t, serveApp(t, http.HandlerFunc(hanging), true), change)
	connect(t, p).send(request("GET", "/"))
	p.InFlight(1)
	closing := b.Open("other", func() {})
	const closingBytes = budget * 17 / 16
	closing.Add(closingBytes)
	before, _ := b.Usage()
	var all []*client
	for range 20 {
		c := connect(t, p)
		harness.NoError(t, c.WriteHead(1, false, flat(request("POST", "/").fields)...))
		for range 4 {
			harness.NoError(t, c.WriteData(1, false, make([]byte, 15<<10)))
		}
		all = append(all, c)
	}
	p.InFlight(1 + len(all))
	if used, _ := b.Usage(); used-before > int64(len(all))*(20<<10) {
		t.Errorf("got %d bytes for each connection, want at most %d", (used-before)/int64(len(all)), 20<<10)
	}
	closing.Sub(closingBytes)
	closing.Close()
	for _, c := range all {
		harness.NoError(t, c.WriteRSTStream(1, xhttp2.ErrCodeCancel))
	}
	p.Observed(len(all))
}

// Clients send the preface and the first request in the same packet.
func TestIdleConnectionHoldsNoInput(t *testing.T) {
	const connections, most = 200, 20 << 10
	p := start(t, serveApp(t, http.HandlerFunc(reader), true), nil)
	var input, block bytes.Buffer
	input.WriteString(xhttp2.ClientPreface)
	f := xhttp2.NewFramer(&input, nil)
	harness.NoError(t, f.WriteSettings())
	encoder := hpack.NewEncoder(&block)
	for _, field := range request("POST", "/").fields {
		harness.NoError(t, encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	harness.NoError(t, f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	harness.NoError(t, f.WriteData(1, false, make([]byte, 15<<10)))
	harness.NoError(t, f.WriteData(1, true, make([]byte, 15<<10)))
	before := heap()
	for range connections {
		c := p.Connect(t)
		t.Cleanup(func() { c.Close() })
		_, err := c.Write(input.Bytes())
		harness.NoError(t, err)
	}
	p.Observed(connections)
	if got := (heap() - before) / connections; got > most {
		t.Errorf("got %d bytes for each connection, want at most %d", got, most)
	}
}

// heap returns the size of live objects in bytes.
func heap() int {
	var m runtime.MemStats
	runtime.GC() // pooled objects survive the first collection
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// longHead responds with a header section of 200 KB.
func longHead(w http.ResponseWriter, r *http.Request) {
	if r.Method == "PRI" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for range 200 {
		w.Header().Add("a", strings.Repeat("~", 1000))
	}
}

func TestLongResponseHeadWithoutMemoryReturns503(t *testing.T) {
	for protocol, appH2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
			t.Run(version+" to "+protocol, func(t *testing.T) {
				change, b := withBudget(func(*proxy.Proxy) {})
				p := start(t, serveApp(t, http.HandlerFunc(longHead), appH2), change)
				get := func(want int) {
					t.Helper()
					r, err := p.Client(version).Get("http://" + p.Address + "/")
					harness.NoError(t, err)
					r.Body.Close()
					harness.Equal(t, r.StatusCode, want, "status")
				}
				get(200)
				p.Observed(1) // otherwise the order of the two observations is undefined
				harness.Until(t, "the memory of the first request is released", func() bool {
					used, _ := b.Usage()
					return used == 0
				})
				proxytest.HoldMemory(b, budget*15/16)
				get(503)
				harness.Equal(t, p.Observed(2)[1].Reason, observation.Overload, "reason")
				harness.Until(t, "the memory is released", func() bool {
					used, _ := b.Usage()
					return used <= budget*15/16+netconn.ConnectionBytes
				})
			})
		}
	}
}

// The app rejects the WebSocket with a long header section.
func TestLongResponseHeadToWebSocketWithoutMemoryReturns503(t *testing.T) {
	change, b := withBudget(func(*proxy.Proxy) {})
	p := start(t, serveApp(t, http.HandlerFunc(longHead), false), change)
	c := connect(t, p)
	status := func() string {
		id := c.id
		c.id += 2
		harness.NoError(t, c.WriteHead(id, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "a", ":path", "/"))
		return c.receive(id)[:3]
	}
	harness.Equal(t, status(), "200", "status")
	p.Observed(1) // otherwise the order of the two observations is undefined
	proxytest.HoldMemory(b, budget*15/16)
	harness.Equal(t, status(), "503", "status")
	harness.Equal(t, p.Observed(2)[1].Reason, observation.Overload, "reason")
}
