package http2client_test

import (
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A connection whose peer stopped reading must not receive all later requests.
func TestSilentConnectionReceivesNoRequests(t *testing.T) {
	harness.ScaleTime(t, func(scale int) bool { return silentTakesNoMore(t, time.Duration(scale)*50*time.Millisecond) })
}

// silentTakesNoMore returns false if the timeout expired on a connection that is not silent.
func silentTakesNoMore(t *testing.T, silence time.Duration) (inTime bool) {
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
	client := newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() {}, Silence: silence})
	var first []*http2client.Call
	var ends []<-chan error
	deadline := time.Now().Add(harness.Patience)
	for {
		c, _ := newCall(http.MethodGet)
		done := run(client, c)
		first, ends = append(first, c), append(ends, done)
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("got %v on another connection, want no error", err)
			}
			ends = ends[:len(ends)-1]
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
			t.Error("all requests use the connection that the app does not read")
		}
		break
	}
	for i, done := range ends {
		first[i].Abort()
		mustAbort(t, done)
	}
	if a.connections() > 2 {
		return false
	}
	harness.Equal(t, a.connections(), 2, "connections")
	return true
}

// A connection whose only call transfers no content is not silent if the peer acknowledges PING.
func TestConnectionWithPingReplyIsUsed(t *testing.T) {
	harness.ScaleTime(t, func(scale int) bool { return answeredPingKeeps(t, time.Duration(scale)*20*time.Millisecond) })
}

// answeredPingKeeps returns false if the timeout expired before the PING was acknowledged.
func answeredPingKeeps(t *testing.T, silence time.Duration) (inTime bool) {
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
	client := newClientOf(t, http2client.Settings{Dial: dialer(a), Unsettled: func() {}, Silence: silence})
	c, _ := newCall(http.MethodPost)
	done := run(client, c)
	for n := 0; n < 3; {
		mustGet(t, client)
		select {
		case <-pings:
			n++
		case <-time.After(silence * 5 / 4):
		}
	}
	c.Abort()
	mustAbort(t, done)
	return a.connections() == 1
}
