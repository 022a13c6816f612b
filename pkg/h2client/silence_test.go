package h2client_test

import (
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/h2client"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A connection whose other end has stopped to read must not swallow all requests to come.
func TestAConnectionThatIsSilentTakesNoMoreRequests(t *testing.T) {
	forever := make(chan struct{})
	a := newApp(t, func(p *peer) {
		if p.Greet() != nil {
			return
		}
		if p.index == 0 {
			<-forever
		}
		p.follow(script{headers: func(p *peer, f *http2.MetaHeadersFrame) { p.ok(f.StreamID, "alive") }})
	})
	t.Cleanup(func() { close(forever) })
	client := newClientOf(t, h2client.Settings{Dial: dialer(a), Unsettled: func() {}, Silence: 50 * time.Millisecond})
	var first []*h2client.Call
	var ends []<-chan error
	deadline := time.Now().Add(harness.Patience)
	for {
		c, _ := newCall(http.MethodGet)
		done := run(client, c)
		first, ends = append(first, c), append(ends, done)
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("on another connection: %v", err)
			}
			ends = ends[:len(ends)-1]
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
			t.Error("all requests go to a connection that nobody reads")
		}
		break
	}
	for i, done := range ends {
		first[i].Abort()
		mustAbort(t, done)
	}
	harness.Equal(t, a.connections(), 2, "connections")
}

// A long call without a word is no silence, as long as the other end answers PING.
func TestAConnectionThatAnswersPingIsUsed(t *testing.T) {
	pings := make(chan struct{}, 100)
	a := newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			if f.PseudoValue("method") == http.MethodGet {
				p.ok(f.StreamID, "hello")
			}
		},
		other: func(p *peer, f http2.Frame) {
			if f, ok := f.(*http2.PingFrame); ok && !f.IsAck() {
				_ = p.WritePing(true, f.Data)
				pings <- struct{}{}
			}
		},
	})
	client := newClientOf(t, h2client.Settings{Dial: dialer(a), Unsettled: func() {}, Silence: 20 * time.Millisecond})
	c, _ := newCall(http.MethodPost)
	done := run(client, c)
	for n := 0; n < 3; {
		mustGet(t, client)
		select {
		case <-pings:
			n++
		case <-time.After(25 * time.Millisecond):
		}
	}
	c.Abort()
	mustAbort(t, done)
	harness.Equal(t, a.connections(), 1, "connections")
}
