package http1client

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Input that arrives before the request is written does not wake the reader later, so it must be
// detected before the write.
func TestUnsolicitedBytesReturnError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	defer ln.Close()
	a := New(Settings{Port: 1})
	defer a.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	harness.NoError(t, err)
	app, err := ln.Accept()
	harness.NoError(t, err)
	defer app.Close()
	io.WriteString(app, "220 hello\r\n")
	c := newClientConn(nc, a.buffers)
	harness.Until(t, "the unsolicited bytes arrive", func() bool { return !c.alive() })
	got := harness.Within(t, "an answer", func() outcome { return newCall("GET", "/").doOn(a, c) })
	harness.Equal(t, transport.FaultOf(got.err), transport.FaultGarbage, got.err)
}

func TestPartialWriteSendsCompleteHeader(t *testing.T) {
	const size = 8 << 20
	value := strings.Repeat("x", size) // more than the socket buffers hold while the peer does not read
	a := app(t, func(conn *harness.AppConn) {
		for range 2 {
			var n int
			for {
				line, err := conn.In.ReadSlice('\n')
				n += bytes.Count(line, []byte("x"))
				if len(line) == 2 {
					break
				} else if err != nil && len(line) == 0 {
					return
				}
			}
			if n == size {
				conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
			}
		}
		conn.Hang()
	})
	k := newCall("GET", "/").field("Large", value)
	for range 2 { // on a new connection and on a reused connection
		k.Begin()
		harness.Within(t, "an answer", func() outcome { return k.do(a) }).want(t, 204, "")
	}
	harness.Equal(t, idle(a), 1, "idle connections")
}

func TestUnwrittenRequestIsRepeated(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) {
		readRequest(conn)
		conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
		conn.Hang()
	})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // never responds and never closes a connection
	harness.NoError(t, err)
	defer silent.Close()
	nc, err := net.Dial("tcp", silent.Addr().String())
	harness.NoError(t, err)
	nc.(*net.TCPConn).CloseWrite()
	a.put(slotted(a, nc), -1)
	k := newCall("POST", "/")
	harness.Within(t, "an answer", func() outcome { return k.do(a) }).want(t, 204, "")
	harness.Equal(t, k.sends, 2, "attempts")
}

// heapUsed returns the bytes that are in use on the heap.
func heapUsed() int64 {
	var m runtime.MemStats
	for range 3 { // the content of a sync.Pool is freed by the second collection
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An engine keeps the memory of its call, including references to the last response.
func TestClosedResponseReleasesBuffers(t *testing.T) {
	const calls = 50
	before := heapUsed()
	all := make([]*testCall, calls)
	for i := range all {
		a := app(t, plain)
		all[i] = newCall("GET", "/")
		all[i].do(a).want(t, 200, "hello")
	}
	// The memory of each call includes an app and an open connection.
	const limit = 96 << 10
	if got := (heapUsed() - before) / calls; got > limit {
		t.Errorf("got %d bytes for each call, want at most %d", got, limit)
	}
	runtime.KeepAlive(all)
}
