package http2client_test

import (
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// newFullClient returns a client with at most n connections. Silent connections are not checked, so that only
// events wake its requests.
func newFullClient(t *testing.T, a *app, n int) *http2client.Client {
	t.Helper()
	return newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() {}, Silence: time.Hour, MaxConns: n})
}

// queueUp adds a request to the queue of the client.
func queueUp(t *testing.T, client *http2client.Client, target string) (*http2client.Call, <-chan error) {
	t.Helper()
	before := client.Queued()
	c, _ := newCall(http.MethodGet)
	c.Request.Target = target
	done := run(client, c)
	harness.Until(t, "the request is queued", func() bool { return client.Queued() == before+1 })
	return c, done
}

// newOneByOne returns an app that accepts one stream and responds when the test permits. seen receives the
// target of each request.
func newOneByOne(t *testing.T) (a *app, seen chan string, permit chan struct{}) {
	seen, permit = make(chan string, 100), make(chan struct{})
	return newPeers(t, script{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 1}},
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			seen <- f.PseudoValue("path")
			<-permit
			p.ok(f.StreamID, "")
		},
	}), seen, permit
}

func TestQueuedRequestsAreSentInOrder(t *testing.T) {
	a, seen, permit := newOneByOne(t)
	client := newFullClient(t, a, 1)
	c, _ := newCall(http.MethodGet)
	ends := []<-chan error{run(client, c)}
	harness.Receive(t, seen, "first request")
	for i := range 20 {
		_, done := queueUp(t, client, "/"+itoa(i))
		ends = append(ends, done)
	}
	for i := range 20 {
		permit <- struct{}{}
		harness.Equal(t, harness.Receive(t, seen, "request"), "/"+itoa(i), "target")
		harness.Until(t, "the request leaves the queue", func() bool { return client.Queued() == 19-i })
	}
	permit <- struct{}{}
	for _, done := range ends {
		harness.NoError(t, harness.Receive(t, done, "response"))
	}
}

func TestCanceledRequestLeavesQueue(t *testing.T) {
	a, seen, permit := newOneByOne(t)
	client := newFullClient(t, a, 1)
	c, _ := newCall(http.MethodGet)
	running := run(client, c)
	harness.Receive(t, seen, "first request")
	var calls []*http2client.Call
	var ends []<-chan error
	for i := range 4 {
		c, done := queueUp(t, client, "/"+itoa(i))
		calls, ends = append(calls, c), append(ends, done)
	}
	for _, i := range []int{0, 2} { // the first and the third request in the queue
		calls[i].Abort()
		mustAbort(t, ends[i])
	}
	harness.Equal(t, client.Queued(), 2, "queued requests")
	for _, i := range []int{1, 3} {
		permit <- struct{}{}
		harness.Equal(t, harness.Receive(t, seen, "request"), "/"+itoa(i), "target")
	}
	permit <- struct{}{}
	harness.NoError(t, harness.Receive(t, running, "response"))
	harness.NoError(t, harness.Receive(t, ends[1], "response"))
	harness.NoError(t, harness.Receive(t, ends[3], "response"))
}

// Each event allows a queued request to continue.
func TestEventsWakeQueuedRequest(t *testing.T) {
	for name, event := range map[string]func(p *peer, id uint32){
		"end of stream":     func(p *peer, id uint32) { p.ok(id, "") },
		"RST_STREAM":        func(p *peer, id uint32) { p.WriteRSTStream(id, http2.ErrCodeInternal) },
		"end of connection": func(p *peer, _ uint32) { p.Close() },
		"GOAWAY":            func(p *peer, id uint32) { p.WriteGoAway(id, http2.ErrCodeNo, nil) },
		"SETTINGS": func(p *peer, _ uint32) {
			p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
		},
	} {
		t.Run(name, func(t *testing.T) {
			began, permit := make(chan struct{}, 10), make(chan struct{})
			a := newPeers(t, script{
				settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 1}},
				headers: func(p *peer, f *http2.MetaHeadersFrame) {
					if p.index > 0 || p.turn > 0 {
						p.ok(f.StreamID, "")
						return
					}
					p.SetDeadline(time.Time{}) // otherwise the end of the connection would also wake the request
					began <- struct{}{}
					<-permit
					event(p, f.StreamID)
				},
			})
			client := newFullClient(t, a, 1)
			first, _ := newCall(http.MethodPost)
			running := run(client, first)
			harness.Receive(t, began, "first request")
			_, done := queueUp(t, client, "/")
			close(permit)
			harness.NoError(t, harness.Receive(t, done, "response to the queued request"))
			first.Abort()
			harness.Receive(t, running, "end of the first request")
		})
	}
}

// A request is queued if the app does not read the earlier requests.
func TestWriteWakesQueuedRequest(t *testing.T) {
	seen, permit := make(chan struct{}, 10_000), make(chan struct{})
	a := newApp(t, func(p *peer) {
		if p.Greet(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10_000}) != nil {
			return
		}
		p.SetDeadline(time.Time{})
		<-permit
		p.follow(script{headers: func(*peer, *http2.MetaHeadersFrame) { seen <- struct{}{} }})
	})
	client := newFullClient(t, a, 1)
	var calls []*http2client.Call
	var ends []<-chan error
	for len(ends) == 0 || client.Queued() == 0 {
		c, o := newCall(http.MethodGet)
		sent := make(chan struct{})
		o.sending = func() { close(sent) }
		c.Request.Target = "/" + strings.Repeat("x", 100<<10)
		calls, ends = append(calls, c), append(ends, run(client, c))
		harness.Until(t, "the request is sent or queued", func() bool {
			select {
			case <-sent:
				return true
			default:
				return len(ends) > 1 && client.Queued() > 0
			}
		})
	}
	close(permit)
	for range ends {
		harness.Receive(t, seen, "request")
	}
	for i, done := range ends {
		calls[i].Abort()
		mustAbort(t, done)
	}
}

// fragile is a connection that fails after a number of reads.
type fragile struct {
	net.Conn
	reads atomic.Int32
}

func (f *fragile) Read(p []byte) (int, error) {
	if f.reads.Add(-1) < 0 {
		f.Close()
	}
	return f.Conn.Read(p)
}

type fragileListener struct{ net.Listener }

func (l fragileListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f := &fragile{Conn: c}
	f.reads.Store(rand.Int32N(300))
	return f, nil
}

// newHostile returns an app that accepts two streams on a connection and ends streams and connections in
// different ways.
func newHostile(t *testing.T) *app {
	ln := harness.Listen(t)
	s := &http.Server{
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			switch rand.IntN(20) {
			case 0:
				panic(http.ErrAbortHandler) // RST_STREAM
			case 1:
				w.Header().Set("Connection", "close") // GOAWAY
			case 2:
				<-r.Context().Done() // wait until the client cancels the request
			}
		}),
	}
	s.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(fragileListener{ln}) }()
	t.Cleanup(func() { s.Close(); <-ended })
	return &app{address: ln.Addr().String()}
}

// No request waits forever, regardless of how earlier requests and connections end.
func TestQueuedRequestsEndWithHostileApp(t *testing.T) {
	client := newFullClient(t, newHostile(t), 3)
	var all sync.WaitGroup
	var answered atomic.Int32
	for range 40 {
		all.Go(func() {
			for range 50 {
				c, _ := newCall(http.MethodGet)
				timer := time.AfterFunc(time.Duration(rand.IntN(50))*time.Millisecond, c.Abort)
				_, _, err := get(client, c)
				timer.Stop()
				switch {
				case err == nil:
					answered.Add(1)
				case transport.FaultOf(err) == 0:
					t.Errorf("got %v, want a fault", err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { defer close(ended); all.Wait() }()
	harness.Receive(t, ended, "end of all requests")
	harness.Equal(t, client.Queued(), 0, "queued requests")
	if answered.Load() == 0 {
		t.Error("got no response, want some")
	}
}

// Some servers close the connection, which other clients share, if a header section exceeds their limit.
func TestHeaderSectionBeyondLimitOfAppIsNotSent(t *testing.T) {
	const limit = 1000
	seen := make(chan int, 10)
	a := newPeers(t, script{
		settings: []http2.Setting{{ID: http2.SettingMaxHeaderListSize, Val: limit}},
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			size := 0
			for _, field := range f.Fields {
				size += int(field.Size())
			}
			seen <- size
			p.ok(f.StreamID, "")
		},
	})
	client := newFullClient(t, a, 1)
	request := func(more int) error {
		c, _ := newCall(http.MethodGet)
		c.Request.Target = "/" + strings.Repeat("x", more)
		_, _, err := get(client, c)
		return err
	}
	harness.NoError(t, request(0))
	room := limit - <-seen
	harness.NoError(t, request(room))
	harness.Equal(t, <-seen, limit, "size of the header section")
	harness.Equal(t, transport.FaultOf(request(room+1)), transport.FaultHeadLimit, "fault")
	harness.NoError(t, request(0))
}
