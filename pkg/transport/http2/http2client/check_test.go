package http2client_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// gRPC responses have no Content-Length. An earlier lookup allocated an error for each response.
func TestHeaderWithoutLengthDoesNotAllocate(t *testing.T) {
	head := &http2conn.Head{Status: 200, Fields: []wire.Field{{Name: []byte("content-type"), Value: []byte("application/grpc")}}}
	got := testing.AllocsPerRun(100, func() {
		var k http2client.Check
		if err := k.Head(nil, head, false); err != nil || k.Length != -1 {
			t.Errorf("got a length of %d and %v, want -1 and no error", k.Length, err)
		}
	})
	harness.Equal(t, got, 0, "allocations")
}

// In RFC 2518 section 10.1, the interval of 102 (Processing) is 20 seconds.
func TestSlowInformationalResponsesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 2 * time.Second // the user container may send informational responses 10 times as often
		var k http2client.Check
		for range time.Hour / interval {
			harness.NoError(t, k.Head(nil, &http2conn.Head{Status: 102}, false))
			time.Sleep(interval)
		}
		harness.NoError(t, k.Head(nil, &http2conn.Head{Status: 200}, true))
	})
}

// A header block and each string in it are limited to 256 KiB.
func TestLargeResponsesAreRecorded(t *testing.T) {
	large := []string{"a", strings.Repeat("~", 200<<10), "b", strings.Repeat("~", 200<<10)}
	for name, c := range map[string]struct {
		respond func(p *peer, id uint32)
		want    bound.Name
	}{
		"many informational responses": {func(p *peer, id uint32) {
			for range 2 * rewrite.MaxInfos {
				_ = p.WriteHead(id, false, ":status", "103")
			}
		}, bound.AppInformational},
		"header": {func(p *peer, id uint32) {
			_ = p.WriteHead(id, true, append([]string{":status", "200"}, large...)...)
		}, bound.AppHeaderSection},
		"trailer": {func(p *peer, id uint32) {
			_ = p.WriteHead(id, false, ":status", "200")
			_ = p.WriteHead(id, true, large...)
		}, bound.AppTrailerSection},
	} {
		t.Run(name, func(t *testing.T) {
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) { c.respond(p, f.StreamID) }})
			bounds := bound.NewRecorder()
			call, _ := newCall("GET")
			_, _, err := get(newClientOf(t, http2client.Settings{
				Dial: dialer(a), Unsettled: func() {}, MaxHeaderBytes: 256 << 10, Bounds: bounds,
			}), call)
			harness.Equal(t, transport.FaultOf(err), transport.FaultGarbage, err)
			harness.Equal(t, bounds.Count(c.want), 1, "events of", c.want)
			harness.Equal(t, len(bounds.States(time.Now())), 1, "bounds")
		})
	}
}
