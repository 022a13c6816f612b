package http2client_test

import (
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// newCalmApp returns an app that begins the first turns responses on each connection and resets all later streams with
// code, like Node after 10 MB of canceled responses.
func newCalmApp(t *testing.T, turns int, code http2.ErrCode) *app {
	t.Helper()
	return newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		if p.turn >= turns {
			_ = p.WriteRSTStream(f.StreamID, code)
			return
		}
		p.WriteHead(f.StreamID, false, ":status", "200")
		_ = p.WriteData(f.StreamID, false, []byte("a"))
	}})
}

// cancelResponses cancels n responses after their first byte.
func cancelResponses(t *testing.T, client *http2client.Client, n int) {
	t.Helper()
	for range n {
		c, _ := newCall(http.MethodGet)
		r, err := c.Do(client)
		harness.NoError(t, err)
		r.Close()
	}
}

func TestEnhanceYourCalmReplacesConnection(t *testing.T) {
	for _, test := range []struct {
		method string
		ok     bool
	}{{http.MethodGet, true}, {http.MethodPost, false}} {
		t.Run(test.method, func(t *testing.T) {
			const turns = 11
			a := newCalmApp(t, turns, http2.ErrCodeEnhanceYourCalm)
			client := newClient(t, a)
			cancelResponses(t, client, turns)
			c, o := newCall(test.method)
			r, err := c.Do(client)
			if (err == nil) != test.ok {
				t.Errorf("got error %v, want success %v", err, test.ok)
			}
			if err == nil {
				r.Close()
				harness.Equal(t, o.sends, 2, "requests sent")
			}
			cancelResponses(t, client, 1)
			harness.Equal(t, a.connections(), 2, "connections")
		})
	}
}

func TestOpenStreamContinuesAfterEnhanceYourCalm(t *testing.T) {
	var first uint32
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		switch {
		case p.index > 0:
			p.ok(f.StreamID, "new connection")
		case p.turn == 0:
			first = f.StreamID
			p.WriteHead(first, false, ":status", "200")
		default:
			_ = p.WriteRSTStream(f.StreamID, http2.ErrCodeEnhanceYourCalm)
			_ = p.WriteData(first, true, []byte("complete"))
		}
	}})
	client := newClient(t, a)
	c, _ := newCall(http.MethodGet)
	r, err := c.Do(client)
	harness.NoError(t, err)
	defer r.Close()
	harness.Equal(t, mustGet(t, client), "new connection", "second response")
	body, err := content(r)
	harness.NoError(t, err)
	harness.Equal(t, body, "complete", "first response")
}

func TestRepeatedRefusalReplacesConnection(t *testing.T) {
	a := newCalmApp(t, 1, http2.ErrCodeRefusedStream)
	client := newClient(t, a)
	cancelResponses(t, client, 1)
	for range 5 {
		c, _ := newCall(http.MethodPost)
		if _, err := c.Do(client); err == nil {
			t.Fatal("got a response, want a reset")
		}
	}
	cancelResponses(t, client, 1)
	harness.Equal(t, a.connections(), 2, "connections")
}

// An app that rejects all streams does not cause a new connection for each request.
func TestConnectionsToRejectingAppAreLimited(t *testing.T) {
	a := newCalmApp(t, 0, http2.ErrCodeEnhanceYourCalm)
	client := newClient(t, a)
	begin := time.Now()
	for range 200 {
		c, _ := newCall(http.MethodPost)
		if _, err := c.Do(client); err == nil {
			t.Fatal("got a response, want a reset")
		}
	}
	// A connection without a response is replaced after one second.
	if got, most := a.connections(), 1+int(time.Since(begin)/time.Second); got > most {
		t.Errorf("got %d connections, want at most %d", got, most)
	}
}
