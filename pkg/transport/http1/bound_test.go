package http1_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// Each bound has a test with an attack and a test with the heaviest legitimate peer. docs/bounds.md lists the bounds
// and their tests.

// defaults are the default values of the settings that define bounds.
func defaults(p *proxy.Proxy, s *proxytest.Options) {
	s.MaxHeaderBytes, s.HeaderTimeout, s.SendTimeout = 1<<20, time.Minute, 5*time.Minute
	p.Clocks.Body, p.Clocks.Send = time.Minute, 5*time.Minute
}

func TestSilentConnectionTimesOut(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.HeaderTimeout = soon })
	server.Dial().WantEnd()
	server.WantBounds(bound.SilentConnection)
}

// A browser opens connections in advance and uses them later.
func TestIdleNewConnectionServesRequest(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), defaults)
	var early []*harness.Client
	for range 6 {
		early = append(early, server.Dial())
	}
	for range 100 {
		server.Dial().Get("/p")
	}
	for _, c := range early {
		c.Get("/p")
	}
	server.WantBounds()
}

func TestIncompleteHeaderTimesOut(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.HeaderTimeout = soon })
	c := server.Dial()
	c.Get("/first")
	c.Send("GET / HTTP/1.1\r\nHost:")
	c.WantEnd()
	server.WantBounds(bound.HeaderTimeout)
}

// The client sends a header section of 64 KiB in many packets, as on a slow network.
func TestSplitHeaderReturns200(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), defaults)
	c := server.Dial()
	text := "GET / HTTP/1.1\r\nHost: a\r\nCookie: " + strings.Repeat("c", 64<<10) + "\r\n\r\n"
	for ; len(text) > 0; text = text[min(500, len(text)):] {
		c.Send(text[:min(500, len(text))])
	}
	harness.Equal(t, c.Receive("GET").Status(), 200, "status")
	server.WantBounds()
}

func TestLargeHeaderReturnsError(t *testing.T) {
	for name, c := range map[string]struct {
		fields string
		status int
	}{
		"a long field":          {"A: " + strings.Repeat("a", 256<<10), 431},
		"many fields":           {strings.Repeat("A: b\r\n", 1001) + "\r\n", 431},
		"long Connection":       {"Connection: " + strings.Repeat("a", 1100) + "\r\n\r\n", 431},
		"long Trailer":          {"Trailer: " + strings.Repeat("a", 4100) + "\r\n\r\n", 431},
		"many connection names": {"Connection: " + strings.Repeat("a,", 65) + "b\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
			client := server.Dial()
			client.Send("GET / HTTP/1.1\r\nHost: a\r\n" + c.fields)
			harness.Equal(t, client.Receive("GET").Status(), c.status, "status")
			client.WantEnd()
			server.WantBounds(bound.HeaderSection)
		})
	}
}

// The request contains a Kerberos token of 64 KiB, 100 fields (the default limit of Envoy), and the connection
// options and trailers of an HTTP/1.1 client that offers h2c and gRPC.
func TestKerberosHeaderReturns200(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), defaults)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Negotiate " + strings.Repeat("a", 64<<10) + "\r\n" +
		"Connection: keep-alive, HTTP2-Settings, TE, X-Request-Id\r\nTE: trailers\r\nTrailer: grpc-status, grpc-message, grpc-status-details-bin\r\n" +
		strings.Repeat("X-Forwarded-For: 2001:db8:85a3:8d3:1319:8a2e:370:7348\r\n", 95) + "\r\n")
	harness.Equal(t, c.Receive("GET").Status(), 200, "status")
	server.WantBounds()
}

func TestIncompleteBodyReturns408(t *testing.T) {
	for name, text := range map[string]string{
		"with a length": "Content-Length: 5\r\n\r\nab",
		"in chunks":     "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = proxy.Clocks{Body: soon} })
			c := server.Dial()
			c.Send("PUT / HTTP/1.1\r\nHost: a\r\n" + text)
			harness.Equal(t, c.Receive("PUT").Status(), 408, "status")
			server.WantBounds(bound.BodyTimeout)
		})
	}
}

// Each byte of the body resets the timeout, so that only a stalled body exceeds it.
func TestSplitBodyReturns200(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), defaults)
	c := server.Dial()
	c.Send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n")
	for range 5000 {
		c.Send("x")
	}
	harness.Equal(t, c.Receive("PUT").Status(), 200, "status")
	server.WantBounds()
}

func TestAppIdleTimeoutRecordsNoBound(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) { conn.Request(); conn.Hang() }),
		func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = proxy.Clocks{Idle: soon} })
	c := server.Dial()
	c.Send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
	harness.Equal(t, c.Receive("PUT").Status(), 504, "status")
	server.WantBounds()
}

func TestLargeBodyReturns413(t *testing.T) {
	for name, text := range map[string]string{
		"with a length": "Content-Length: 11\r\n\r\n",
		"in chunks":     "Transfer-Encoding: chunked\r\n\r\nb\r\n12345678901\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.MaxBodyBytes = 10 })
			c := server.Dial()
			c.Send("PUT / HTTP/1.1\r\nHost: a\r\n" + text)
			harness.Equal(t, c.Receive("PUT").Status(), 413, "status")
			server.WantBounds(bound.BodySize)
		})
	}
}

func TestMaxBodyReturns200(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.MaxBodyBytes = 10 })
	c := server.Dial()
	for _, text := range []string{"Content-Length: 10\r\n\r\n1234567890", "Transfer-Encoding: chunked\r\n\r\na\r\n1234567890\r\n0\r\n\r\n"} {
		c.Send("PUT / HTTP/1.1\r\nHost: a\r\n" + text)
		harness.Equal(t, c.Receive("PUT").Status(), 200, "status")
	}
	server.WantBounds()
}

// large returns an app whose responses have bodies of size bytes.
func large(size int) func(conn *harness.AppConn) {
	return func(conn *harness.AppConn) {
		for conn.Request() != nil {
			conn.Send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
			if _, err := io.CopyN(conn, harness.Zeros{}, int64(size)); err != nil {
				return
			}
		}
	}
}

func TestUnreadResponseTimesOut(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, large(64<<20)), func(p *proxy.Proxy, s *proxytest.Options) {
		p.Clocks = proxy.Clocks{Send: soon}
		s.Narrow = true
	})
	c := harness.DialBy(t, &net.Dialer{Control: harness.Narrow}, server.Address)
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	server.WantBounds(bound.SendTimeout)
	harness.Equal(t, server.Observed(1)[0].Reason, observation.ClientSlow, "reason")
}

// The client reads 1 KiB at a time while the buffers of the kernel are full. The timeout is reset
// after each write.
func TestSlowReaderReceivesResponse(t *testing.T) {
	const size = 16 << 20
	server := proxytest.Start(t, harness.NewApp(t, large(size)), defaults)
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	m, err := harness.ReadHead(c.In)
	harness.NoError(t, err)
	harness.Equal(t, m.Status(), 200, "status")
	for range size >> 10 {
		if _, err := io.CopyN(io.Discard, c.In, 1<<10); err != nil {
			t.Fatalf("got %v, want the whole response", err)
		}
	}
	server.WantBounds()
}

// wantUpload sends the chunked body to a proxy with the given settings. It checks the status and the bounds that were
// recorded.
func wantUpload(t *testing.T, settings func(*proxy.Proxy, *proxytest.Options), body string, status int, bounds ...bound.Name) {
	t.Helper()
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), settings)
	c := server.Dial()
	c.Send("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
	harness.Equal(t, c.Receive("PUT").Status(), status, "status")
	server.WantBounds(bounds...)
}

func TestLongChunkExtensionReturns400(t *testing.T) {
	wantUpload(t, nil, "1;"+strings.Repeat("a", 3000), 400, bound.ChunkExtensions)
}

// The client signs each chunk of 1 KiB.
func TestSignedChunksReturn200(t *testing.T) {
	signature := ";chunk-signature=" + strings.Repeat("a", 64) + "\r\n"
	chunk := "400" + signature + strings.Repeat("x", 1024) + "\r\n"
	wantUpload(t, defaults, strings.Repeat(chunk, 100)+"0"+signature+"\r\n", 200)
}

func TestLargeTrailerReturns400(t *testing.T) {
	wantUpload(t, nil, "0\r\nA: "+strings.Repeat("a", 5000), 400, bound.TrailerSection)
}

// The trailer section contains a checksum and a signature, as in an upload to object storage.
func TestChecksumTrailerReturns200(t *testing.T) {
	wantUpload(t, defaults, "2\r\nok\r\n0\r\n"+
		"x-amz-checksum-sha256: "+strings.Repeat("a", 44)+"\r\nx-amz-trailer-signature: "+strings.Repeat("a", 64)+"\r\n\r\n", 200)
}

func TestMaxConnectionsClosesIdleConnection(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.Connections = netconn.NewConnLimit(1, s.Bounds) })
	first := server.Dial()
	first.Get("/p")
	server.Dial().Get("/p")
	first.WantEnd()
	server.WantBounds(bound.MaxConnections)
}

func TestShutdownRecordsNoBound(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), defaults)
	silent, idle := server.Dial(), server.Dial()
	idle.Get("/p")
	server.Shutdown()
	silent.WantEnd()
	idle.WantEnd()
	server.WantBounds()
}

func TestMalformedRequestIsRecorded(t *testing.T) {
	for name, test := range map[string]struct{ head, error, target string }{
		"no Host":     {"GET /a HTTP/1.1\r\n\r\n", "request refused", "/a"},
		"no protocol": {"hello\r\n\r\n", "request refused", ""},
		"two lengths": {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "request refused", "/"},
	} {
		t.Run(name, func(t *testing.T) {
			server := proxytest.Start(t, harness.NewApp(t, harness.Echo), defaults)
			c := server.Dial()
			c.Send(test.head)
			harness.Equal(t, c.Receive("GET").Status(), 400, "status")
			c.WantEnd()
			states := server.Bounds.States(time.Now())
			harness.Equal(t, len(states), 1, "recorded events")
			harness.Equal(t, states[0].Name, bound.MalformedRequest, "event")
			if !strings.Contains(states[0].Error, test.error) {
				t.Errorf("got error %q, want %q", states[0].Error, test.error)
			}
			o := server.Observed(1)[0]
			harness.Equal(t, o.Reason, observation.BadRequest, "reason")
			harness.Equal(t, o.Status, 400, "status")
			harness.Equal(t, o.Target, test.target, "target")
		})
	}
}
