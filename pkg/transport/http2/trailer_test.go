package http2_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// removedTrailers are fields that a trailer section must not contain (RFC 9110 section 6.5.1).
var removedTrailers = []string{
	"content-length", "content_length", "transfer_encoding", "host", "authorization", "set-cookie", "cache-control", "date",
	"expires", "content-type", "x-forwarded-for", "knative-serving-revision",
}

// trailerApp starts an app that sends removedTrailers, grpc-status and Proxy-Status after a response.
func trailerApp(t *testing.T, appH2 bool) *proxytest.Proxy {
	t.Helper()
	var fields []string
	for _, name := range append(removedTrailers, "grpc-status") {
		fields = append(fields, name, "5")
	}
	fields = append(fields, "proxy-status", "queue-proxy; error=x, other; error=y")
	if appH2 {
		return newFrameApp(t, func(s *appStream) {
			s.respond(false, ":status", "200")
			_ = s.WriteData(s.id, false, []byte("hello"))
			s.respond(true, fields...)
		}).proxy
	}
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		for {
			if _, err := http.ReadRequest(conn.In); err != nil {
				return
			}
			var trailer strings.Builder
			for pair := range slices.Chunk(fields, 2) {
				fmt.Fprintf(&trailer, "%s: %s\r\n", pair[0], pair[1])
			}
			conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + trailer.String() + "\r\n")
		}
	})
	return start(t, app.Listener, nil)
}

func TestResponseTrailersAreFilteredForAllProtocols(t *testing.T) {
	for i := range 4 {
		appH2, clientH2 := i&1 > 0, i&2 > 0
		t.Run(fmt.Sprintf("app HTTP2 %t, client HTTP2 %t", appH2, clientH2), func(t *testing.T) {
			p := trailerApp(t, appH2)
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetHTTP1(!clientH2)
			transport.Protocols.SetUnencryptedHTTP2(clientH2)
			defer transport.CloseIdleConnections()
			response, err := (&http.Client{Transport: transport}).Get("http://" + p.Address)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			harness.NoError(t, err)
			harness.Equal(t, string(body), "hello", "body")
			harness.Equal(t, fmt.Sprint(slices.Sorted(maps.Keys(response.Trailer))), "[Grpc-Status Proxy-Status]", "trailers")
			harness.Equal(t, response.Trailer.Get("Proxy-Status"), "other; error=y", "Proxy-Status without the member of the sidecar")
		})
	}
}

// The body is complete, so the user container causes the timeout.
func TestTimeoutAfterRequestTrailersIsNotClientSlow(t *testing.T) {
	received := make(chan struct{}, 1)
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		serveFrames(conn, func(*appStream) { received <- struct{}{} })
	})
	server := start(t, app.Listener, func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks.Request = time.Second })
	nc := server.Dial()
	nc.Send(xhttp2.ClientPreface)
	c := harness.NewFrames(nc)
	harness.NoError(t, c.WriteSettings())
	harness.NoError(t, c.WriteHead(1, false, ":method", "POST", ":scheme", "http", ":authority", "a", ":path", "/"))
	harness.NoError(t, c.WriteData(1, false, []byte("x")))
	harness.Receive(t, received, "request")
	harness.NoError(t, c.WriteHead(1, true, "x-a", "b"))
	harness.Equal(t, server.Observed(1)[0].Reason, observation.RequestTimeout, "reason")
}
