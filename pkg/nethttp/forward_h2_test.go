package nethttp_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// It has no need of the rest: so does every gRPC server that ends a stream first.
func TestAnAppMayEndAnHTTP2StreamBeforeItsClient(t *testing.T) {
	for name, c := range map[string]struct {
		app    http.HandlerFunc
		status int
		body   string
		reason queue.Reason
	}{
		"without a body": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, 202, "", queue.OK},
		"at once":        {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "done") }, 200, "done", queue.OK},
		"in two pieces": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "one, ")
			http.NewResponseController(w).Flush()
			io.WriteString(w, "two")
		}, 200, "one, two", queue.OK},
		"with a refusal": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			http.NewResponseController(w).Flush()
			io.WriteString(w, "too much")
		}, 413, "too much", queue.OK},
		"with a reset": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502, "the app broke the connection off\n", queue.AppReset},
	} {
		t.Run(name+", HTTP/1.1", func(t *testing.T) {
			proxy := start(t, serve(t, false, true, c.app), nil)
			client := proxy.Dial()
			client.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			if m := client.Receive("POST"); m.Status() != c.status || m.Body != c.body || !m.Closes() {
				t.Errorf("got %d %q, close %v, want %d %q, close true", m.Status(), m.Body, m.Closes(), c.status, c.body)
			}
			client.WantEnd()
			if o := proxy.Observed(1)[0]; o.Reason != c.reason {
				t.Errorf("observed: got %v, want %v", o.Reason, c.reason)
			}
		})
		t.Run(name+", HTTP/2", func(t *testing.T) {
			proxy := start(t, serve(t, false, true, c.app), nil)
			rest, open := io.Pipe()
			defer open.Close()
			go io.WriteString(open, "hello")
			r, err := proxy.Client("HTTP/2").Post("http://"+proxy.Address+"/", "", rest)
			harness.NoError(t, err)
			body := make(chan string, 1) // which Go's own client reads for as long as the request lasts
			go func() { b, _ := io.ReadAll(r.Body); body <- string(b) }()
			if o := proxy.Observed(1)[0]; o.Reason != c.reason { // fails after a while
				t.Errorf("observed: got %v, want %v", o.Reason, c.reason)
			}
			if got := <-body; r.StatusCode != c.status || got != c.body {
				t.Errorf("got %d %q, want %d %q", r.StatusCode, got, c.status, c.body)
			}
		})
	}
}

// The request line is made of it.
func TestAMethodOverHTTP2ThatIsNoneReachesNoApp(t *testing.T) {
	for _, method := range []string{"GET /hidden HTTP/1.1", "GET /hidden", "GET ", "G\tT", "G:T", "GÉT"} {
		app := harness.NewApp(t, harness.Echo)
		proxy := start(t, app.Port, nil)
		c := proxy.Dial()
		block := ""
		for _, f := range [][2]string{{":method", method}, {":scheme", "http"}, {":authority", "a"}, {":path", "/x"}} {
			block += fmt.Sprintf("\x00%c%s%c%s", len(f[0]), f[0], len(f[1]), f[1]) // RFC 7541 section 6.2.2
		}
		c.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		c.Send(fmt.Sprintf("\x00\x00%c\x01\x05\x00\x00\x00\x01%s", len(block), block))
		if o := proxy.Observed(1)[0]; o.Reason != queue.BadRequest || o.Status != 400 {
			t.Errorf("%q: got %v, %d, want %v, 400", method, o.Reason, o.Status, queue.BadRequest)
		}
		harness.Equal(t, app.Requests(), nil, method, "the app")
	}
}

func TestNoHTTP2TrailerSpeaksInOurName(t *testing.T) {
	proxy := start(t, serve(t, false, true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Trailer"] = []string{"Proxy-Status, X-Sum"}
		io.WriteString(w, "ok")
		http.NewResponseController(w).Flush() // or it has a length, behind which HTTP/1.1 has no trailers
		w.Header()["Proxy-Status"] = []string{"queue-proxy; error=x, other; error=y"}
		w.Header()["X-Sum"] = []string{"7"}
	}), nil)
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		r, err := proxy.Client(protocol).Get("http://" + proxy.Address + "/")
		harness.NoError(t, err)
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		harness.Equal(t, fmt.Sprint(r.Trailer), "map[Proxy-Status:[other; error=y] X-Sum:[7]]", protocol, "(the other's Proxy-Status and X-Sum)")
	}
}
