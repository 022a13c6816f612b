package http1client

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// second returns a user container whose first connection serves one request and then calls the given
// function. The other connections serve all requests.
func second(t *testing.T, serve func(conn *harness.AppConn)) (*App, *harness.App) {
	t.Helper()
	s := harness.NewApp(t, func(conn *harness.AppConn) {
		for turn := 0; ; turn++ {
			if conn.Index == 0 && turn == 1 {
				serve(conn)
				return
			}
			r := readHead(conn)
			if r == nil {
				return
			}
			if r.ContentLength > 0 {
				conn.Send("HTTP/1.1 100 Continue\r\n\r\n")
				io.Copy(io.Discard, r.Body)
			}
			conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
		}
	})
	a := unknownApp(t, s.Port)
	a.versions.setH1(true)
	newCall("GET", "/").do(a).want(t, 200, "hello")
	return a, s
}

func TestReplayDependsOnMethodAndBody(t *testing.T) {
	body := func(*testCall) io.Reader { return strings.NewReader("hello") }
	closes := func(conn *harness.AppConn) { readHead(conn) }
	resets := func(conn *harness.AppConn) { readHead(conn); conn.Reset() }
	for _, c := range []struct {
		name     string
		method   string
		body     func(k *testCall) io.Reader
		expects  bool
		serve    func(conn *harness.AppConn)
		replayed bool
		fault    transport.Fault
	}{
		{name: "GET, closed", method: "GET", serve: closes, replayed: true},
		{name: "GET, reset", method: "GET", serve: resets, replayed: true},
		{name: "HEAD", method: "HEAD", serve: closes, replayed: true},
		{name: "OPTIONS", method: "OPTIONS", serve: closes, replayed: true},
		{name: "TRACE", method: "TRACE", serve: closes, replayed: true},
		{name: "DELETE", method: "DELETE", serve: closes, replayed: true},
		{name: "PUT without a body", method: "PUT", serve: closes, replayed: true},
		{name: "PUT with requested body", method: "PUT", body: body, serve: closes, fault: transport.FaultReset},
		{name: "PUT with unsent body", method: "PUT", body: body, expects: true, serve: closes, replayed: true},
		{name: "PUT with permitted body", method: "PUT", body: body, expects: true, serve: func(conn *harness.AppConn) { readHead(conn); conn.Send("HTTP/1.1 100 Continue\r\n\r\n") }, fault: transport.FaultReset},
		{name: "POST without a body", method: "POST", serve: closes, fault: transport.FaultReset},
		{name: "POST", method: "POST", body: body, serve: closes, fault: transport.FaultReset},
		{name: "POST with unsent body", method: "POST", body: body, expects: true, serve: closes, fault: transport.FaultReset},
		{name: "PATCH", method: "PATCH", serve: closes, fault: transport.FaultReset},
		{name: "get in lower case", method: "get", serve: closes, fault: transport.FaultReset},
		{name: "one byte of a response", method: "GET", serve: func(conn *harness.AppConn) { readHead(conn); conn.Send("H") }, fault: transport.FaultReset},
		{name: "an informational response", method: "GET", serve: func(conn *harness.AppConn) { readHead(conn); conn.Send("HTTP/1.1 103 Early Hints\r\n\r\n") }, fault: transport.FaultReset},
		{name: "garbage", method: "GET", serve: func(conn *harness.AppConn) { readHead(conn); conn.Send("what?\r\n") }, fault: transport.FaultGarbage},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s := second(t, c.serve)
			k := newCall(c.method, "/")
			if c.body != nil {
				k.with(c.body(k), 5)
				k.Expect100 = c.expects
			}
			got := k.do(a)
			sends, connections := 1, 1
			if c.replayed {
				sends, connections = 2, 2
			}
			if k.sends != sends || s.Connections() != connections || transport.FaultOf(got.err) != c.fault {
				t.Errorf("got %d sends, %d connections, %v, want %d, %d, fault %d", k.sends, s.Connections(), got.err, sends, connections, c.fault)
			}
			if c.replayed && got.status != 200 {
				t.Errorf("got status %d, want 200", got.status)
			}
		})
	}
}

func TestNewConnectionIsNotReplayed(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) { readHead(conn) })
	k := newCall("GET", "/")
	if got := k.do(a); transport.FaultOf(got.err) != transport.FaultReset || k.sends != 1 {
		t.Errorf("got %v, %d sends, want a reset, 1", got.err, k.sends)
	}
}

func TestRequestIsReplayedOnce(t *testing.T) {
	s := harness.NewApp(t, func(conn *harness.AppConn) {
		if conn.Index == 0 {
			readHead(conn)
			conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
		}
		readHead(conn)
	})
	a := unknownApp(t, s.Port)
	newCall("GET", "/").do(a).want(t, 204, "")
	k := newCall("GET", "/")
	if got := k.do(a); transport.FaultOf(got.err) != transport.FaultReset || k.sends != 2 || s.Connections() != 2 {
		t.Errorf("got %v, %d sends, %d connections, want a reset, 2, 2", got.err, k.sends, s.Connections())
	}
}

func TestReplayUsesNewConnection(t *testing.T) {
	s := harness.NewApp(t, func(conn *harness.AppConn) {
		readHead(conn)
		conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
		readHead(conn)
	})
	a := unknownApp(t, s.Port)
	open := make([]*Response, 3)
	for i := range open { // open connections that the app closes when the next request arrives
		r, err := newCall("GET", "/").Do(a)
		harness.NoError(t, err)
		open[i] = r
	}
	for _, r := range open {
		r.Next()
		r.Close()
	}
	s.Listener.Close()
	k := newCall("GET", "/")
	got := k.do(a)
	if transport.FaultOf(got.err) != transport.FaultUnreachable || k.sends != 1 || idle(a) != 2 {
		t.Errorf("got %v, %d sends, %d idle, want unreachable, 1, 2", got.err, k.sends, idle(a))
	}
}

// mute is a connection that accepts some bytes of the first write and then fails.
type mute struct {
	*net.TCPConn
	takes int
}

func (m *mute) Write(p []byte) (int, error) {
	n, _ := m.TCPConn.Write(p[:m.takes])
	m.CloseWrite()
	return n, syscall.EPIPE
}

func TestUnwrittenRequestIsReplayedForEachMethod(t *testing.T) {
	for _, takes := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d bytes written", takes), func(t *testing.T) {
			s := harness.NewApp(t, func(conn *harness.AppConn) {
				r, body := readRequest(conn)
				if r == nil {
					return
				}
				conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)
			})
			a := unknownApp(t, s.Port)
			a.versions.setH1(true)
			nc, err := net.Dial("tcp", a.addresses[0])
			harness.NoError(t, err)
			a.put(slotted(a, &mute{nc.(*net.TCPConn), takes}), -1)
			k := newCall("POST", "/").with(strings.NewReader("hello"), 5)
			got := k.do(a)
			if takes == 0 {
				got.want(t, 200, "hello")
			} else if transport.FaultOf(got.err) != transport.FaultReset || k.sends != 1 {
				t.Errorf("got %v, %d sends, want a reset, 1", got.err, k.sends)
			}
		})
	}
}

func TestClosedIdleConnectionIsNotUsed(t *testing.T) {
	for name, leave := range map[string]func(conn *harness.AppConn){
		"closed":      func(conn *harness.AppConn) {},
		"half-closed": func(conn *harness.AppConn) { conn.CloseWrite(); conn.Hang() },
		"reset":       func(conn *harness.AppConn) { conn.Reset() },
		"a 408": func(conn *harness.AppConn) {
			conn.Send("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
			conn.Hang()
		},
		"a 408, then closed": func(conn *harness.AppConn) {
			conn.Send("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept := make(chan struct{})
			s := harness.NewApp(t, func(conn *harness.AppConn) {
				r, body := readRequest(conn)
				conn.Send("HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(r.Method+body)) + "\r\n\r\n" + r.Method + body)
				<-kept
				leave(conn)
			})
			a := unknownApp(t, s.Port)
			newCall("GET", "/").do(a).want(t, 200, "GET")
			close(kept)
			harness.Until(t, "the idle connection is not alive", func() bool { return !a.idle[0].alive() })
			k := newCall("POST", "/").with(strings.NewReader("hello"), 5)
			k.do(a).want(t, 200, "POSThello")
			if k.sends != 1 || s.Connections() != 2 {
				t.Errorf("got %d sends, %d connections, want 1, 2", k.sends, s.Connections())
			}
		})
	}
}

// A closingApp closes idle connections at random times. It counts the requests that it received.
type closingApp struct {
	mu   sync.Mutex
	seen map[string]int
}

func (a *closingApp) serve(conn *harness.AppConn) {
	for served := 0; ; served++ {
		wait := harness.Patience
		if served > 0 {
			wait = time.Duration(rand.IntN(1000)) * time.Microsecond
		}
		conn.SetReadDeadline(time.Now().Add(wait))
		if _, err := conn.In.Peek(1); err != nil {
			if rand.IntN(2) == 0 {
				conn.Reset()
			}
			return
		}
		conn.SetReadDeadline(time.Now().Add(harness.Patience))
		r, body := readRequest(conn)
		if r == nil {
			return
		}
		a.mu.Lock()
		a.seen[r.Method+body+r.URL.Path]++
		a.mu.Unlock()
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	}
}

// The most frequent cause of a 502 is a user container that closes idle connections. An idempotent
// request must not fail, and no other request may be sent twice.
func TestRandomClosesReplayOnlyIdempotentRequests(t *testing.T) {
	closing := &closingApp{seen: map[string]int{}}
	s := harness.NewApp(t, closing.serve)
	var mu sync.Mutex
	a := unknownApp(t, s.Port)
	const workers, times = 4, 500
	var all sync.WaitGroup
	var replays, lost int
	for w := range workers {
		all.Go(func() {
			for i := range times {
				id := fmt.Sprintf("/%d/%d", w, i)
				k := newCall("GET", id)
				switch i % 3 {
				case 1:
					k = newCall("POST", id)
				case 2:
					k = newCall("POST", id).with(strings.NewReader("body"), 4)
				}
				got := k.do(a)
				if got.err != nil && k.request.Method == "GET" {
					t.Errorf("got %v, want no error of a GET", got.err)
				}
				mu.Lock()
				replays += k.sends - 1
				if got.err != nil {
					lost++
				}
				mu.Unlock()
				if rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // real time: the app closes only idle connections
				}
			}
		})
	}
	all.Wait()
	closing.mu.Lock()
	defer closing.mu.Unlock()
	for request, n := range closing.seen {
		if n > 1 && strings.HasPrefix(request, "POST") {
			t.Errorf("got %s %d times, want once", request, n)
		}
	}
	t.Logf("%d requests on %d connections, %d replays, %d POSTs lost", workers*times, s.Connections(), replays, lost)
}
