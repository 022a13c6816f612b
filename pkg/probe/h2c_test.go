package probe

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

// A webApp supports HTTP/1.1, h2c or both, with a separate status for each, and records the requests.
type webApp struct {
	port int32
	record
}

func newWebApp(t *testing.T, status1, status2 int) *webApp {
	t.Helper()
	app := &webApp{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PRI" { // if HTTP/2 is disabled, net/http passes the preface to the handler as a request
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		app.add(fmt.Sprintf("%s %s %s", r.Proto, r.URL, r.Header.Get("X-A")))
		if r.ProtoMajor == 2 {
			w.WriteHeader(status2)
			return
		}
		w.WriteHeader(status1)
	}))
	server.Config.ErrorLog = discardLog()
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(status1 != 0)
	server.Config.Protocols.SetUnencryptedHTTP2(status2 != 0)
	server.Start()
	t.Cleanup(server.Close)
	app.port = portOf(server.Listener.Addr())
	return app
}

func TestAutoDetectionSelectsProtocol(t *testing.T) {
	const h1, h2 = "HTTP/1.1 /h 1", "HTTP/2.0 /h 1"
	for _, v := range []struct {
		id               string
		auto             bool
		status1, status2 int // 0 means that the protocol is not supported
		word             observation.ReadinessWord
		code             int
		hits             []string // requests of two attempts
	}{
		{"off, h2c only", false, 0, 200, observation.WordGarbage, 0, nil},
		{"h2c only", true, 0, 200, "", 0, []string{h2, h2}},
		{"HTTP/1.1 only", true, 200, 0, "", 0, []string{h1, h1}},
		{"HTTP/1.1 passes, h2c does not", true, 200, 503, "", 0, []string{h2, h1, h1}},
		{"h2c passes, HTTP/1.1 does not", true, 503, 200, "", 0, []string{h2, h2}},
		{"neither passes", true, 503, 500, observation.WordStatus, 503, []string{h2, h1, h2, h1}},
		{"both pass", true, 200, 200, "", 0, []string{h2, h2}},
		{"- h2c only and not ready", true, 0, 503, observation.WordStatus, 503, []string{h2, h2}},
		{"- off, both", false, 200, 200, "", 0, []string{h1, h1}},
	} {
		t.Run(v.id, func(t *testing.T) {
			app := newWebApp(t, v.status1, v.status2)
			get, _ := newHTTPAttempt(&HTTPGetAction{
				Path: "/h", Port: Port{Number: app.port}, HTTPHeaders: []HTTPHeader{{"X-a", "1"}},
			}, v.auto)
			for range 2 {
				err := try(t, get, harness.Patience)
				if v.word == observation.WordGarbage && !passes(err) { // the app can close the connection before the response is parsed
					continue
				}
				wantOutcome(t, err, v.word, v.code)
			}
			harness.Equal(t, app.hits(), v.hits, "requests")
		})
	}
}

func TestDetectedProtocolIsResetAfterFailure(t *testing.T) {
	l := harness.Listen(t)
	address := l.Addr().String()
	get, _ := newHTTPAttempt(&HTTPGetAction{Port: Port{Number: portOf(l.Addr())}}, true)
	serve := func(l net.Listener, h2c bool) *http.Server {
		server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ErrorLog: discardLog(), Protocols: new(http.Protocols)}
		server.Protocols.SetHTTP1(!h2c)
		server.Protocols.SetUnencryptedHTTP2(h2c)
		go func() { _ = server.Serve(l) }()
		return server
	}

	server := serve(l, true)
	wantOutcome(t, try(t, get, harness.Patience), "", 0)
	_ = server.Close()
	server = serve(harness.ListenOn(t, address), false) // an app that only supports HTTP/1.1 replaces the first app
	defer server.Close()
	if err := try(t, get, harness.Patience); passes(err) {
		t.Error("first attempt: got a pass, want a failure")
	}
	wantOutcome(t, try(t, get, harness.Patience), "", 0)
}

func TestDetectionUsesHTTP1WithoutPrefaceResponse(t *testing.T) {
	over := make(chan struct{})
	app := newRawApp(t, "127.0.0.1:0", func(c *net.TCPConn, line string) {
		if strings.HasPrefix(line, "PRI ") {
			<-over
			return
		}
		_, _ = io.WriteString(c, httpStatus(200))
	})
	t.Cleanup(func() { close(over) }) // runs before the cleanup that waits for the app
	// The first attempt waits for half of its timeout before it uses HTTP/1.1.
	harness.ScaleTime(t, func(scale int) (inTime bool) {
		get, _ := newHTTPAttempt(&HTTPGetAction{Port: Port{Number: app.port}}, true)
		before := len(app.hits())
		for range 2 { // the second attempt does not send the preface again
			err := try(t, get, time.Duration(scale)*200*time.Millisecond)
			if failed(err).word == observation.WordTimeout {
				return false
			}
			wantOutcome(t, err, "", 0)
		}
		harness.Equal(t, len(app.hits())-before, 3, "requests")
		return true
	})
}

func TestSlowH2CAppGetsWholeTimeout(t *testing.T) {
	var delay atomic.Int64 // the delay of the response in nanoseconds
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(time.Duration(delay.Load())):
		case <-r.Context().Done():
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	get, _ := newHTTPAttempt(&HTTPGetAction{Port: Port{Number: portOf(server.Listener.Addr())}}, true)
	harness.ScaleTime(t, func(scale int) (inTime bool) {
		timeout := time.Duration(scale) * 500 * time.Millisecond
		delay.Store(int64(timeout * 6 / 10))
		err := try(t, get, timeout)
		if failed(err).word == observation.WordTimeout {
			return false
		}
		wantOutcome(t, err, "", 0)
		return true
	})
}

func TestProtocolFieldUsesPriorKnowledge(t *testing.T) {
	http2 := "HTTP2"
	app := newWebApp(t, 200, 200)
	get, _ := newHTTPAttempt(&HTTPGetAction{Path: "/h", Port: Port{Number: app.port}, Protocol: &http2}, false)
	wantOutcome(t, try(t, get, harness.Patience), "", 0)
	if got := app.hits(); len(got) != 1 || !strings.HasPrefix(got[0], "HTTP/2.0 ") {
		t.Errorf("got hits %q, want one over HTTP/2", got)
	}
}
