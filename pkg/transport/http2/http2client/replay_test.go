package http2client_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func noContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// newHead returns the header section of a GET request.
func newHead() *http2conn.Block {
	k := new(http2conn.Block)
	k.Request("GET", "app", "/")
	return k
}

func TestReplayAfterStreamReset(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		before int // number of requests that the connection has already served
		code   http2.ErrCode
		info   bool // an informational response precedes the reset
		body   io.Reader
		sends  int32
	}{
		"GET":                         {method: "GET", before: 1, code: http2.ErrCodeInternal, sends: 1},
		"refused":                     {method: "GET", before: 1, code: http2.ErrCodeRefusedStream, sends: 2},
		"refused on a new connection": {method: "GET", before: 0, code: http2.ErrCodeRefusedStream, sends: 2},
		"refused POST":                {method: "POST", before: 1, code: http2.ErrCodeRefusedStream, sends: 2},
		"refused POST, body sent":     {method: "POST", before: 1, code: http2.ErrCodeRefusedStream, body: strings.NewReader("hi"), sends: 1},
		"refused after 103":           {method: "GET", before: 1, code: http2.ErrCodeRefusedStream, info: true, sends: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int32
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
				if p.index == 0 && p.turn < c.before {
					p.ok(f.StreamID, "")
					return
				}
				seen.Add(1)
				if c.info {
					p.WriteHead(f.StreamID, false, ":status", "103")
				}
				p.WriteRSTStream(f.StreamID, c.code)
			}})
			client := newClient(t, a)
			for range c.before {
				mustGet(t, client)
			}
			call, o := newCall(c.method)
			if call.Body = c.body; c.body == nil && c.method == "POST" {
				call.Content = []byte("held")
			}
			_, _, err := get(client, call)
			if transport.FaultOf(err) != transport.FaultReset || seen.Load() != c.sends || int32(o.sends) != c.sends {
				t.Errorf("got error %v, sent %d times, received %d times, want a reset, %d times", err, o.sends, seen.Load(), c.sends)
			}
		})
	}
}

func TestRefusedRequestIsRetriedWithBody(t *testing.T) {
	var body strings.Builder
	a := newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			if p.turn == 0 {
				p.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream)
			}
		},
		data: func(p *peer, f *http2.DataFrame) {
			if f.StreamID > 1 {
				body.Write(f.Data())
				if f.StreamEnded() {
					p.ok(f.StreamID, body.String())
				}
			}
		},
	})
	c, _ := newCall("POST")
	c.Content, c.Request.Length = []byte("held"), 4
	if status, body, err := get(newClient(t, a), c); status != 200 || body != "held" || err != nil {
		t.Errorf("got %d, %q, %v, want 200, held", status, body, err)
	}
}

func TestReplayAfterConnectionError(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		before int // number of requests that the connection has already served
		info   bool
		body   io.Reader
		sends  int32
	}{
		"GET":                          {method: "GET", before: 1, sends: 2},
		"PUT":                          {method: "PUT", before: 1, sends: 2},
		"GET on a fresh connection":    {method: "GET", before: 0, sends: 1},
		"POST":                         {method: "POST", before: 1, sends: 1},
		"PATCH":                        {method: "PATCH", before: 1, sends: 1},
		"PUT with sent body":           {method: "PUT", before: 1, sends: 1, body: strings.NewReader("hi")},
		"GET after part of a response": {method: "GET", before: 1, sends: 1, info: true},
	} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int32
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
				if p.index > 0 || p.turn >= c.before {
					seen.Add(1)
				}
				if p.index > 0 || p.turn < c.before {
					p.ok(f.StreamID, "")
					return
				}
				if c.info {
					p.WriteHead(f.StreamID, false, ":status", "103")
				}
				p.Close()
			}})
			client := newClient(t, a)
			for range c.before {
				mustGet(t, client)
			}
			call, o := newCall(c.method)
			call.Body = c.body
			_, _, err := get(client, call)
			if answered := err == nil; answered != (c.sends == 2) || seen.Load() != c.sends || int32(o.sends) != c.sends {
				t.Errorf("got a response %v (error %v), received %d times, want %v, %d times", answered, err, seen.Load(), c.sends == 2, c.sends)
			}
			if err != nil && transport.FaultOf(err) != transport.FaultReset {
				t.Errorf("got %v, want a reset", err)
			}
		})
	}
}

// GOAWAY contains the ID of the last stream that the app has processed.
func TestGoAwayRetriesUnprocessedRequests(t *testing.T) {
	for name, body := range map[string]io.Reader{"held": nil, "gone": strings.NewReader("gone")} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{}, 2)
			var below, above atomic.Int32
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
				switch path := harness.FieldOf(f, ":path"); {
				case path == "/below":
					below.Add(1)
					began <- struct{}{}
				case p.index == 0:
					above.Add(1)
					p.WriteGoAway(f.StreamID-2, http2.ErrCodeNo, nil)
					p.ok(f.StreamID-2, "below")
				default:
					above.Add(1)
					p.ok(f.StreamID, "above")
				}
			}})
			client := newClient(t, a)
			first, _ := newCall("POST")
			first.Request.Target = "/below"
			done := run(client, first)
			harness.Receive(t, began, "request")
			second, _ := newCall("POST")
			second.Request.Target, second.Body = "/above", body
			_, got, err := get(client, second)
			if body == nil && (got != "above" || err != nil || above.Load() != 2) {
				t.Errorf("got %q, error %v, received %d times, want above, received twice", got, err, above.Load())
			}
			if body != nil && (transport.FaultOf(err) != transport.FaultReset || above.Load() != 1) {
				t.Errorf("got error %v, received %d times, want a reset, received once", err, above.Load())
			}
			if err := harness.Receive(t, done, "response"); err != nil || below.Load() != 1 {
				t.Errorf("got error %v, received %d times, want a response, received once", err, below.Load())
			}
		})
	}
}

func TestGoAwayOpensAnotherConnection(t *testing.T) {
	release := make(chan struct{})
	a := newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			if p.index > 0 {
				p.ok(f.StreamID, "another")
				return
			}
			p.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
			p.WriteHead(f.StreamID, false, ":status", "200")
			<-release
			p.WriteGoAway(f.StreamID, http2.ErrCodeNo, nil)
			p.WriteData(f.StreamID, true, []byte("the first"))
		},
	})
	client := newClient(t, a)
	c, _ := newCall("GET")
	r, err := c.Do(client)
	harness.NoError(t, err)
	defer r.Close()
	harness.Equal(t, mustGet(t, client), "another")
	close(release)
	if body, err := content(r); body != "the first" || err != nil {
		t.Errorf("got %q, error %v, want the first", body, err)
	}
}

// After a connection fails, the other connections may also be broken.
func TestReplayUsesNewConnection(t *testing.T) {
	began := make(chan *peer, 10)
	a := newPeers(t, script{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 2}},
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			switch {
			case harness.FieldOf(f, ":path") == "/": // does not respond
				began <- p
			case p.index < 2:
				p.Close()
			default:
				p.ok(f.StreamID, "fresh")
			}
		},
	})
	client := newClient(t, a)
	var streams []*http2conn.Stream
	for range 3 {
		s, _, err := client.Open(noContext, http2conn.Request{Owner: newReceiver(), Head: newHead(), End: true}, 0)
		harness.NoError(t, err)
		s.Conn().Flush(false)
		harness.Receive(t, began, "request")
		streams = append(streams, s)
	}
	streams[0].Reset(http2conn.Cancel) // the first connection can accept another stream
	streams[0].Conn().Flush(false)
	harness.Equal(t, mustGet(t, client), "fresh")
}

// The test makes several attempts, because the request is not always retried. The reader sometimes writes the request
// together with the acknowledgment of SETTINGS before the connection is closed.
func TestUnwrittenRequestIsRetried(t *testing.T) {
	const attempts = 10
	var err error
	for range attempts {
		var status int
		var body string
		if status, body, err = closeBeforeWrite(t); status == 200 && body == "again" && err == nil {
			return
		}
	}
	t.Errorf("got %v in each of %d attempts, want 200, again", err, attempts)
}

// closeBeforeWrite sends a POST request on a connection that is closed before the request is written.
func closeBeforeWrite(t *testing.T) (status int, body string, err error) {
	t.Helper()
	began := make(chan *peer, 2)
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		if p.index > 0 {
			p.ok(f.StreamID, "again")
			return
		}
		began <- p
	}})
	client := newClient(t, a)
	open := newReceiver()
	s, _, err := client.Open(noContext, http2conn.Request{Owner: open, Head: newHead(), End: true}, 0)
	harness.NoError(t, err)
	s.Conn().Flush(false)
	p := harness.Receive(t, began, "request")
	c, o := newCall("POST")
	c.Content = []byte("held")
	o.sending = func() {
		if o.sends == 1 {
			p.Close()
			harness.Receive(t, open.failed, "end of the connection")
		}
	}
	return get(client, c)
}
