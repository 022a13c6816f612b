package http2_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// A frameApp is an app that sends HTTP/2 frames, with a proxy in front of it.
type frameApp struct {
	proxy        *proxytest.Proxy
	observations chan observation.Observation
}

// An appStream is a stream on the side of the app.
type appStream struct {
	*harness.Frames
	f  *xhttp2.MetaHeadersFrame
	id uint32
}

func (s *appStream) respond(end bool, fields ...string) { _ = s.WriteHead(s.id, end, fields...) }

// newFrameApp starts an app. The goroutine that reads from the connection calls serve for each request.
func newFrameApp(t testing.TB, serve func(s *appStream)) *frameApp {
	t.Helper()
	a := &frameApp{observations: make(chan observation.Observation, 1000)}
	server := harness.NewApp(t, func(conn *harness.AppConn) { serveFrames(conn, serve) })
	a.proxy = start(t, server.Listener, func(p *proxy.Proxy, _ *proxytest.Options) {
		p.Observe = func(o *observation.Observation) { a.observations <- *o }
	})
	return a
}

func serveFrames(conn *harness.AppConn, serve func(s *appStream)) {
	frames := conn.Frames()
	if frames.Greet(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 20}) != nil {
		return
	}
	frames.Follow(func(f xhttp2.Frame) {
		if f, ok := f.(*xhttp2.MetaHeadersFrame); ok {
			s := &appStream{frames, f, f.StreamID}
			if f.PseudoValue("path") == "*" { // the request is part of the protocol detection
				s.respond(true, ":status", "204")
			} else if f.PseudoValue("method") != "" {
				serve(s)
			}
		}
	})
}

func request(method, path string, more ...[2]string) *script {
	return &script{fields: append([][2]string{{":method", method}, {":scheme", "http"}, {":authority", "a"}, {":path", path}}, more...)}
}

// manyInfos sends 200 informational responses, a final response and its content in one write, so that the content
// arrives before the responses are rejected.
func manyInfos(s *appStream) {
	var out bytes.Buffer
	f := xhttp2.NewFramer(&out, nil)
	respond := func(status string) {
		_ = f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: s.id, BlockFragment: s.Block(":status", status), EndHeaders: true})
	}
	for range 200 {
		respond("103")
	}
	respond("200")
	_ = f.WriteData(s.id, true, []byte("abc"))
	_, _ = s.Write(out.Bytes())
}

// Invalid responses from a user container do not reach the client.
func TestInvalidAppResponseIsNotForwarded(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		serve  func(s *appStream)
		want   string
	}{
		"Content-Length with END_STREAM": {"GET", func(s *appStream) { s.respond(true, ":status", "200", "content-length", "5") }, "502 "},
		"a shorter body": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200", "content-length", "5")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "200 []\nbody \"\" reset"},
		"a longer body": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200", "content-length", "2")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "200 []\nbody \"\" reset"},
		"content of a HEAD response": {"HEAD", func(s *appStream) {
			s.respond(false, ":status", "200", "content-length", "3")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "200 []\nbody \"\""},
		"content of a 304": {"GET", func(s *appStream) {
			s.respond(false, ":status", "304")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "304 []\nbody \"\""},
		"content before the header": {"GET", func(s *appStream) { _ = s.WriteData(s.id, true, []byte("abc")) }, "502 "},
		"101":                       {"GET", func(s *appStream) { s.respond(false, ":status", "101") }, "502 "},
		"no status":                 {"GET", func(s *appStream) { s.respond(true, "a", "b") }, "502 "},
		"a status with letters":     {"GET", func(s *appStream) { s.respond(true, ":status", "abc") }, "502 "},
		"a malformed field":         {"GET", func(s *appStream) { s.respond(true, ":status", "200", "A", "b") }, "502 "},
		"a trailer section with a pseudo-header field": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200")
			s.respond(true, ":path", "200")
		}, "200 []\nbody \"\" reset"},
		"a reset": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200")
			_ = s.WriteRSTStream(s.id, xhttp2.ErrCodeEnhanceYourCalm)
		}, "200 []\nbody \"\" reset ENHANCE_YOUR_CALM"},
		"content after many informational responses": {"GET", manyInfos, strings.Repeat("103 []\n", 100) + "502 "},
		"many informational responses": {"GET", func(s *appStream) {
			for range 200 {
				s.respond(false, ":status", "103")
			}
		}, "103 []"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newFrameApp(t, c.serve)
			cl := connect(t, a.proxy)
			if got := cl.receive(cl.send(request(c.method, "/"))); !strings.HasPrefix(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := cl.receive(cl.send(request("OPTIONS", "/"))); got == "" || strings.Contains(got, "the connection ended") {
				t.Errorf("got %q, want an open client connection", got)
			}
		})
	}
}

func TestGRPCStatusIsObserved(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(s *appStream)
		want  string
	}{
		"OK in a trailer section": {func(s *appStream) {
			s.respond(false, ":status", "200", "content-type", "application/grpc")
			s.respond(true, "grpc-status", "0")
		}, "OK"},
		"no status": {func(s *appStream) {
			s.respond(true, ":status", "200", "content-type", "application/grpc")
		}, "none"},
		"UNAVAILABLE in a trailer section": {func(s *appStream) {
			s.respond(false, ":status", "200", "content-type", "application/grpc+proto")
			_ = s.WriteData(s.id, false, []byte("abc"))
			s.respond(true, "grpc-status", "14")
		}, "UNAVAILABLE"},
		"DEADLINE_EXCEEDED without content": {func(s *appStream) {
			s.respond(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "4")
		}, "DEADLINE_EXCEEDED"},
		"NOT_FOUND without content": {func(s *appStream) {
			s.respond(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "5")
		}, "NOT_FOUND"},
		"header section with an invalid gRPC media type": {func(s *appStream) {
			s.respond(true, ":status", "200", "content-type", "text/plain", "grpc-status", "14")
		}, ""},
	} {
		a := newFrameApp(t, c.serve)
		cl := connect(t, a.proxy)
		cl.receive(cl.send(request("POST", "/", [2]string{"content-type", "application/grpc"})))
		harness.Equal(t, harness.Receive(t, a.observations, "observation").RPC.String(), c.want, name)
	}
}

// A server such as grpc-go responds with DEADLINE_EXCEEDED if the timeout of the client has expired.
func TestDeadlineExceededReportsClientGone(t *testing.T) {
	for timeout, want := range map[string]string{"1n": "client-gone 499", "1H": "ok 200", "": "ok 200"} {
		a := newFrameApp(t, func(s *appStream) {
			s.respond(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "4")
		})
		cl := connect(t, a.proxy)
		cl.receive(cl.send(request("POST", "/", [2]string{"content-type", "application/grpc"}, [2]string{"grpc-timeout", timeout})))
		o := harness.Receive(t, a.observations, "observation")
		harness.Equal(t, fmt.Sprint(o.Reason, " ", o.Status), want, "reason and status with the timeout", timeout)
	}
}

func TestExpectIsForwardedToApp(t *testing.T) {
	for _, values := range [][]string{{"100-continue"}, {"100-continue", ""}} {
		testExpectIsForwardedToApp(t, values)
	}
}

// testExpectIsForwardedToApp sends a request with one Expect field per value.
func testExpectIsForwardedToApp(t *testing.T, values []string) {
	a := newFrameApp(t, func(s *appStream) {
		if harness.FieldOf(s.f, "expect") == "100-continue" {
			s.respond(false, ":status", "100")
		}
		s.respond(true, ":status", "200")
	})
	c := connect(t, a.proxy)
	id := c.id
	var fields [][2]string
	for _, value := range values {
		fields = append(fields, [2]string{"expect", value})
	}
	harness.NoError(c, c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, EndHeaders: true, BlockFragment: c.Block(flat(request("POST", "/", fields...).fields)...)}))
	for {
		f, err := c.ReadFrame()
		harness.NoError(c, err)
		if m, ok := f.(*xhttp2.MetaHeadersFrame); ok {
			harness.Equal(t, m.PseudoValue("status"), "100", m)
			return
		}
	}
}

// The client resets its stream before it has received the complete response.
func TestClientResetReportsClientGone(t *testing.T) {
	for name, end := range map[string]bool{"the response has ended": true, "the response continues": false} {
		t.Run(name, func(t *testing.T) {
			a := newFrameApp(t, func(s *appStream) {
				s.respond(false, ":status", "200")
				_ = s.WriteData(s.id, false, make([]byte, 10_000))
				_ = s.WriteData(s.id, end, make([]byte, 10_000))
			})
			for range 20 {
				c := connect(t, a.proxy)
				harness.NoError(c, c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 15_000}))
				id := c.send(request("GET", "/"))
				for got := 0; got < 15_000; {
					f, err := c.ReadFrame()
					harness.NoError(c, err)
					if d, ok := f.(*xhttp2.DataFrame); ok {
						got += len(d.Data())
					}
				}
				harness.NoError(c, c.WriteRSTStream(id, xhttp2.ErrCodeCancel))
				if o := harness.Receive(t, a.observations, "observation"); o.Reason != observation.ClientGone {
					t.Fatalf("got %v, want ClientGone", o.Reason)
				}
				c.Close()
			}
		})
	}
}

// Flow control blocks both directions of a stream at the same time, and on both sides.
func TestFlowControlInBothDirections(t *testing.T) {
	s := newSetup(t, false, true)
	const all = 3 << 20
	var clients sync.WaitGroup
	for range 4 {
		c := connect(t, s.proxy)
		clients.Go(func() { echo(c, all) })
	}
	clients.Wait()
}

// echo sends content and reads it back with small windows.
func echo(c *client, all int) {
	harness.NoError(c, c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 3000}))
	id := c.id
	var mu sync.Mutex
	window, changed := 65535, make(chan struct{}, 1)
	harness.NoError(c, c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, EndHeaders: true, BlockFragment: c.Block(flat(request("POST", "/echo").fields)...)}))
	go func() {
		for sent := 0; sent < all; {
			mu.Lock()
			n := min(window, 10_000, all-sent)
			if n > 0 {
				window -= n
				sent += n
				_ = c.WriteData(id, sent == all, make([]byte, n))
			}
			mu.Unlock()
			if n <= 0 {
				<-changed
			}
		}
	}()
	for got := 0; got < all; {
		f, err := c.ReadFrame()
		harness.NoError(c, err)
		mu.Lock()
		switch f := f.(type) {
		case *xhttp2.WindowUpdateFrame:
			if f.StreamID == id {
				window += int(f.Increment)
			}
		case *xhttp2.DataFrame:
			n := len(f.Data())
			if got += n; n > 0 {
				_ = c.WriteWindowUpdate(id, uint32(n))
				_ = c.WriteWindowUpdate(0, uint32(n))
			}
		case *xhttp2.RSTStreamFrame:
			c.Error(fmt.Sprint("got a reset: ", f.ErrCode))
			got = all
		}
		mu.Unlock()
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// CVE-2026-33814. A frame size of 0 is a connection error (RFC 9113 section 6.5.2). The proxy must not divide a
// header block into frames of this size.
func TestAppWithFrameSizeZeroReturns502(t *testing.T) {
	app := harness.NewApp(t, func(conn *harness.AppConn) {
		frames := conn.Frames()
		if frames.Greet(xhttp2.Setting{ID: xhttp2.SettingMaxFrameSize, Val: 0}) == nil {
			frames.Follow(func(xhttp2.Frame) {})
		}
	})
	p := start(t, app.Listener, nil)
	c := connect(t, p)
	c.wantStatus(request("POST", "/", [2]string{"content-type", "application/grpc+x"}), "200")
	c.wantStatus(request("GET", "/"), "502")
}

// CVE-2026-78660. A Content-Length that is not a number or is ambiguous is a protocol error.
func TestInvalidLengthOfAppReturns502(t *testing.T) {
	for _, lengths := range [][]string{{"abc"}, {"-1"}, {"+3"}, {""}, {"3", "4"}, {"3, 3"}, {"18446744073709551619"}} {
		a := newFrameApp(t, func(s *appStream) {
			fields := []string{":status", "200"}
			for _, n := range lengths {
				fields = append(fields, "content-length", n)
			}
			s.respond(false, fields...)
			_ = s.WriteData(s.id, true, []byte("abc"))
		})
		connect(t, a.proxy).wantStatus(request("GET", "/"), "502")
	}
}
