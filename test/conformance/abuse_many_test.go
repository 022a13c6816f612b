package conformance

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// The tests in this file open many connections without a complete request (docs/bounds.md,
// "Connections" and "Internal ports").

// A connectionGroup is a list of open connections.
type connectionGroup []*net.TCPConn

// newConnectionGroup opens n connections and calls the function begin for each of them.
func newConnectionGroup(t *testing.T, addr string, n int, begin func(net.Conn) error) connectionGroup {
	t.Helper()
	h := make(connectionGroup, n)
	t.Cleanup(h.close)
	const at = 8 // number of goroutines that open connections
	var all sync.WaitGroup
	for k := range at {
		all.Go(func() {
			for i := k; i < n; i += at {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				h[i] = c.(*net.TCPConn)
				if err := begin(c); err != nil && !ended(err) {
					t.Errorf("connection %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	return h
}

func (h connectionGroup) close() {
	for _, c := range h {
		if c != nil {
			c.Close()
		}
	}
}

// open returns the number of connections that the server has not closed. It discards received
// data.
func (h connectionGroup) open() (n int) {
	b := make([]byte, 64<<10)
	for _, c := range h {
		if c == nil {
			continue
		}
		raw, err := c.SyscallConn()
		if err != nil {
			continue
		}
		raw.Control(func(fd uintptr) {
			for {
				got, _, err := syscall.Recvfrom(int(fd), b, syscall.MSG_DONTWAIT)
				if errors.Is(err, syscall.EAGAIN) {
					n++
				}
				if err != nil || got == 0 {
					return
				}
			}
		})
	}
	return n
}

func sends(text string) func(net.Conn) error {
	return func(c net.Conn) error {
		_, err := io.WriteString(c, text)
		return err
	}
}

// checksRecord returns a function that completes a TLS handshake with the given ALPN protocol, sends
// first and waits for a response, and then sends the beginning of a record. first is a request or the
// preface.
func checksRecord(protocol, first string) func(net.Conn) error {
	return func(c net.Conn) error {
		c.SetDeadline(time.Now().Add(patience))
		encrypted := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
		if err := awaitAnswer(first)(encrypted); err != nil {
			return err
		}
		return sends("\x17\x03\x03\x40\x00" + strings.Repeat("x", 100))(c)
	}
}

// awaitAnswer returns a function that sends text and waits for the beginning of a response.
func awaitAnswer(text string) func(net.Conn) error {
	return func(c net.Conn) error {
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, text)
		_, err := c.Read(make([]byte, 4096))
		return err
	}
}

// Each group has 8000 connections, or 2000 if connections take more time. The limit on client
// connections depends on the limit on open files, which must be at least 20,000.
var connectionGroups = []struct {
	name   string
	tls    bool
	n      int
	each   int64 // maximum memory of a connection in bytes
	begin  func(net.Conn) error
	stays  bool // the server keeps the connections open, because they are idle and no timeout applies
	deaths int  // maximum lifetime as a multiple of HEADER_TIMEOUT; 0 if stays is true
}{
	{"without input", false, 8000, 8 << 10, sends(""), false, 2},
	{"with an incomplete header section", false, 8000, 10 << 10, sends("GET / HTTP/1.1\r\nHost: a.te"), false, 2},
	{"between requests", false, 8000, 8 << 10, awaitAnswer(request("GET", "/now")), true, 0},
	{"with an incomplete HTTP/2 preface", false, 2000, 10 << 10, sends("PRI * HTTP/2.0\r\n\r"), false, 2},
	{"with HTTP/2, without streams", false, 2000, 48 << 10, sends(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"), true, 0},
	{"with HTTP/2 and an incomplete header section", false, 2000, 48 << 10, sends(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x40\x00\x01\x01\x00\x00\x00\x01\x82"), false, 2},
	{"with TLS, without input", true, 8000, 24 << 10, sends(""), false, 2},
	{"with an incomplete TLS handshake", true, 2000, 32 << 10, sends("\x16\x03\x01\x02\x00\x01\x00\x01\xfc"), false, 2},
	{"with an incomplete TLS record", true, 2000, 48 << 10, checksRecord("http/1.1", request("GET", "/now")), false, 2},
	{"with HTTP/2 and an incomplete TLS record", true, 2000, 64 << 10, checksRecord("h2", http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), false, 2},
	{"with invalid TLS input", true, 2000, 24 << 10, sends("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"), false, 1},
}

func TestManyIdleConnectionsStayWithinLimits(t *testing.T) {
	const headTime = 2 * time.Second
	v := newVictim(t, 0, "both", "HEADER_TIMEOUT="+headTime.String())
	for _, row := range connectionGroups {
		name := fmt.Sprintf("%d connections %s", row.n, row.name)
		v.runAttack(name, row.each*int64(row.n), false, func() {
			addr := v.addr()
			if row.tls {
				addr = v.tlsAddr()
			}
			h := newConnectionGroup(t, addr, row.n, row.begin)
			if row.stays {
				time.Sleep(100 * time.Millisecond) // allow time for the server to close connections
				if n := h.open(); n != row.n {
					t.Errorf("%s: %d idle connections are open, want all", name, n)
				}
				h.close()
				return
			}
			end := time.Now().Add(time.Duration(row.deaths)*headTime + slack)
			for n := h.open(); n > 0; n = h.open() {
				if time.Now().After(end) {
					t.Errorf("%s: %d connections are still open, want 0", name, n)
					break
				}
				time.Sleep(100 * time.Millisecond) // limit the system calls, because open needs one for each connection
			}
			h.close()
		})
	}
}

// Each internal port has at most 256 connections and continues to serve new clients.
func TestInternalPortsServeClientsDuringFlood(t *testing.T) {
	const kept = 256
	p := newProxy(t)
	p.sample()
	p.start("METRICS_NAMES=default")
	for name, row := range map[string]struct {
		port   int
		path   string
		status int
	}{
		"hooks":      {p.port.admin, "/", 404},
		"statistics": {p.port.autoscaler, "/metrics", 200},
		"metrics":    {p.port.metrics, "/metrics", 200},
		"status":     {p.port.status, "/status.json", 200},
	} {
		for what, text := range map[string]string{
			"nothing":                   "",
			"incomplete header section": "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
			"incomplete body":           "POST /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf",
			"HTTP/2":                    http2.ClientPreface + strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 100),
		} {
			before := p.memory("VmRSS")
			files := p.files()
			h := newConnectionGroup(t, local(row.port), 400, sends(text))
			w := dial(t, local(row.port))
			began := time.Now()
			w.send("GET " + row.path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
			if m := w.receive("GET"); m.status() != row.status {
				t.Errorf("%s, 400 connections with %s: got %q, want %d", name, what, m.Start, row.status)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s, 400 connections with %s: response after %v, want at most 5s", name, what, took)
			}
			w.Close()
			p.poll("the other connections are closed", func() error {
				if n := p.files(); n > files+kept {
					return fmt.Errorf("%s, %s: got %d files, want at most %d", name, what, n, files)
				}
				return nil
			})
			if grown := p.memory("VmRSS") - before; grown > 32<<20 {
				t.Errorf("%s, 400 connections with %s: memory grew by %d KB, want at most 32768", name, what, grown>>10)
			}
			h.close()
		}
	}
}

// A preStop hook waits until the end of the drain, even if other clients connect to the port
// and the drain takes a long time.
func TestPreStopHookIsNotEvictedByConnections(t *testing.T) {
	p := newProxy(t)
	h := p.holder()
	p.start("DRAIN_QUIET_PERIOD=100ms", "DRAIN_DEADLINE=19s", "SERVING_READINESS_PROBE=")
	running := p.sendGet("/long")
	h.wait(t, "/long")
	hook := p.preStop("/wait-for-drain")
	p.draining()
	p.signal(syscall.SIGTERM)
	newConnectionGroup(t, local(p.port.admin), 400, sends(""))
	hook.SetReadDeadline(time.Now().Add(11 * time.Second)) // wait longer than the timeout of other connections
	var timeout net.Error
	if b, err := hook.r.Peek(1); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("got %q, %v, want no response yet", b, err)
	}
	h.free("/long")
	running.receive("GET")
	hook.SetDeadline(time.Now().Add(patience))
	if m := hook.receive("GET"); m.status() != 200 {
		t.Errorf("hook: got %q, want 200", m.Start)
	}
}

// stallers request a large response and do not read it.
var stallers = map[string]func(t *testing.T, p *proxy){
	"HTTP/1.1": func(t *testing.T, p *proxy) { p.sendGet("/stream/1000000000") },
	"HTTP/1.0": func(t *testing.T, p *proxy) {
		dial(t, p.addr()).send("GET /stream/1000000000 HTTP/1.0\r\nHost: a.test\r\n\r\n")
	},
	"TLS": func(t *testing.T, p *proxy) {
		dialTLS(t, p.tlsAddr(), "http/1.1").send(request("GET", "/stream/1000000000"))
	},
	"h2c, a window of 0":           func(t *testing.T, p *proxy) { stall(t, p, "h2c", 0) },
	"h2c, client does not read":    func(t *testing.T, p *proxy) { stall(t, p, "h2c", 1<<31-1) },
	"TLS h2, a window of 0":        func(t *testing.T, p *proxy) { stall(t, p, "TLS h2", 0) },
	"TLS h2, client does not read": func(t *testing.T, p *proxy) { stall(t, p, "TLS h2", 1<<31-1) },
}

func stall(t *testing.T, p *proxy, protocol string, window uint32) {
	t.Helper()
	a, err := p.attacker(protocol, true, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	a.framer.WriteWindowUpdate(0, 1<<31-1-65535)
	a.open(true, asks("GET", "/stream/1000000000")...)
	a.out.Flush()
}

// If a client does not read a response, the slot of its request is released after SEND_TIMEOUT
// or another timeout.
func TestSlotIsReleasedIfClientDoesNotRead(t *testing.T) {
	inParallel(t)
	for name, ask := range stallers {
		for _, setting := range []string{"SEND_TIMEOUT=400ms", "REVISION_TIMEOUT_SECONDS=400ms"} {
			const limit = 400*time.Millisecond + 5*time.Second // the timeout plus the maximum time for closing the connection
			t.Run(name+"/"+setting, func(t *testing.T) {
				p := newProxy(t)
				writeCertificate(t, p.dir)
				app := p.sample()
				p.start("METRICS_NAMES=default", "REVISION_TIMEOUT_SECONDS=0", "REVISION_TIMEOUT_SCOPE=request", "DRAIN_DEADLINE=10s", "CONTAINER_CONCURRENCY=1", "QUEUE_DEPTH=10", setting)
				p.auditAtEnd()
				ask(t, p)
				began := time.Now()
				p.poll("the app received the request", func() error {
					if r := app.Running(); r.Now+r.Ended == 0 {
						return errNotYet
					}
					return nil
				})
				p.poll("a slot is free", func() error {
					if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
						return fmt.Errorf("got %q", m.Start) // the queued request must also end because of the timeout
					}
					return nil
				})
				if took := time.Since(began); took > limit+slack {
					t.Errorf("the slot was released after %v, want at most %v", took, limit)
				}
				p.poll("the app has no request", func() error {
					if r := app.Running(); r.Now != 0 {
						return fmt.Errorf("got %+v", r)
					}
					return nil
				})
				why := "client-slow"
				if strings.HasPrefix(setting, "REVISION") {
					why = "request-timeout"
				}
				p.awaitLog(`"reason":"`+why+`"`, `"phase":"streaming"`)
			})
		}
	}
}

// A client that reads slowly, but without pauses of SEND_TIMEOUT, receives the complete
// response.
func TestSendTimeoutDoesNotEndSlowReader(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("METRICS_NAMES=default", "SEND_TIMEOUT=2s")
	p.auditAtEnd()
	const size = 12 << 20 // the body is larger than the socket buffers
	w := dial(t, p.addr())
	w.Conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	w.send(request("GET", fmt.Sprintf("/bytes/%d", size)))
	got, b := 0, make([]byte, 512<<10)
	for got < size {
		n, err := w.r.Read(b[:min(len(b), size)])
		if got += n; err != nil {
			t.Fatalf("read after %d bytes: %v", got, err)
		}
		time.Sleep(time.Duration(n) * 6 * time.Second / size) // read slower than the timeout would allow for the whole body
	}
}

// The sidecar closes connections of TLS clients that renegotiate (CVE-2011-1473).
func TestTLSRenegotiationClosesConnection(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	p.start("METRICS_NAMES=default", "QUEUE_PROXY_TLS_MIN_VERSION=1.2")
	p.auditAtEnd()
	client := exec.Command("openssl", "s_client", "-tls1_2", "-connect", p.tlsAddr())
	in, err := client.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out output
	client.Stdout, client.Stderr = &out, &out
	client.SysProcAttr = dieWithParent
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- client.Wait() }()
	t.Cleanup(func() { client.Process.Kill(); <-done })
	poll(t, "the handshake is complete", func() error {
		if !out.HasLine("Verify return code") {
			return errNotYet
		}
		return nil
	})
	io.WriteString(in, "R\n") // the command R of openssl s_client starts a renegotiation
	poll(t, "the renegotiation is rejected", func() error {
		if !out.HasLine("no renegotiation") && !out.HasLine("alert") {
			return errNotYet
		}
		return nil
	})
	if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
		t.Errorf("other client: got %q, want 200", m.Start)
	}
}

// Invalid or unbounded TLS input closes the connection immediately.
func TestInvalidTLSRecordClosesConnection(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	p.start("METRICS_NAMES=default")
	p.auditAtEnd()
	hello := func() []byte { // hello returns the first record of a TLS client
		var b bytes.Buffer
		c := tls.Client(&recorder{out: &b}, &tls.Config{InsecureSkipVerify: true})
		c.Handshake()
		return b.Bytes()
	}()
	for name, text := range map[string]string{
		"plain HTTP":                     request("GET", "/"),
		"zeros":                          strings.Repeat("\x00", 1000),
		"a long record":                  "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70000),
		"an alert":                       "\x15\x03\x01\x00\x02\x02\x28",
		"an empty ClientHello":           "\x16\x03\x01\x00\x04\x01\x00\x00\x00",
		"data before the ClientHello":    "\x17\x03\x03\x00\x10" + strings.Repeat("x", 16),
		"a ClientHello and invalid data": string(hello) + strings.Repeat("x", 1000),
		"endless empty records":          strings.Repeat("\x16\x03\x01\x00\x00", 1000),
	} {
		w := dial(t, p.tlsAddr())
		io.WriteString(w, text)
		w.SetDeadline(time.Now().Add(slack))
		if _, err := io.Copy(io.Discard, w); err != nil && !ended(err) {
			t.Errorf("%s: got %v, want a closed connection", name, err)
		}
	}
	if m := dialTLS(t, p.tlsAddr(), "http/1.1").ask("/bytes/2"); m.status() != 200 {
		t.Errorf("honest client: got %q, want 200", m.Start)
	}
}

// recorder is a connection that stores written data and never returns any input.
type recorder struct {
	net.Conn
	out *bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) { return r.out.Write(b) }
func (r *recorder) Read([]byte) (int, error)    { return 0, io.EOF }
