package http1client

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Each bound has a test with an attack and a test with the heaviest legitimate peer. docs/bounds.md lists the bounds
// and their tests.

// wantBounds fails the test unless events were recorded for exactly the bounds with these
// names.
func wantBounds(t *testing.T, a *App, names ...bound.Name) {
	t.Helper()
	got := map[bound.Name]bool{}
	for _, s := range a.settings.Bounds.States(time.Now()) {
		got[s.Name] = true
		if s.Peer == "" {
			t.Errorf("%v: got no peer, want one", s.Name)
		}
	}
	want := map[bound.Name]bool{}
	for _, name := range names {
		want[name] = true
	}
	harness.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "bounds")
}

// wantGarbage sends a request to an app that responds with text, and checks that the response
// is rejected because of a bound.
func wantGarbage(t *testing.T, text string, name bound.Name) {
	t.Helper()
	a := app(t, answersOnce(text))
	got := newCall("GET", "/").do(a)
	harness.Equal(t, transport.FaultOf(got.err), transport.FaultGarbage, got.err)
	wantBounds(t, a, name)
}

// wantResponse sends a request to an app that responds with text, and checks that no bound is recorded.
func wantResponse(t *testing.T, text, body string) {
	t.Helper()
	a := app(t, answersOnce(text))
	newCall("GET", "/").do(a).want(t, 200, body)
	wantBounds(t, a)
}

func TestManyInformationalResponsesReturnError(t *testing.T) {
	wantGarbage(t, strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", rewrite.MaxInfos+1), bound.AppInformational)
}

// In RFC 2518 section 10.1, the interval of 102 (Processing) is 20 seconds.
func TestSlowInformationalResponsesAreForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 2 * time.Second // a tenth of the interval in the RFC
		a := New(Settings{Port: 1, Bounds: bound.NewRecorder()})
		a.versions.setH1(true)
		defer a.Close()
		k := newCall("GET", "/")
		near, far := pipes()
		head := make([]byte, len(k.head()))
		go func() {
			defer far.Close()
			io.ReadFull(far, head)
			for range time.Hour / interval {
				time.Sleep(interval)
				io.WriteString(far, "HTTP/1.1 102 Processing\r\n\r\n")
			}
			io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}()
		k.doOn(a, newClientConn(near, a.buffers)).want(t, 200, "ok")
		harness.Equal(t, len(k.infos), int(time.Hour/interval), "informational responses")
		wantBounds(t, a)
	})
}

func TestLargeResponseHeaderReturnsError(t *testing.T) {
	wantGarbage(t, "HTTP/1.1 200 OK\r\nA: "+strings.Repeat("a", maxHead), bound.AppHeaderSection)
	wantGarbage(t, "HTTP/1.1 200 OK\r\n"+strings.Repeat("A: b\r\n", 1001)+"\r\n", bound.AppHeaderSection)
}

// Clients such as Node.js accept 16 KiB of header fields. 100 fields are the default limit of
// Envoy.
func TestUsualResponseHeaderIsForwarded(t *testing.T) {
	wantResponse(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"+strings.Repeat("Set-Cookie: "+strings.Repeat("c", 150)+"\r\n", 100)+"\r\nok", "ok")
}

func TestLongResponseChunkExtensionReturnsError(t *testing.T) {
	wantGarbage(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"+strings.Repeat("a", 3000), bound.AppChunkExtensions)
}

func TestSignedResponseChunksAreForwarded(t *testing.T) {
	chunk := "400;chunk-signature=" + strings.Repeat("a", 64) + "\r\n" + strings.Repeat("x", 1024) + "\r\n"
	wantResponse(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat(chunk, 100)+
		"0;chunk-signature="+strings.Repeat("a", 64)+"\r\n\r\n", strings.Repeat("x", 102400))
}

// The application writes each byte as a separate chunk, and pads the chunk size to eight characters.
func TestPaddedChunkSizesAreForwarded(t *testing.T) {
	const n = 20_000
	wantResponse(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat("1       \r\nx\r\n", n)+"0\r\n\r\n", strings.Repeat("x", n))
}

func TestLargeResponseTrailerReturnsError(t *testing.T) {
	wantGarbage(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: "+strings.Repeat("a", 16<<10), bound.AppTrailerSection)
}

// The trailer contains Server-Timing with 64 steps, which is about 1 KiB.
func TestTimingTrailerIsForwarded(t *testing.T) {
	timing := "Server-Timing: " + strings.Repeat("step;dur=12.5, ", 64) + "total;dur=800"
	wantResponse(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+timing+"\r\n\r\n", "ok")
}

func TestHeadResponseWithBodyClosesConnection(t *testing.T) {
	a := app(t, answersOnce("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	newCall("HEAD", "/").do(a).want(t, 200, "")
	harness.Until(t, "event of the bound", func() bool { return a.settings.Bounds.Count(bound.AppHeadBody) > 0 })
	harness.Equal(t, idle(a), 0, "idle connections")
	wantBounds(t, a, bound.AppHeadBody)
}

func TestHeadResponseReusesConnection(t *testing.T) {
	a := app(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"))
	for range 10 {
		newCall("HEAD", "/").do(a).want(t, 200, "")
		harness.Until(t, "idle connection", func() bool { return idle(a) == 1 })
	}
	wantBounds(t, a)
}

func TestIdleHalfClosedTunnelTimesOut(t *testing.T) {
	for name, play := range map[string]func(client, app *pipe){
		"no data":       func(client, app *pipe) { client.CloseWrite(); io.ReadAll(app) },
		"data not read": func(client, app *pipe) { client.CloseWrite(); io.ReadAll(app); io.WriteString(app, "data") },
		"closed by app": func(client, app *pipe) { app.CloseWrite(); io.ReadAll(client) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := New(Settings{Port: 1, Bounds: bound.NewRecorder()})
				client, app, ended := heldBy(t, a)
				defer client.Close()
				defer app.Close()
				play(client, app)
				<-ended
				wantBounds(t, a, bound.TunnelTimeout)
			})
		})
	}
}

// After its input has ended, a command writes one byte every 3 s, as in docker exec.
func TestActiveHalfClosedTunnelStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Settings{Port: 1, Bounds: bound.NewRecorder()})
		client, app, ended := heldBy(t, a)
		client.CloseWrite()
		io.ReadAll(app)
		const bytes = 1000
		go func() {
			for range bytes {
				time.Sleep(halfClosedTimeout / 10)
				io.WriteString(app, "x")
			}
			app.Close()
		}()
		got, err := io.ReadAll(client)
		harness.NoError(t, err)
		harness.Equal(t, len(got), bytes, "bytes")
		<-ended
		wantBounds(t, a)
	})
}
