package conformance

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// MAX_CONNECTIONS limits the total number of connections to both ports for requests. When the
// limit is reached, the sidecar closes the connection that has been idle for the longest
// time (docs/bounds.md, "Connections").

// fullProxy starts a sidecar with a certificate, and an app that holds requests. most is the
// connection limit of the sidecar.
func fullProxy(t *testing.T, most int) (*proxy, *holder) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	h := p.holder()
	p.start(fmt.Sprint("MAX_CONNECTIONS=", most))
	return p, h
}

// probe sends a kubelet probe on a new connection.
func (p *proxy) probe(t *testing.T, addr string) {
	t.Helper()
	if m := dial(t, addr).ask("/", "K-Network-Probe: queue"); m.status() != 200 {
		t.Errorf("probe: got %q, want 200", m.Start)
	}
}

// probeImmediately is like probe, but repeats the probe if the test was too slow to send the
// request while the new connection was protected.
func (p *proxy) probeImmediately(t *testing.T) {
	t.Helper()
	for {
		start := time.Now()
		c := dial(t, p.addr())
		c.send(request("GET", "/", "K-Network-Probe: queue"))
		if time.Since(start) > 10*time.Millisecond {
			c.Close()
			continue
		}
		if m := c.receive("GET"); m.status() != 200 {
			t.Errorf("probe: got %q, want 200", m.Start)
		}
		return
	}
}

// isOpen reports whether the sidecar has not closed the connection.
func isOpen(w *client) bool {
	w.t.Helper()
	c := w.Conn
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	return !peerClosed(c.(*net.TCPConn))
}

// opens returns the states of the connections: "ox" means that the first connection is open and
// the second connection is closed.
func opens(all []*client) (s string) {
	for _, w := range all {
		if isOpen(w) {
			s += "o"
		} else {
			s += "x"
		}
	}
	return s
}

func TestIdleConnectionIsClosedAtLimit(t *testing.T) {
	p, _ := fullProxy(t, 3)
	ask := func(w *client) *client {
		if m := w.ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			t.Errorf("got %q, want 200", m.Start)
		}
		return w
	}
	var all []*client
	for range 3 {
		all = append(all, ask(dial(t, p.addr())))
	}
	all = append(all, ask(dial(t, p.addr())))
	p.poll("exactly one of the older connections is closed", func() error {
		// The test cannot predict which of the connections became idle first.
		if got := opens(all); strings.Count(got, "x") != 1 || got[3] != 'o' {
			return fmt.Errorf("got %s", got)
		}
		return nil
	})
	for _, w := range all {
		if isOpen(w) {
			ask(w)
		}
	}
}

// Connections without a request, incomplete header sections and incomplete handshakes do not
// block other clients on either port.
func TestSilentConnectionsDoNotBlockClients(t *testing.T) {
	p, _ := fullProxy(t, 20)
	for name, row := range map[string]struct{ addr, text string }{
		"nothing":                           {p.addr(), ""},
		"incomplete header section":         {p.addr(), "GET / HTTP/1.1\r\nHost: a.te"},
		"HTTP/2 preface":                    {p.addr(), http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
		"HTTP/2, incomplete header section": {p.addr(), http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x40\x00\x01\x01\x00\x00\x00\x01\x82"},
		"TLS, no input":                     {p.tlsAddr(), ""},
		"incomplete handshake":              {p.tlsAddr(), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"},
		"empty record":                      {p.tlsAddr(), strings.Repeat("\x16\x03\x01\x00\x00", 10)},
	} {
		h := newConnectionGroup(t, row.addr, 60, sends(row.text))
		began := time.Now()
		p.probe(t, p.addr())
		if m := dialTLS(t, p.tlsAddr(), "http/1.1").ask("/", "K-Network-Probe: queue"); m.status() != 200 {
			t.Errorf("%s: probe over TLS: got %q, want 200", name, m.Start)
		}
		if took := time.Since(began); took > slack {
			t.Errorf("%s: the probes took %v, want at most %v", name, took, slack)
		}
		p.poll("the number of open connections is at most the limit", func() error {
			if n := h.open(); n > 20 {
				return fmt.Errorf("%s: got %d connections, want at most 20", name, n)
			}
			return nil
		})
		h.close()
	}
}

// The sidecar closes silent connections before it closes connections that served requests.
func TestSilentConnectionsDoNotCloseUsedOnes(t *testing.T) {
	p, _ := fullProxy(t, 12)
	var used []*client
	for range 5 {
		w := dial(t, p.addr())
		w.ask("/", "K-Network-Probe: queue")
		used = append(used, w)
	}
	newConnectionGroup(t, p.addr(), 60, sends(""))
	p.probe(t, p.addr())
	if got := opens(used); got != "ooooo" {
		t.Errorf("got states %s, want all used connections open", got)
	}
}

func TestConnectionLimitIsSharedByPorts(t *testing.T) {
	p, _ := fullProxy(t, 1)
	for range 3 {
		p.probe(t, p.addr())
		for _, alpn := range []string{"http/1.1", "h2"} {
			w := dialTLS(t, p.tlsAddr(), alpn)
			if alpn == "h2" {
				m, err := exchangeH2(w, "GET", "/", "https", "a.test", []field{{"k-network-probe", "queue"}}, "")
				if err != nil || m.status() != 200 {
					t.Errorf("over HTTP/2: got %v, %v, want 200", m, err)
				}
			} else if m := w.ask("/", "K-Network-Probe: queue"); m.status() != 200 {
				t.Errorf("over TLS: got %q, want 200", m.Start)
			}
		}
	}
}

// A connection with a request in progress is never closed for a new connection. The test checks
// on both ports that the new connection waits.
func TestActiveConnectionIsNotClosedAtLimit(t *testing.T) {
	p, h := fullProxy(t, 4)
	plain := p.sendGet("/plain")
	post := dial(t, p.addr())
	post.send(request("POST", "/post", "Content-Length: 5") + "he")
	secure := dialTLS(t, p.tlsAddr(), "http/1.1")
	secure.send(request("GET", "/secure"))
	multi := dialH2(t, p.addr())
	multi.open(1, true, "GET", "/now", "k-network-probe: queue")
	multi.answer(1)
	multi.open(3, true, "GET", "/multi")
	for _, path := range []string{"/plain", "/post", "/secure", "/multi"} {
		h.wait(t, path)
	}
	waits := p.sendGet("/", "K-Network-Probe: queue")
	waits.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if b, err := waits.r.Peek(1); err == nil {
		t.Fatalf("fifth connection: got %q, want no response yet", b)
	}
	waits.SetReadDeadline(time.Now().Add(patience))
	h.free("/multi")
	if a := multi.answer(3); a.status != 200 {
		t.Errorf("over HTTP/2: got %+v, want 200", a)
	}
	if m := waits.receive("GET"); m.status() != 200 {
		t.Errorf("waiting connection: got %q, want 200", m.Start)
	}
	post.send("llo")
	for path, w := range map[string]*client{"/plain": plain, "/post": post, "/secure": secure} {
		h.free(path)
		if m := w.receive("GET"); m.status() != 200 || m.Body != path {
			t.Errorf("%s: got %q with %q, want 200", path, m.Start, m.Body)
		}
	}
}

func TestIdleHTTP2ConnectionIsClosedAtLimit(t *testing.T) {
	p, _ := fullProxy(t, 1)
	multi := dialH2(t, p.addr())
	for stream := uint32(1); stream < 9; stream += 2 {
		multi.open(stream, true, "GET", "/", "k-network-probe: queue")
		if a := multi.answer(stream); a.status != 200 {
			t.Errorf("got %+v, want 200", a)
		}
	}
	p.probe(t, p.addr())
	p.poll("the connection is closed", func() error {
		if _, end := multi.seen(); end == nil {
			return errNotYet
		}
		return nil
	})
	if g := multi.goAway(); g.code != http2.ErrCodeNo {
		t.Errorf("got GOAWAY with %v, want NO_ERROR", g.code)
	}
}

// A tunnel counts as a connection. After the tunnel is closed, the next waiting connection is
// accepted.
func TestTunnelCountsAsConnection(t *testing.T) {
	p := newProxy(t)
	p.bare(upgrading)
	p.start("MAX_CONNECTIONS=1")
	for range 2 {
		w := p.sendGet("/", "Connection: Upgrade", "Upgrade: echo")
		w.receive("GET")
		io.ReadFull(w.r, make([]byte, len("hello")))
		waits := p.sendGet("/", "K-Network-Probe: queue")
		waits.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if b, err := waits.r.Peek(1); err == nil {
			t.Fatalf("second connection: got %q, want no response yet", b)
		}
		waits.SetReadDeadline(time.Now().Add(patience))
		w.Close()
		if m := waits.receive("GET"); m.status() != 200 {
			t.Errorf("got %q, want 200", m.Start)
		}
	}
}

// Connections that continuously send requests do not block new connections.
func TestBusyConnectionsDoNotBlockOthers(t *testing.T) {
	p, _ := fullProxy(t, 2)
	for _, keep := range []func(stop <-chan struct{}){
		func(stop <-chan struct{}) { sendProbesContinuously(p, false, stop) },
		func(stop <-chan struct{}) { sendProbesContinuously(p, true, stop) },
		func(stop <-chan struct{}) { openStreamsContinuously(p, stop) },
	} {
		stop := make(chan struct{})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for !isClosed(stop) {
					keep(stop)
				}
			})
		}
		for range 3 {
			p.probeImmediately(t)
		}
		close(stop)
		all.Wait()
	}
}

// sendProbesContinuously sends probes on one connection without interruption until the
// connection is closed.
func sendProbesContinuously(p *proxy, secure bool, stop <-chan struct{}) {
	c, err := net.Dial("tcp", p.addr())
	if secure {
		c, err = tls.Dial("tcp", p.tlsAddr(), &tls.Config{InsecureSkipVerify: true})
	}
	if err != nil {
		return
	}
	defer c.Close()
	go io.Copy(io.Discard, c)
	many := strings.Repeat(request("GET", "/", "K-Network-Probe: probe", "K-Network-Hash: h"), 50)
	for err == nil && !isClosed(stop) {
		c.SetDeadline(time.Now().Add(patience))
		_, err = io.WriteString(c, many)
	}
}

// openStreamsContinuously opens streams without a pause on one connection, ignoring GOAWAY,
// until the connection is closed.
func openStreamsContinuously(p *proxy, stop <-chan struct{}) {
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		return
	}
	defer c.Close()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for _, f := range asks("GET", "/", "k-network-probe: probe", "k-network-hash: h") {
		name, value, _ := strings.Cut(f, ": ")
		encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	framer := http2.NewFramer(c, c)
	io.WriteString(c, http2.ClientPreface)
	framer.WriteSettings()
	for stream := uint32(1); err == nil && !isClosed(stop); stream += 2 {
		c.SetDeadline(time.Now().Add(patience))
		err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		for ended := false; err == nil && !ended; {
			var f http2.Frame
			if f, err = framer.ReadFrame(); err == nil {
				ended = f.Header().StreamID == stream && f.Header().Flags.Has(http2.FlagDataEndStream)
			}
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// If another connection is idle, a connection with an incomplete header section is not closed.
func TestIncompleteHeaderIsKeptAtLimit(t *testing.T) {
	p, _ := fullProxy(t, 4)
	used := dial(t, p.addr())
	used.ask("/", "K-Network-Probe: queue")
	half := dial(t, p.addr())
	half.send("GET / HTTP/1.1\r\nHost: a.test\r\n")
	p.poll("the sidecar has read the header fields", func() error {
		all, err := sockets(uint16(p.port.serving), 0)
		for _, s := range all {
			if s.received > 0 {
				err = errNotYet
			}
		}
		return err
	})
	for range 10 {
		p.probe(t, p.addr())
	}
	half.send("K-Network-Probe: queue\r\n\r\n")
	if m := half.receive("GET"); m.status() != 200 {
		t.Errorf("got %q, want 200", m.Start)
	}
}
