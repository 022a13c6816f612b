package http1client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"

// passage is a tunnel between a client and a user container.
type passage struct {
	client net.Conn // the peer of the client connection
	call   *testCall
	ended  chan struct{} // closed when Tunnel has returned
	in     int64
	out    int64
	moved  atomic.Int32 // calls to touch
}

// upgrade starts a user container that switches protocols and then calls serve. The client sends early
// after its request.
func upgrade(t *testing.T, early string, serve func(conn *harness.AppConn)) *passage {
	t.Helper()
	a := app(t, func(conn *harness.AppConn) {
		readHead(conn)
		serve(conn)
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	defer ln.Close()
	outer, err := net.Dial("tcp", ln.Addr().String())
	harness.NoError(t, err)
	inner, err := ln.Accept()
	harness.NoError(t, err)
	outer.SetDeadline(time.Now().Add(harness.Patience))
	h := &passage{client: outer, call: newCall("GET", "/"), ended: make(chan struct{})}
	h.call.request.Upgrade = true
	r, err := h.call.Do(a)
	if err != nil || r.Head.Status != 101 {
		t.Fatalf("got %v, want a 101", err)
	}
	go func() {
		defer close(h.ended)
		tunnel := r.newTunnel(inner, func() { h.moved.Add(1) })
		h.in, h.out = tunnel.copyBoth([]byte(early))
		tunnel.close()
	}()
	t.Cleanup(func() {
		outer.Close()
		harness.Receive(t, h.ended, "the tunnel's end")
		harness.Equal(t, idle(a), 0, "idle connections")
	})
	return h
}

// echo sends its input back.
func echo(conn *harness.AppConn) { io.Copy(conn, conn.In) }

func TestTunnelCopiesBothDirections(t *testing.T) {
	h := upgrade(t, "", func(conn *harness.AppConn) { conn.Send(switching); echo(conn) })
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
	go func() {
		h.client.Write(large)
		h.client.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(h.client)
	if !bytes.Equal(got, large) || err != nil {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(large))
	}
	<-h.ended
	if n := int64(len(large)); h.in != n || h.out != n || h.moved.Load() < 2 {
		t.Errorf("got %d in, %d out, %d touches, want %d, %d, 2 or more", h.in, h.out, h.moved.Load(), n, n)
	}
}

func TestTunnelForwardsEarlyBytes(t *testing.T) {
	h := upgrade(t, "early", func(conn *harness.AppConn) {
		conn.Send(switching + "behind")
		b := make([]byte, 5)
		io.ReadFull(conn.In, b)
		conn.Send(" " + string(b))
	})
	if got, err := io.ReadAll(h.client); string(got) != "behind early" || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, "behind early")
	}
}

func TestTunnelAppResetResetsClient(t *testing.T) {
	for name, end := range map[string]func(*harness.AppConn){
		"immediately": (*harness.AppConn).Reset,
		"after the client ended its side": func(conn *harness.AppConn) {
			io.ReadAll(conn.In)
			conn.Reset()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := upgrade(t, "", func(conn *harness.AppConn) { conn.Send(switching); end(conn) })
			h.client.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(h.client); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got %q, %v, want %v", got, err, syscall.ECONNRESET)
			}
		})
	}
}

// The kernel reports a reset only once.
func TestTunnelDetectsResetReportedByWrite(t *testing.T) {
	for name, reset := range map[string]bool{"reset": true, "end": false} {
		t.Run(name, func(t *testing.T) {
			s := harness.NewApp(t, func(conn *harness.AppConn) {
				if reset {
					conn.Reset()
				} else {
					conn.CloseWrite()
					conn.Hang()
				}
			})
			a := unknownApp(t, s.Port)
			nc, err := a.Dial(t.Context())
			harness.NoError(t, err)
			defer nc.Close()
			_, err = io.WriteString(nc, "GET / HTTP/1.1\r\n\r\n")
			for reset && err == nil {
				_, err = nc.Write([]byte("x"))
			}
			_, err = nc.Read(make([]byte, 1))
			harness.Equal(t, err, io.EOF, "reading")
			tunnel := tunnel{call: &Call{}, app: newClientConn(nc, a.buffers)}
			harness.Equal(t, tunnel.wasReset(tunnel.app), reset)
		})
	}
}

func TestTunnelForwardsHalfClose(t *testing.T) {
	t.Run("of the client", func(t *testing.T) {
		h := upgrade(t, "", func(conn *harness.AppConn) {
			conn.Send(switching)
			heard, _ := io.ReadAll(conn.In)
			conn.Send("heard " + string(heard))
		})
		io.WriteString(h.client, "all")
		h.client.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(h.client); string(got) != "heard all" || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, "heard all")
		}
	})
	t.Run("of the user container", func(t *testing.T) {
		heard := make(chan string, 1)
		h := upgrade(t, "", func(conn *harness.AppConn) {
			conn.Send(switching + "said all")
			conn.CloseWrite()
			b, _ := io.ReadAll(conn.In)
			heard <- string(b)
		})
		if got, err := io.ReadAll(h.client); string(got) != "said all" || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, "said all")
		}
		io.WriteString(h.client, "answer")
		h.client.(*net.TCPConn).CloseWrite()
		harness.Equal(t, <-heard, "answer")
	})
}

func TestTunnelResetClosesBothSides(t *testing.T) {
	t.Run("of the client", func(t *testing.T) {
		closed := make(chan struct{})
		h := upgrade(t, "", func(conn *harness.AppConn) { conn.Send(switching); conn.Hang(); close(closed) })
		h.client.(*net.TCPConn).SetLinger(0)
		h.client.Close()
		harness.Receive(t, closed, "the user container's side")
	})
	t.Run("of the user container", func(t *testing.T) {
		h := upgrade(t, "", func(conn *harness.AppConn) { conn.Send(switching); conn.Reset() })
		h.client.SetReadDeadline(time.Now().Add(harness.Patience))
		if _, err := io.ReadAll(h.client); harness.IsTimeout(err) {
			t.Errorf("got %v, want the end", err)
		}
	})
}

func TestAbortEndsTunnel(t *testing.T) {
	for name, before := range map[string]func(h *passage){
		"silent":      func(*passage) {},
		"half-closed": func(h *passage) { h.client.(*net.TCPConn).CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			h := upgrade(t, "", func(conn *harness.AppConn) {
				conn.Send(switching + "x")
				if name == "half-closed" {
					io.ReadAll(conn.In)
				}
				conn.Idle()
			})
			io.ReadFull(h.client, make([]byte, 1))
			before(h)
			h.call.Abort()
			harness.Receive(t, h.ended, "the tunnel's end")
		})
	}
}

// held starts a tunnel over connections in memory, for use with synctest. Only the test reads from its peers.
func held(t *testing.T) (client, app *pipe, ended chan struct{}) {
	t.Helper()
	return heldBy(t, New(Settings{Port: 1}))
}

// heldBy is like held, but uses the given App.
func heldBy(t *testing.T, a *App) (client, app *pipe, ended chan struct{}) {
	t.Helper()
	t.Cleanup(a.Close)
	inner, client := pipes()
	near, app := pipes()
	k := newCall("GET", "/")
	c := newClientConn(near, a.buffers)
	k.attach(c)
	r := &Response{call: &k.Call, app: a, conn: c}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		tunnel := r.newTunnel(inner, func() {})
		tunnel.copyBoth(nil)
		tunnel.close()
	}()
	return client, app, ended
}

func TestHalfClosedTunnelTimesOut(t *testing.T) {
	for name, play := range map[string]func(client, app *pipe){
		"both silent":                    func(client, app *pipe) { client.CloseWrite(); io.ReadAll(app) },
		"the user container's side ends": func(client, app *pipe) { app.CloseWrite(); io.ReadAll(client) },
		"unread input after the end": func(client, app *pipe) {
			client.CloseWrite()
			io.ReadAll(app)
			io.WriteString(app, "some bytes")
		},
		"unread input at the end of the other side": func(client, app *pipe) {
			io.WriteString(app, "some bytes")
			synctest.Wait()
			client.CloseWrite()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, app, ended := held(t)
				defer client.Close()
				defer app.Close()
				begin := time.Now()
				play(client, app)
				select {
				case <-ended:
				case <-time.After(10 * halfClosedTimeout):
					t.Fatalf("got a tunnel after %v, want it ended", time.Since(begin))
				}
				if took := time.Since(begin); took < halfClosedTimeout || took > 2*halfClosedTimeout {
					t.Errorf("got the end after %v, want it after %v", took, halfClosedTimeout)
				}
			})
		})
	}
}

func TestHalfClosedTunnelStaysOpenDuringTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, app, ended := held(t)
		client.CloseWrite()
		io.ReadAll(app)
		go func() {
			for range 10 {
				time.Sleep(halfClosedTimeout * 2 / 3)
				io.WriteString(app, "x")
			}
			app.Close()
		}()
		if got, err := io.ReadAll(client); string(got) != strings.Repeat("x", 10) || err != nil {
			t.Errorf("got %q, %v, want 10 bytes", got, err)
		}
		<-ended
	})
}

func TestIdleTunnelStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, app, ended := held(t)
		time.Sleep(24 * time.Hour)
		go io.WriteString(client, "x")
		b := make([]byte, 1)
		if n, err := app.Read(b); n != 1 || err != nil {
			t.Errorf("got %d, %v, want a byte", n, err)
		}
		client.Close()
		app.Close()
		<-ended
	})
}

// Most tunnels are WebSockets that are idle most of the time.
func TestIdleTunnelUsesLittleMemory(t *testing.T) {
	const tunnels = 50
	before := heapUsed()
	large := bytes.Repeat([]byte("x"), 200<<10+100) // the last piece is smaller than a buffer
	for range tunnels {
		h := upgrade(t, "", func(conn *harness.AppConn) {
			conn.Send(switching)
			io.ReadFull(conn.In, make([]byte, len(large)))
			conn.Write(large)
			conn.In.ReadByte() // until the client has disconnected
		})
		h.client.Write(large)
		if _, err := io.ReadFull(h.client, make([]byte, len(large))); err != nil {
			t.Fatal(err)
		}
	}
	// The memory includes an app, a call and a bufio.Reader of 4 KB for each tunnel.
	const limit = 36 << 10
	if got := (heapUsed() - before) / tunnels; got > limit {
		t.Errorf("got %d bytes for each tunnel, want at most %d", got, limit)
	}
}
