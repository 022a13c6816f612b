package webhook

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// This file tests slow clients. The connections have no buffers, so that a write blocks
// until the peer reads. docs/bounds.md contains the limits in the section "Injector".

// pipes is a listener for in-memory connections.
type pipes struct {
	conns  chan net.Conn
	closed context.Context
	stop   context.CancelFunc
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.stop(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A peer is the client side of a connection. ended is closed after the server has closed the
// connection.
type peer struct {
	net.Conn
	ended chan struct{}
}

type ending struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

func (e *ending) Close() error {
	e.once.Do(func() { close(e.ended) })
	return e.Conn.Close()
}

// peers starts a server for reviews with a limit for connections. connect opens a connection and
// sends text. If certificate is not nil, the server uses TLS.
func peers(t *testing.T, most int, certificate *tls.Certificate) (connect func(text string) peer) {
	t.Helper()
	_, connect = startPeers(t, newReviewer(nil), most, certificate)
	return connect
}

func startPeers(t *testing.T, v *Reviewer, most int, certificate *tls.Certificate) (s *http.Server, connect func(text string) peer) {
	t.Helper()
	server := newServer(certificate, nil, zap.NewNop())
	s = server.server(v, most)
	listener := &pipes{conns: make(chan net.Conn)}
	listener.closed, listener.stop = context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		if certificate == nil {
			done <- s.Serve(listener)
			return
		}
		done <- server.serveTLS(s, listener)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return s, func(text string) peer {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close() })
		ended := make(chan struct{})
		listener.conns <- &ending{Conn: theirs, ended: ended}
		go func() { _, _ = io.WriteString(ours, text) }()
		synctest.Wait()
		return peer{ours, ended}
	}
}

func posted(body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", reviewPath, len(body), body)
}

// readStatus reads a response and returns its status, or 0 if there is no response.
func readStatus(c net.Conn) int {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return 0
	}
	return r.StatusCode
}

// longResponseReview returns a short review with a long response.
func longResponseReview() string {
	return string(question([]byte(strings.Replace(goodPod, `"image":"web:1"`, `"image":"web:1","readinessProbe":{"httpGet":{"port":8080,"path":"/`+strings.Repeat("a", smallBytes*3/4)+`"}}`, 1)), nil))
}

// Clients that do not read their responses must not delay other clients.
func TestUnreadResponsesDoNotDelayReviews(t *testing.T) {
	small := posted(string(question([]byte(goodPod), nil)))
	for name, text := range map[string]string{"short": small, "long": posted(longResponseReview())} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connect := peers(t, maxConnections, nil)
				for range maxShortReviews + 1 {
					connect(text)
				}
				begin := time.Now()
				harness.Equal(t, readStatus(connect(small)), http.StatusOK, "status")
				if took := time.Since(begin); took != 0 {
					t.Errorf("a review waited %v for unread responses", took)
				}
			})
		})
	}
}

// The memory for long responses is limited. While it is in use, other reviews receive status 503.
func TestMemoryForLongResponsesIsLimited(t *testing.T) {
	if n := len(posted(longResponseReview())); n > smallBytes {
		t.Fatalf("got a review of %d bytes, want a short review", n)
	}
	synctest.Test(t, func(t *testing.T) {
		v := newReviewer(nil)
		_, connect := startPeers(t, v, maxConnections, nil)
		text := posted(longResponseReview())
		answer, err := http.ReadResponse(bufio.NewReader(connect(text)), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("long response: got %v, %v, want 200", answer, err)
		}
		length, err := io.Copy(io.Discard, answer.Body)
		harness.NoError(t, err)
		const reserved = 20
		v.texts = memory(reserved*int(length) + smallBytes)
		for range reserved {
			connect(text)
		}
		harness.Equal(t, readStatus(connect(text)), http.StatusServiceUnavailable, "status without remaining memory")
		time.Sleep(requestTimeout + time.Second)
		harness.Equal(t, readStatus(connect(text)), http.StatusOK, "status after the timeout")
	})
}

// Incomplete requests must not prevent new connections, and must not close connections that are in
// use.
func TestIncompleteReviewsDoNotBlockNewConnections(t *testing.T) {
	const most = 20
	small := posted(string(question([]byte(goodPod), nil)))
	for name, text := range map[string]string{
		"nothing":               "",
		"half a header section": small[:20],
		"half a body":           small[:len(small)-1],
		"no response read":      small,
		"a rejected method":     strings.Replace(small, "POST", "GET", 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connect := peers(t, most, nil)
				used := connect(small)
				if got := readStatus(used); got != http.StatusOK {
					t.Fatalf("got status %d, want 200", got)
				}
				for range most / 2 {
					time.Sleep(time.Millisecond)
					connect(text)
				}
				for range 2 * most {
					time.Sleep(time.Millisecond)
					connect(text)
					go func() { _, _ = io.WriteString(used, small) }()
					if got := readStatus(used); got != http.StatusOK {
						t.Fatalf("active connection: got status %d, want 200", got)
					}
				}
				harness.Equal(t, readStatus(connect(small)), http.StatusOK, "status on a new connection")
			})
		})
	}
}

// A slowPeer sends incomplete input on its connection, and the server must close the connection
// after a timeout.
type slowPeer struct {
	name    string
	within  bool // the input is sent inside a TLS connection
	listens bool
	do      func(c net.Conn)
	want    time.Duration
}

func slowPeers(t *testing.T) []slowPeer {
	t.Helper()
	small := posted(string(question([]byte(goodPod), nil)))
	head, body, _ := strings.Cut(small, "\r\n\r\n")
	head += "\r\n\r\n"
	writes := func(c net.Conn, text string) { _, _ = io.WriteString(c, text) }
	drips := func(c net.Conn, text string) { // send one byte per second
		for i := range len(text) {
			if _, err := io.WriteString(c, text[i:i+1]); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
	const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
	return []slowPeer{
		{"no bytes", false, true, func(net.Conn) {}, headerTimeout},
		{"half a handshake", false, true, func(c net.Conn) { writes(c, hello) }, headerTimeout},
		{"a handshake with one byte per second", false, true, func(c net.Conn) { drips(c, hello+strings.Repeat("\x03", 508)) }, headerTimeout},
		{"unread handshake bytes", false, false, func(c net.Conn) { writes(c, helloOf(t)) }, headerTimeout},
		{"no bytes after the handshake", true, true, func(net.Conn) {}, headerTimeout},
		{"a header section with one byte per second", true, true, func(c net.Conn) { drips(c, head) }, headerTimeout},
		{"half a header section", true, true, func(c net.Conn) { writes(c, head[:30]) }, headerTimeout},
		{"a body with one byte per second", true, true, func(c net.Conn) { writes(c, head); drips(c, body) }, requestTimeout},
		{"half a body", true, true, func(c net.Conn) { writes(c, head+body[:10]) }, requestTimeout},
		{"an unread response", true, false, func(c net.Conn) { writes(c, small) }, requestTimeout},
		{"unread responses", true, false, func(c net.Conn) { writes(c, strings.Repeat(small, 10)) }, requestTimeout},
		{"no bytes after a response", true, true, func(c net.Conn) { writes(c, small) }, idleTimeout},
		{"half a header section after a response", true, true, func(c net.Conn) { writes(c, small+head[:30]) }, headerTimeout},
	}
}

// Each phase of a connection has a timeout.
func TestSlowPeersAreDisconnected(t *testing.T) {
	const goodbye = 5 * time.Second // additional time that crypto/tls waits to send close_notify
	certificate, roots := bubbleCertificate(t)
	for _, c := range slowPeers(t) {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := peers(t, maxConnections, certificate)("")
				began := time.Now()
				var all sync.WaitGroup
				all.Go(func() {
					conn := p.Conn
					if c.within {
						to := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "a", SessionTicketsDisabled: true}) // the server would otherwise send session tickets that the peer does not read
						if err := to.Handshake(); err != nil {
							t.Error(err)
						}
						conn = to
					}
					if c.listens {
						all.Go(func() { _, _ = io.Copy(io.Discard, conn) })
					}
					c.do(conn)
				})
				select {
				case <-p.ended:
					if took := time.Since(began); took < c.want || took > c.want+goodbye+time.Second {
						t.Errorf("closed after %v, want %v", took, c.want)
					}
				case <-time.After(time.Hour):
					t.Errorf("still open after an hour, want closed after %v", c.want)
				}
				p.Close()
				all.Wait()
			})
		})
	}
}

// A slow client must not delay the shutdown longer than shutdownTimeout.
func TestSlowPeersDoNotDelayShutdown(t *testing.T) {
	small := posted(string(question([]byte(goodPod), nil)))
	synctest.Test(t, func(t *testing.T) {
		s, connect := startPeers(t, newReviewer(nil), maxConnections, nil)
		p := connect(small[:10])
		time.Sleep(headerTimeout - time.Second)
		go func() { _, _ = io.WriteString(p, small[10:]) }() // the peer does not read the response
		began := time.Now()
		shutdown(t.Context(), s)
		if took := time.Since(began); took > shutdownTimeout {
			t.Errorf("shutdown took %v, want at most %v", took, shutdownTimeout)
		}
		select {
		case <-p.ended:
		default:
			t.Error("the connection is still open")
		}
	})
}

// Parsing a header section uses a multiple of its length as memory, so the length is
// limited.
func TestLongHeadersAreRejected(t *testing.T) {
	small := posted(string(question([]byte(goodPod), nil)))
	for length, want := range map[int]int{2 << 10: http.StatusOK, 6 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		synctest.Test(t, func(t *testing.T) {
			text := strings.Replace(small, "Host: a\r\n", "Host: a\r\nAuthorization: Bearer "+strings.Repeat("a", length)+"\r\n", 1)
			harness.Equal(t, readStatus(peers(t, maxConnections, nil)(text)), want, "status for a token of", length, "bytes")
		})
	}
}

// The server only offers HTTP/1.1, which API servers use.
func TestHTTP2IsNotOffered(t *testing.T) {
	certificate, roots := bubbleCertificate(t)
	synctest.Test(t, func(t *testing.T) {
		connect := peers(t, maxConnections, certificate)
		c := tls.Client(connect(""), &tls.Config{RootCAs: roots, ServerName: "a", NextProtos: []string{"h2"}})
		if err := c.Handshake(); err == nil {
			t.Errorf("only h2: got %q, want no connection", c.ConnectionState().NegotiatedProtocol)
		}
		c = tls.Client(connect(""), &tls.Config{RootCAs: roots, ServerName: "a", NextProtos: []string{"h2", "http/1.1"}})
		harness.NoError(t, c.Handshake())
		harness.Equal(t, c.ConnectionState().NegotiatedProtocol, "http/1.1", "h2 and http/1.1")
		go func() {
			_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}()
		if got := readStatus(c); got < 400 {
			t.Errorf("HTTP/2 without negotiation: got status %d, want none", got)
		}
	})
}

// The server closes a connection immediately if the first bytes are not TLS.
func TestInvalidTLSClosesConnection(t *testing.T) {
	certificate, _ := bubbleCertificate(t)
	for name, text := range map[string]string{
		"plain HTTP":          "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"zeros":               strings.Repeat("\x00", 1000),
		"a long record":       "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70_000),
		"an alert":            "\x15\x03\x01\x00\x02\x02\x28",
		"an empty hello":      "\x16\x03\x01\x00\x04\x01\x00\x00\x00",
		"data before a hello": "\x17\x03\x03\x00\x10" + strings.Repeat("x", 16),
		"a hello and garbage": helloOf(t) + strings.Repeat("x", 1000),
		"endless empty data":  strings.Repeat("\x16\x03\x01\x00\x00", 1000),
		"a long hello":        longHello(maxHandshakeBytes + 1000),
	} {
		synctest.Test(t, func(t *testing.T) {
			p := peers(t, maxConnections, certificate)("")
			go func() { _, _ = io.Copy(io.Discard, p) }()
			began := time.Now()
			_, _ = io.WriteString(p, text)
			select {
			case <-p.ended:
			case <-time.After(time.Hour):
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: closed after %v, want immediately", name, took)
			}
		})
	}
}

// bubbleCertificate returns a certificate that is valid at the initial time of a synctest bubble,
// and a pool that trusts it.
func bubbleCertificate(t *testing.T) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	authority, certificate := authorityOf(t, "a", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	return certificate, trusting(authority)
}

// longHello returns the beginning of a ClientHello of 64 KiB.
func longHello(length int) string {
	text := "\x01\x00\xff\xf0" + strings.Repeat("\x00", length)
	var records strings.Builder
	for len(text) > 0 {
		n := min(len(text), 16<<10)
		records.WriteString("\x16\x03\x01" + string([]byte{byte(n >> 8), byte(n)}) + text[:n])
		text = text[n:]
	}
	return records.String()
}

// helloOf returns the first record of a TLS client.
func helloOf(t *testing.T) string {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() { _ = tls.Client(theirs, &tls.Config{ServerName: "a"}).Handshake() }()
	b := make([]byte, 4096)
	n, err := ours.Read(b)
	harness.NoError(t, err)
	return string(b[:n])
}
