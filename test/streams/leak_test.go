package streams_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

const (
	// readSize is the number of bytes that the proxy reads with one call from a connection that
	// was quiet. It replies to the frames in these bytes before it reads more data.
	readSize  = 4 << 10
	leakSlots = 10
)

// leakApp starts a proxy with a limit in front of an application that reads all requests.
func leakApp(t *testing.T, http1 bool) *proxytest.Proxy {
	t.Helper()
	ln := harness.Listen(t)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(http1)
	protocols.SetUnencryptedHTTP2(!http1)
	s := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close(); <-ended })
	return proxytest.StartOn(t, ln.Addr().(*net.TCPAddr).Port, func(p *proxy.Proxy, o *proxytest.Options) {
		p.Limit = proxy.NewLimit(leakSlots, leakSlots)
		o.UnknownApp = true
	})
}

// sendAndReset opens a connection, sends the frames that the function write adds in a single
// write, and resets the connection. The proxy receives the reset before it has read all frames.
func sendAndReset(t *testing.T, p *proxytest.Proxy, write func(f *harness.Frames, sent *bytes.Buffer)) {
	t.Helper()
	c := p.Connect(t).(*net.TCPConn)
	defer c.Close()
	f := harness.NewFrames(c)
	_, err := io.WriteString(c, http2.ClientPreface)
	harness.NoError(t, err)
	harness.NoError(t, f.WriteSettings())
	_, err = f.ReadFrame() // after this frame, the proxy reads readSize bytes with one call
	harness.NoError(t, err)
	var sent bytes.Buffer
	f.Framer = http2.NewFramer(&sent, nil)
	write(f, &sent)
	_, err = c.Write(sent.Bytes())
	harness.NoError(t, err)
	harness.NoError(t, c.SetLinger(0))
}

// wantReleased checks that no request is in progress. It ends remaining requests, because the
// proxy waits for them before it stops.
func wantReleased(t *testing.T, p *proxytest.Proxy, goroutines int) bool {
	t.Helper()
	p.WantReleased(goroutines)
	if t.Failed() {
		p.Queue.Drain.Abort()
	}
	return !t.Failed()
}

// post opens a stream of a gRPC request without END_STREAM.
func post(f *harness.Frames, stream uint32, path string) {
	_ = f.WriteHead(stream, false, ":method", "POST", ":scheme", "http", ":authority", "app.test", ":path", path,
		"content-type", "application/grpc", "te", "trailers")
}

func TestRequestsAfterWriteFailureReleaseSlots(t *testing.T) {
	for name, http1 := range applications {
		t.Run(name, func(t *testing.T) {
			p := leakApp(t, http1)
			before := proxytest.Goroutines()
			for range 20 { // three requests are sufficient if all resets arrive in time
				sendAndReset(t, p, func(f *harness.Frames, _ *bytes.Buffer) {
					for range 400 {
						_ = f.WritePing(false, [8]byte{})
					}
					for i := range uint32(30) {
						post(f, 2*i+1, "/")
					}
				})
			}
			wantReleased(t, p, before)
		})
	}
}

// A leakEvent is an event of a request, or a failed write on its connection.
type leakEvent string

const (
	leakAccept  leakEvent = "accept"
	leakData    leakEvent = "data"
	leakReset   leakEvent = "reset"
	leakEnd     leakEvent = "end"
	leakFailure leakEvent = "failure"
)

// leakOrders returns all orders in which the events of a request and a write failure can occur.
func leakOrders() (all [][]leakEvent) {
	for _, request := range [][]leakEvent{
		{leakAccept}, {leakAccept, leakReset}, {leakAccept, leakEnd},
		{leakAccept, leakData}, {leakAccept, leakData, leakReset}, {leakAccept, leakData, leakEnd},
	} {
		for i := range len(request) + 1 {
			all = append(all, slices.Insert(slices.Clone(request), i, leakFailure))
		}
	}
	return all
}

// Each accepted request releases its slot and is observed once, in every order of accept,
// write failure, reset and end. Three requests of a connection have the same order.
func TestRequestEndsInEachOrderWithWriteFailure(t *testing.T) {
	for name, http1 := range applications {
		t.Run(name, func(t *testing.T) {
			p := leakApp(t, http1)
			before := proxytest.Goroutines()
			for i, order := range leakOrders() {
				for n := range 20 {
					sendAndReset(t, p, func(f *harness.Frames, sent *bytes.Buffer) {
						writeOrder(f, sent, order, fmt.Sprintf("/%d/%d/", i, n))
					})
				}
				if !wantReleased(t, p, before) {
					t.Fatalf("order of the events: %v", order)
				}
			}
			seen := map[string]int{}
			for _, o := range p.Observed(0) {
				if seen[o.Target]++; seen[o.Target] > 1 {
					t.Errorf("%s: got %d observations, want 1", o.Target, seen[o.Target])
				}
			}
		})
	}
}

// writeOrder writes the frames of three requests, whose paths begin with path. PINGs precede the frames after the
// failure, so that the proxy does not read these frames before it writes the acknowledgements of the PINGs.
func writeOrder(f *harness.Frames, sent *bytes.Buffer, order []leakEvent, path string) {
	for _, e := range order {
		if e == leakFailure {
			for first := sent.Len(); sent.Len() < first+readSize; {
				_ = f.WritePing(false, [8]byte{})
			}
			continue
		}
		for i := range uint32(3) {
			stream := 2*i + 1
			switch e {
			case leakAccept:
				post(f, stream, fmt.Sprint(path, i))
			case leakData, leakEnd:
				_ = f.WriteData(stream, e == leakEnd, []byte("a"))
			case leakReset:
				_ = f.WriteRSTStream(stream, http2.ErrCodeCancel)
			}
		}
	}
}
