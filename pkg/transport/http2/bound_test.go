package http2_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// soon is the value of a timeout that expires in the test.
const soon = 30 * time.Millisecond

// responseSize is the size of the response to /large, in bytes. It is larger than the initial
// window of a connection.
const responseSize = 256 << 10

// reader reads the body of each request and responds with 200.
func reader(w http.ResponseWriter, r *http.Request) {
	if r.Method == "PRI" { // the proxy detects the protocol
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	if r.URL.Path == "/large" {
		_, _ = io.CopyN(w, harness.Zeros{}, responseSize)
	}
}

// withEachApp runs a test with an app that supports HTTP/1.1 and with an app that supports HTTP/2.
func withEachApp(t *testing.T, change func(*proxy.Proxy, *proxytest.Options), test func(p *proxytest.Proxy, c *client)) {
	for name, appH2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			p := start(t, serveApp(t, http.HandlerFunc(reader), appH2), change)
			test(p, connect(t, p))
		})
	}
}

// wantStatus sends a request and checks the status of its response.
func (c *client) wantStatus(s *script, status string) {
	c.Helper()
	if got := c.receive(c.send(s)); !strings.HasPrefix(got, status+" ") {
		c.Errorf("got %q, want %s", got, status)
	}
}

func repeated(name, value string, n int) (fields [][2]string) {
	for range n {
		fields = append(fields, [2]string{name, value})
	}
	return fields
}

func TestLargeHeaderReturns431(t *testing.T) {
	for name, fields := range map[string][][2]string{
		"two long fields": repeated("a", strings.Repeat("~", 200<<10), 2),
		"many fields":     repeated("a", "b", 1001),
		"long Trailer":    repeated("trailer", strings.Repeat("a", 4100), 1),
	} {
		t.Run(name, func(t *testing.T) {
			change := func(_ *proxy.Proxy, o *proxytest.Options) { o.MaxHeaderBytes = 256 << 10 }
			withEachApp(t, change, func(p *proxytest.Proxy, c *client) {
				c.wantStatus(request("GET", "/", fields...), "431")
				p.WantBounds(bound.HeaderSection)
			})
		})
	}
}

func TestMalformedRequestIsRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		fields     [][2]string
		want, text string // prefix of the response, and error of the event
	}{
		"upper case":        {request("GET", "/", [2]string{"Upper", "a"}).fields, "\nbody \"\" reset PROTOCOL_ERROR", "malformed header section"},
		"connection":        {request("GET", "/", [2]string{"connection", "close"}).fields, "\nbody \"\" reset PROTOCOL_ERROR", "malformed header section"},
		"no path":           {request("GET", "/").fields[:3], "\nbody \"\" reset PROTOCOL_ERROR", "malformed header section"},
		"expectation":       {request("GET", "/", [2]string{"expect", "a"}).fields, "417 ", "request refused: expect"},
		"forbidden trailer": {request("GET", "/", [2]string{"trailer", "content-length"}).fields, "400 ", "request refused: trailer"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, serveApp(t, http.HandlerFunc(reader), false), nil)
			c := connect(t, p)
			if got := c.receive(c.send(&script{fields: test.fields})); !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			c.wantStatus(request("GET", "/"), "200")
			states := p.Bounds.States(time.Now())
			harness.Equal(t, len(states), 1, "recorded events")
			harness.Equal(t, states[0].Name, bound.MalformedRequest, "event")
			harness.Equal(t, states[0].Count, 1, "number of events")
			if !strings.Contains(states[0].Error, test.text) {
				t.Errorf("got error %q, want %q", states[0].Error, test.text)
			}
		})
	}
}

func TestMalformedBodyIsLogged(t *testing.T) {
	for name, test := range map[string]struct {
		script *script
		want   string // error of the observation
	}{
		"wrong length":      {&script{fields: request("PUT", "/", [2]string{"content-length", "3"}).fields, body: []byte("a")}, "bad request: malformed body: content-length"},
		"forbidden trailer": {&script{fields: request("PUT", "/").fields, trailer: [][2]string{{"content-length", "1"}}}, "bad request: malformed body: trailer"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, serveApp(t, http.HandlerFunc(reader), false), nil)
			c := connect(t, p)
			c.receive(c.send(test.script))
			if got := p.Observed(1)[0].Err; got == nil || got.Error() != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

func TestIncompleteBodyReturns408(t *testing.T) {
	change := func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = proxy.Clocks{Body: soon} }
	withEachApp(t, change, func(p *proxytest.Proxy, c *client) {
		harness.NoError(c, c.WriteHead(1, false, flat(request("PUT", "/").fields)...))
		harness.NoError(c, c.WriteData(1, false, []byte("ab")))
		if got := c.receive(1); !strings.HasPrefix(got, "408 ") {
			c.Errorf("got %q, want 408", got)
		}
		p.WantBounds(bound.BodyTimeout)
	})
}

// Clocks.Idle also includes the time that the app needs.
func TestAppIdleTimeoutRecordsNoBound(t *testing.T) {
	a := newFrameApp(t, func(*appStream) {})
	a.proxy.Queue.Clocks = proxy.Clocks{Idle: soon}
	s := request("PUT", "/")
	s.body = []byte("ab")
	connect(t, a.proxy).wantStatus(s, "504")
	a.proxy.WantBounds()
}

func TestLargeBodyReturns413(t *testing.T) {
	for name, fields := range map[string][][2]string{"with a length": {{"content-length", "11"}}, "without a length": nil} {
		t.Run(name, func(t *testing.T) {
			change := func(_ *proxy.Proxy, o *proxytest.Options) { o.MaxBodyBytes = 10 }
			withEachApp(t, change, func(p *proxytest.Proxy, c *client) {
				s := request("PUT", "/", fields...)
				s.body = []byte("12345678901")
				c.wantStatus(s, "413")
				p.WantBounds(bound.BodySize)
			})
		})
	}
}

func TestLargeTrailerReturns400(t *testing.T) {
	withEachApp(t, nil, func(p *proxytest.Proxy, c *client) {
		s := request("PUT", "/")
		s.trailer = repeated("a", strings.Repeat("a", 5000), 1)
		c.wantStatus(s, "400")
		p.WantBounds(bound.TrailerSection)
	})
}

// A trailer field for message framing is rejected because of its name.
func TestForbiddenTrailerRecordsNoBound(t *testing.T) {
	withEachApp(t, nil, func(p *proxytest.Proxy, c *client) {
		s := request("PUT", "/")
		s.trailer = repeated("content-length", "1", 1)
		c.wantStatus(s, "400")
		p.WantBounds()
	})
}

// The client does not increase the window of the connection.
func TestUnreadResponseTimesOut(t *testing.T) {
	change := func(p *proxy.Proxy, _ *proxytest.Options) { p.Clocks = proxy.Clocks{Send: soon} }
	withEachApp(t, change, func(p *proxytest.Proxy, c *client) {
		if got := c.receive(c.send(request("GET", "/large"))); !strings.Contains(got, " reset ") {
			c.Errorf("got %.100q, want a reset", got)
		}
		p.WantBounds(bound.SendTimeout)
	})
}

// defaults are the default values of the settings that define bounds.
func defaults(p *proxy.Proxy, o *proxytest.Options) {
	o.MaxHeaderBytes, o.HeaderTimeout, o.SendTimeout, o.MaxBodyBytes = 1<<20, time.Minute, 5*time.Minute, 5000
	p.Clocks.Body, p.Clocks.Send = time.Minute, 5*time.Minute
}

// The requests are the same as in the tests of package http1: a Kerberos token of 64 KiB and 100 fields, a
// body of the maximum size in small chunks, and the trailers of object storage.
func TestUsualRequestsRecordNoBound(t *testing.T) {
	withEachApp(t, defaults, func(p *proxytest.Proxy, c *client) {
		fields := append(repeated("x-forwarded-for", "2001:db8:85a3:8d3:1319:8a2e:370:7348", 95),
			[2]string{"authorization", "Negotiate " + strings.Repeat("~", 64<<10)},
			[2]string{"trailer", "grpc-status, grpc-message, grpc-status-details-bin"})
		c.wantStatus(request("GET", "/", fields...), "200")
		s := request("PUT", "/")
		s.body = []byte("ok")
		s.trailer = [][2]string{{"x-amz-checksum-sha256", strings.Repeat("a", 44)}, {"x-amz-trailer-signature", strings.Repeat("a", 64)}}
		c.wantStatus(s, "200")
		harness.NoError(c, c.WriteHead(c.id, false, flat(request("PUT", "/").fields)...))
		for i := range 5000 {
			harness.NoError(c, c.WriteData(c.id, i == 4999, []byte("x")))
		}
		if got := c.receive(c.id); !strings.HasPrefix(got, "200 ") {
			c.Errorf("got %q, want 200", got)
		}
		p.WantBounds()
	})
}

// The client increases the window of the connection in steps of 1 KiB.
func TestSlowReaderReceivesResponse(t *testing.T) {
	withEachApp(t, defaults, func(p *proxytest.Proxy, c *client) {
		id := c.send(request("GET", "/large"))
		const window = 64<<10 - 1 // initial window of a connection (RFC 9113 section 6.9.2)
		for n := window; n < responseSize; n += 1 << 10 {
			harness.NoError(c, c.WriteWindowUpdate(0, 1<<10))
		}
		n := 0
		for ended := false; !ended; {
			f, err := c.ReadFrame()
			harness.NoError(c, err)
			if d, ok := f.(*xhttp2.DataFrame); ok && d.StreamID == id {
				n, ended = n+len(d.Data()), d.StreamEnded()
			}
		}
		harness.Equal(t, n, responseSize, "bytes")
		p.WantBounds()
	})
}

func TestManyInformationalResponsesAreRecorded(t *testing.T) {
	a := newFrameApp(t, func(s *appStream) {
		for range 2 * rewrite.MaxInfos {
			s.respond(false, ":status", "103")
		}
	})
	c := connect(t, a.proxy)
	if got := c.receive(c.send(request("GET", "/"))); !strings.Contains(got, "502 ") {
		t.Errorf("got %q, want 502", got)
	}
	a.proxy.WantBounds(bound.AppInformational)
	harness.Equal(t, a.proxy.Bounds.Count(bound.AppInformational), 1, "events")
}
