package http1client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// settings is the first frame of an HTTP/2 server. It sets SETTINGS_MAX_CONCURRENT_STREAMS to 100.
const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"

func TestHTTP2OnlyAppIsDetectedBeforeBodyIsRead(t *testing.T) {
	for name, serve := range map[string]func(conn *harness.AppConn){
		"immediately": func(conn *harness.AppConn) { conn.Send(settings); conn.Hang() },
		"after the request header": func(conn *harness.AppConn) {
			readHead(conn)
			conn.Send(settings + "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01")
		},
		"in two pieces": func(conn *harness.AppConn) {
			conn.Send(settings[:4])
			readHead(conn)
			conn.Send(settings[4:])
			conn.Hang()
		},
	} {
		for _, expects := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				harness.ScaleTime(t, func(int) bool { return onlyH2(t, serve, expects) })
			})
		}
	}
}

// onlyH2 returns false if the app did not respond before the timeout for sending the body.
func onlyH2(t *testing.T, serve func(conn *harness.AppConn), expects bool) (inTime bool) {
	a := unknownApp(t, harness.NewApp(t, serve).Port)
	k := newCall("POST", "/")
	k.Expect100 = expects
	timeout := listenTimeout
	if expects {
		timeout = rewrite.ContinueTimeout
	}
	begin := time.Now()
	late := make(chan struct{}, 1)
	k.with(readerFunc(func([]byte) (int, error) {
		if took := time.Since(begin); took < timeout {
			t.Errorf("got a read of the body after %v, want none before %v", took, timeout)
		}
		late <- struct{}{}
		return 0, io.EOF
	}), 5)
	got := k.do(a)
	if len(late) > 0 {
		return false
	}
	if transport.FaultOf(got.err) != transport.FaultGarbage || !errors.Is(got.err, errHTTP2Response) || !a.OnlyH2() || !k.bodyUntouched() {
		t.Errorf("got %v, only HTTP/2 %v, body untouched %v, want %v, true, true", got.err, a.OnlyH2(), k.bodyUntouched(), errHTTP2Response)
	}
	if supported, err := a.supportsH2(t.Context(), false); !supported || err != nil {
		t.Errorf("got %v, %v, want HTTP/2 without a detection", supported, err)
	}
	return true
}

func TestInvalidResponseKeepsProtocolUnknown(t *testing.T) {
	for _, say := range []string{
		"\x00",
		"\x00\x00\x06\x04\x00\x00\x00\x00",
		"\x00\x00\x06\x04\x01\x00\x00\x00\x00",     // an acknowledgement
		"\x00\x00\x06\x04\x00\x00\x00\x00\x01",     // a stream other than 0
		"\x00\x00\x06\x05\x00\x00\x00\x00\x00",     // another type
		"\x15\x03\x01\x00\x02\x02\x46\x00\x00\x00", // a TLS alert
	} {
		a := unknownApp(t, harness.NewApp(t, func(conn *harness.AppConn) { readHead(conn); conn.Send(say) }).Port)
		got := newCall("GET", "/").do(a)
		if h1, h2 := a.versions.stored(); transport.FaultOf(got.err) != transport.FaultGarbage || h1 != unknown || h2 != unknown {
			t.Errorf("got %v, %d, %d after %q, want garbage and unknown protocols", got.err, h1, h2, say)
		}
	}
}

func TestNewConnectionCloseReportsSilent(t *testing.T) {
	for _, known := range []bool{false, true} {
		a := unknownApp(t, harness.NewApp(t, func(conn *harness.AppConn) { readHead(conn) }).Port)
		if known {
			a.versions.setH1(true)
		}
		var e *transport.Error
		if err := newCall("GET", "/").do(a).err; !errors.As(err, &e) || e.Fault != transport.FaultReset || e.Silent == known {
			t.Errorf("got %+v, want a reset, silent %v", e, !known)
		}
	}
}

func TestHTTP2IsDetectedOnce(t *testing.T) {
	for _, c := range []struct {
		name      string
		serve     func(conn *harness.AppConn)
		supported bool
		only      bool // HTTP/1.1 is known not to be supported
		prefaces  int  // number of connections with the HTTP/2 preface
	}{
		{"HTTP/2 after the preface", func(conn *harness.AppConn) {
			if r := readHead(conn); r != nil {
				conn.Send(settings)
				conn.Hang()
			}
		}, true, false, 1},
		{"HTTP/2", func(conn *harness.AppConn) { conn.Send(settings); conn.Hang() }, true, true, 0},
		{"HTTP/2 in pieces", func(conn *harness.AppConn) {
			io.Copy(conn, iotest.OneByteReader(strings.NewReader(settings)))
			conn.Hang()
		}, true, true, 0},
		{"400", func(conn *harness.AppConn) {
			readHead(conn)
			conn.Send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		}, false, false, 0},
		{"505, still open", answersOnce("HTTP/1.1 505 No\r\nContent-Length: 0\r\n\r\n"), false, false, 0},
		{"closes", func(conn *harness.AppConn) {}, false, false, 1},
		{"resets", func(conn *harness.AppConn) { readHead(conn); conn.Reset() }, false, false, 1},
		{"one byte", func(conn *harness.AppConn) { readHead(conn); conn.Send("\x00") }, false, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := harness.NewApp(t, c.serve)
			a := unknownApp(t, s.Port)
			for range 2 {
				if supported, err := a.supportsH2(t.Context(), false); supported != c.supported || err != nil {
					t.Errorf("got %v, %v, want %v", supported, err, c.supported)
				}
			}
			harness.Equal(t, a.OnlyH2(), c.only, "only HTTP/2")
			harness.Equal(t, s.Connections(), c.prefaces, "connections with the preface")
		})
	}
}

// Requests that arrive while the first detection ends use its result.
func TestDetectionIsNotRepeated(t *testing.T) {
	for range 100 {
		s := harness.NewApp(t, func(conn *harness.AppConn) {
			if r := readHead(conn); r != nil {
				conn.Send(settings)
				conn.Hang()
			}
		})
		a := unknownApp(t, s.Port)
		var all sync.WaitGroup
		var detected atomic.Bool
		for !detected.Load() {
			all.Go(func() {
				if supported, err := a.supportsH2(t.Context(), false); !supported || err != nil {
					t.Errorf("got %v, %v, want HTTP/2", supported, err)
				}
				detected.Store(true)
			})
			time.Sleep(20 * time.Microsecond) // Without a pause, the callers take the whole CPU time of the application.
		}
		all.Wait()
		harness.Equal(t, s.Connections(), 1, "connections with the preface")
	}
}

// A canceled request does not start a detection.
func TestDetectionSkipsCanceledRequest(t *testing.T) {
	a := unknownApp(t, harness.NewApp(t, (*harness.AppConn).Hang).Port)
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if _, err := a.supportsH2(ctx, false); !errors.Is(err, over) {
		t.Errorf("got %v, want %v", err, over)
	}
	a.versions.mu.Lock()
	defer a.versions.mu.Unlock()
	if a.versions.detection != nil {
		t.Error("got a running detection, want none")
	}
}

func TestOnlyH2RequiresHTTP2Response(t *testing.T) {
	speaking := func(h1, h2 func(conn *harness.AppConn)) func(conn *harness.AppConn) {
		return func(conn *harness.AppConn) {
			if r := readHead(conn); r != nil && r.Method == "PRI" {
				h2(conn)
			} else {
				h1(conn)
			}
		}
	}
	yesH1 := func(conn *harness.AppConn) { conn.Send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") }
	yesH2 := func(conn *harness.AppConn) {
		conn.Send(settings + "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x01\x00\x00") // SETTINGS and WINDOW_UPDATE frames
		io.CopyN(io.Discard, conn.In, int64(len("SM\r\n\r\n")+9+17))
		conn.Send("\x00\x00\x08\x06\x01\x00\x00\x00\x00alive???")
		conn.Hang()
	}
	dyingH2 := func(conn *harness.AppConn) {
		conn.Send(settings)
		time.Sleep(10 * time.Millisecond) // real time: the HTTP/2 connection ends after the HTTP/1.1 connections
	}
	closes := func(conn *harness.AppConn) {}
	for name, c := range map[string]struct {
		serve       func(conn *harness.AppConn)
		only        bool
		h1          answer
		connections int
	}{
		"only HTTP/2, closes":         {speaking(closes, yesH2), true, no, 3},
		"only HTTP/2, resets":         {speaking((*harness.AppConn).Reset, yesH2), true, no, 3},
		"only HTTP/2, sends SETTINGS": {speaking(yesH2, yesH2), true, no, 0},
		"both":                        {speaking(yesH1, yesH2), false, yes, 0},
		"terminating pod":             {speaking(closes, dyingH2), false, unknown, 5},
		"HTTP/1.1":                    {speaking(yesH1, yesH1), false, yes, 0},
		"neither":                     {closes, false, unknown, 1},
		"HTTP/2, too busy to respond": {speaking((*harness.AppConn).Hang, yesH2), false, unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.NewApp(t, c.serve)
			a := unknownApp(t, s.Port)
			for range 2 {
				only, err := a.supportsOnlyH2(t.Context())
				if h1, _ := a.versions.stored(); only != c.only || err != nil || h1 != c.h1 {
					t.Errorf("got %v, %v, HTTP/1.1 %d, want %v, HTTP/1.1 %d", only, err, h1, c.only, c.h1)
				}
			}
			harness.Equal(t, s.Connections(), c.connections, "connections")
		})
	}
}

// The HTTP/2 connections can stay open while the app accepts no other connection.
func TestClosedConnectionsAreNotDetectedAsHTTP2Only(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	var others atomic.Int32
	s := harness.ServeApp(t, ln, func(conn *harness.AppConn) {
		if r := readHead(conn); r == nil || r.Method != "PRI" {
			if others.Add(1) == 3 { // while there is an HTTP/2 connection
				ln.Close()
			}
			return
		}
		conn.Send(settings)
		io.CopyN(io.Discard, conn.In, int64(len("SM\r\n\r\n")+9+17))
		conn.Send("\x00\x00\x08\x06\x01\x00\x00\x00\x00alive???")
		conn.Hang()
	})
	a := unknownApp(t, s.Port)
	if only, err := a.supportsOnlyH2(t.Context()); only || err != nil {
		t.Errorf("got %v, %v, want false, because the app may also support HTTP/1.1", only, err)
	}
	if h1, _ := a.versions.stored(); h1 != unknown {
		t.Errorf("got HTTP/1.1 %d, want it unknown", h1)
	}
}

// A missing response may also mean that the user container is starting.
func TestDetectionStoresTimeoutOnlyForHTTP1(t *testing.T) {
	for _, c := range []struct {
		name     string
		h1       bool
		remember bool
	}{
		{"earlier HTTP/1.1 response", true, true},
		{"no earlier response", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			s := harness.NewApp(t, func(conn *harness.AppConn) {
				if asked.Add(1) > 1 {
					conn.Send(settings)
				}
				conn.Hang()
			})
			a := unknownApp(t, s.Port)
			if c.h1 {
				a.versions.setH1(true)
			}
			if supported, err := a.supportsH2(t.Context(), false); supported || err != nil {
				t.Errorf("got %v, %v, want not HTTP/2", supported, err)
			}
			if supported, err := a.supportsH2(t.Context(), false); supported == c.remember || err != nil {
				t.Errorf("got %v, %v, want the result stored: %v", supported, err, c.remember)
			}
		})
	}
}

func TestDialErrorResetsDetectedProtocol(t *testing.T) {
	s := harness.NewApp(t, func(conn *harness.AppConn) { conn.Send(settings); conn.Hang() })
	a := unknownApp(t, s.Port)
	a.supportsH2(t.Context(), false)
	a.versions.setH1(false)
	s.Listener.Close()
	if got := newCall("GET", "/").do(a); transport.FaultOf(got.err) != transport.FaultUnreachable {
		t.Fatalf("got %v, want unreachable", got.err)
	}
	if a.OnlyH2() {
		t.Error("got only HTTP/2, want an unknown protocol")
	}
	if _, err := a.supportsH2(t.Context(), false); transport.FaultOf(err) != transport.FaultUnreachable {
		t.Errorf("got %v, want unreachable", err)
	}
}

// Previously, HTTP/2 was considered doubtful after the error, also for the next process that listens on the port.
func TestDialErrorDuringDetectionKeepsProtocolUnknown(t *testing.T) {
	ln := harness.Listen(t)
	s := harness.ServeApp(t, ln, func(conn *harness.AppConn) {
		readHead(conn)
		ln.Close()
		conn.Send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
	})
	a := unknownApp(t, s.Port)
	if _, err := a.supportsH2(t.Context(), false); transport.FaultOf(err) != transport.FaultUnreachable {
		t.Errorf("got %v, want unreachable", err)
	}
	h1, h2 := a.versions.stored()
	harness.Equal(t, h1, unknown, "HTTP/1.1")
	harness.Equal(t, h2, unknown, "HTTP/2")
}

func TestDetectionEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("the client has gone")
	a := unknownApp(t, harness.NewApp(t, func(conn *harness.AppConn) { readHead(conn); cancel(left); conn.Hang() }).Port)
	supported, err := a.supportsH2(ctx, false)
	if supported || !errors.Is(err, left) {
		t.Errorf("got %v, %v, want %v", supported, err, left)
	}
	if _, h2 := a.versions.stored(); h2 != unknown {
		t.Error("got a stored result, want none")
	}
}

// netHTTP starts a net/http server. It returns an App for the server and the number of requests that the handler has
// received.
func netHTTP(t *testing.T, http1, http2 bool) (*App, *atomic.Int32) {
	t.Helper()
	var handled atomic.Int32
	ln := harness.Listen(t)
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Add(1) })}
	s.Protocols.SetHTTP1(http1)
	s.Protocols.SetUnencryptedHTTP2(http2)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return unknownApp(t, ln.Addr().(*net.TCPAddr).Port), &handled
}

func TestDetectionDoesNotCallNetHTTPHandler(t *testing.T) {
	for name, c := range map[string]struct{ http1, http2, supported, only bool }{
		"HTTP/1": {http1: true},
		"HTTP/2": {http2: true, supported: true, only: true},
		"both":   {http1: true, http2: true, supported: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, handled := netHTTP(t, c.http1, c.http2)
			only, err := a.supportsOnlyH2(t.Context())
			harness.NoError(t, err)
			a.Forget()
			supported, err := a.supportsH2(t.Context(), false)
			harness.NoError(t, err)
			if n := handled.Load(); supported != c.supported || only != c.only || n != 0 {
				t.Errorf("got HTTP/2 %v, only HTTP/2 %v, %d requests, want %v, %v, 0", supported, only, n, c.supported, c.only)
			}
		})
	}
}

// An application can close its first connections without a response, for example while it starts.
func TestDetectionDuringStartDoesNotCallHandler(t *testing.T) {
	for closed := range int32(12) {
		t.Run(fmt.Sprint(closed, " closed"), func(t *testing.T) {
			t.Parallel()
			var ended, handled atomic.Int32
			s := harness.NewApp(t, func(conn *harness.AppConn) {
				if ended.Add(1) <= closed {
					return
				}
				if r := readHead(conn); r == nil {
					conn.Send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
				} else {
					handled.Add(1)
				}
			})
			a := unknownApp(t, s.Port)
			for range 6 {
				if supported, err := a.supportsH2(t.Context(), false); supported || err != nil {
					t.Fatalf("got %v, %v, want false", supported, err)
				}
			}
			harness.Equal(t, handled.Load(), int32(0), "requests that reached the handler")
		})
	}
}

// A grpc-go server can close the connection before it has sent its SETTINGS frame.
func TestHTTP2IsDetectedAfterClosedConnection(t *testing.T) {
	for closed := range int32(4) {
		t.Run(fmt.Sprint(closed, " closed"), func(t *testing.T) {
			t.Parallel()
			var ended atomic.Int32
			s := harness.NewApp(t, func(conn *harness.AppConn) {
				r := readHead(conn)
				if r == nil && ended.Add(1) <= closed {
					return
				}
				conn.Send(settings)
			})
			a := unknownApp(t, s.Port)
			if supported, err := a.supportsH2(t.Context(), false); !supported || err != nil {
				t.Errorf("got %v, %v, want true", supported, err)
			}
		})
	}
}

// A server whose handler looks for the preface, such as package h2c, is not recognized.
func TestPrefaceIsSentIfRequestNeedsHTTP2(t *testing.T) {
	app := func(conn *harness.AppConn) {
		if r := readHead(conn); r == nil {
			conn.Send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		} else if r.Method == "PRI" {
			conn.Send(settings)
			conn.Hang()
		}
	}
	ln := harness.Listen(t)
	s := harness.ServeApp(t, ln, app)
	a := unknownApp(t, s.Port)
	a.versions.setH1(true)
	a.versions.setH2(doubtful)
	for _, needed := range []bool{false, true, false} {
		_, h2 := a.versions.stored()
		want := needed || h2 == yes
		if supported, err := a.supportsH2(t.Context(), needed); supported != want || err != nil {
			t.Errorf("needed %v: got %v, %v, want %v", needed, supported, err, want)
		}
	}
	for contentType, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/connect+json": true,
		"application/grpc-web": false, "application/json": false, "": false,
	} {
		harness.Equal(t, needsH2(contentType), want, contentType)
	}
}

// stored reports whether the user container supports HTTP/1.1 and HTTP/2.
func (v *versions) stored() (h1, h2 answer) { return v.http1(), answer(v.h2.Load()) }
