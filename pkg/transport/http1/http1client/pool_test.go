package http1client

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestPoolKeepsMaxIdleConnections(t *testing.T) {
	s := harness.NewApp(t, answers("HTTP/1.1 204 No Content\r\n\r\n"))
	a := New(Settings{Port: s.Port, MaxIdle: 2})
	defer a.Close()
	var open []*Response
	for range 5 {
		r, err := newCall("GET", "/").Do(a)
		harness.NoError(t, err)
		r.Next()
		open = append(open, r)
	}
	for _, r := range open {
		r.Close()
	}
	harness.Equal(t, idle(a), 2, "idle connections")
	for range 5 {
		newCall("GET", "/").do(a).want(t, 204, "")
	}
	harness.Equal(t, s.Connections(), 5, "connections")
}

func TestPoolReturnsLastUsedConnection(t *testing.T) {
	a := New(Settings{Port: 1})
	defer a.Close()
	first, _ := pipes()
	last, _ := pipes()
	a.put(newClientConn(first, a.buffers), -1)
	a.put(newClientConn(last, a.buffers), -1)
	if c := a.idle[len(a.idle)-1].Conn; c != last {
		t.Error("got the first connection, want the last")
	}
}

func TestPoolClosesUnusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Settings{Port: 1})
		defer a.Close()
		put := func(keepAlive time.Duration) (closed chan struct{}) {
			near, far := pipes()
			closed = make(chan struct{})
			go func() {
				far.Read(make([]byte, 1))
				close(closed)
			}()
			a.put(newClientConn(near, a.buffers), keepAlive)
			return closed
		}
		for range 2 { // the second round checks that an idle connection starts the timer again
			begin := time.Now()
			short, long := put(5*time.Second), put(-1)
			<-short
			<-long
			if idle(a) != 0 || time.Since(begin) > 2*idleTimeout {
				t.Errorf("got %d idle connections after %v, want 0 within %v", idle(a), time.Since(begin), 2*idleTimeout)
			}
		}
		first := put(-1)
		time.Sleep(idleTimeout / 2)
		second := put(-1)
		<-first
		harness.Equal(t, idle(a), 1, "idle connections", "(the younger one left)")
		<-second
		late := put(-1)
		a.Close()
		<-late
	})
}

func TestPoolSkipsExpiredConnection(t *testing.T) {
	s := harness.NewApp(t, answers("HTTP/1.1 204 No Content\r\n\r\n"))
	a := unknownApp(t, s.Port)
	newCall("GET", "/").do(a).want(t, 204, "")
	a.idle[0].expires = time.Now()
	k := newCall("POST", "/")
	k.do(a).want(t, 204, "")
	if s.Connections() != 2 || k.sends != 1 || idle(a) != 1 {
		t.Errorf("got %d connections, %d sends, %d idle, want 2, 1, 1", s.Connections(), k.sends, idle(a))
	}
}

func TestClosedPoolKeepsNoConnections(t *testing.T) {
	a := app(t, answers("HTTP/1.1 204 No Content\r\n\r\n"))
	r, err := newCall("GET", "/").Do(a)
	harness.NoError(t, err)
	newCall("GET", "/").do(a).want(t, 204, "")
	a.Close()
	r.Next()
	r.Close()
	harness.Equal(t, idle(a), 0, "idle connections")
}

func TestDialUsesIPv6IfIPv4IsRefused(t *testing.T) {
	port, _ := harness.ClosedPort(t) // keeps other processes from listening on the port
	harness.ServeApp(t, harness.ListenOn(t, net.JoinHostPort("::1", strconv.Itoa(port))), func(conn *harness.AppConn) {
		readRequest(conn)
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nIPv6")
	})
	newCall("GET", "/").do(unknownApp(t, port)).want(t, 200, "IPv6")
}

func TestDialPrefersIPv4(t *testing.T) {
	four := func(conn *harness.AppConn) {
		readRequest(conn)
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nIPv4")
	}
	s := harness.NewApp(t, four)
	harness.ServeApp(t, harness.ListenOn(t, net.JoinHostPort("::1", strconv.Itoa(s.Port))), func(conn *harness.AppConn) {})
	newCall("GET", "/").do(unknownApp(t, s.Port)).want(t, 200, "IPv4")
}

func TestDialRetriesRefusedConnection(t *testing.T) {
	port, open := harness.ClosedPort(t)
	a := New(Settings{Port: port, ConnectRetry: harness.Patience})
	defer a.Close()
	a.versions.setH1(true)
	got := make(chan outcome, 1)
	k := newCall("POST", "/").with(strings.NewReader("hello"), 5)
	go func() { got <- k.do(a) }()
	harness.Until(t, "a dial that has failed", func() bool { h1, _ := a.versions.stored(); return h1 == unknown })
	harness.ServeApp(t, open(), func(conn *harness.AppConn) {
		_, body := readRequest(conn)
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)
	})
	(<-got).want(t, 200, "hello")
	harness.Equal(t, k.sends, 1, "sends")
}

func TestDialStopsAfterConnectRetry(t *testing.T) {
	for _, retry := range []time.Duration{0, 50 * time.Millisecond} {
		port, _ := harness.ClosedPort(t)
		a := New(Settings{Port: port, ConnectRetry: retry})
		begin := time.Now()
		k := newCall("GET", "/")
		got := harness.Within(t, "a dial", func() outcome { return k.do(a) })
		if transport.FaultOf(got.err) != transport.FaultUnreachable || k.sends != 0 || !k.bodyUntouched() {
			t.Errorf("got %v, %d sends, want unreachable, 0", got.err, k.sends)
		}
		if took := time.Since(begin); took < retry-dialAgain {
			t.Errorf("got an error after %v, want retries for %v", took, retry)
		}
		a.Close()
	}
}

// A listener with a full backlog does not respond. Abort must still end the dial.
func TestAbortEndsBlockedDial(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	harness.NoError(t, err)
	defer syscall.Close(fd)
	harness.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	harness.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	harness.NoError(t, err)
	a := New(Settings{Port: name.(*syscall.SockaddrInet4).Port})
	defer a.Close()
	for { // fill the backlog of the listener
		c, err := net.DialTimeout("tcp", a.addresses[0], time.Second)
		if err != nil {
			break
		}
		defer c.Close()
	}
	k := newCall("GET", "/")
	got := make(chan outcome, 1)
	go func() { got <- k.do(a) }()
	harness.Until(t, "a dial", func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.cancel != nil })
	k.Abort()
	if got := harness.Within(t, "an aborted dial", func() outcome { return <-got }); transport.FaultOf(got.err) != transport.FaultAborted {
		t.Errorf("got %v, want aborted", got.err)
	}
}

// The buffer of a connection is returned once, even if close is called twice.
func TestBuffersAreReturnedOnce(t *testing.T) {
	a := New(Settings{Port: 1})
	defer a.Close()
	near, far := pipes()
	c := newClientConn(near, a.buffers)
	go func() { io.WriteString(far, "x"); far.Close() }()
	harness.NoError(t, c.fill(bufferSize))
	c.close()
	c.close()
	if one, two := a.buffers.Get(smallSize), a.buffers.Get(smallSize); one == two {
		t.Error("got the same buffer twice, want two")
	}
}

// Short responses use small buffers, and long responses are read in large parts.
func TestBufferSizeFollowsResponseSize(t *testing.T) {
	near, far := pipes()
	defer far.Close()
	c := newClientConn(near, New(Settings{Port: 1}).buffers)
	defer c.close()
	fill := func(n int) string {
		t.Helper()
		go io.WriteString(far, strings.Repeat("x", n))
		harness.NoError(t, c.fill(bufferSize))
		return fmt.Sprintf("%d of %d", c.w, len(c.buf))
	}
	for _, step := range []struct {
		sent, consumed int
		want           string
	}{
		{1000, 1000, "1000 of 4096"},
		{4096, 96, "4096 of 4096"},
		{9000, 13000, "13000 of 65536"}, // the length includes bytes that were already buffered
		{1000, 1000, "1000 of 65536"},
	} {
		harness.Equal(t, fill(step.sent), step.want, step.sent, "bytes")
		c.r += step.consumed
	}
	c.park()
	harness.Equal(t, fill(10), "10 of 4096", "after release of the buffer")
}
