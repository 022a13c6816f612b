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

// Slow peers, on connections without a buffer: a write waits until the peer reads. The limits are in
// docs/bounds.md, "Injector".

// pipes is a listener of connections in memory.
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

// A peer is a client's end of a connection. ended is closed when the server has ended it.
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

// peers starts a server of reviews that keeps at most so many connections, and returns
// what connects to it. With a certificate it speaks TLS.
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

// heard reads an answer, or returns 0 where there comes none.
func heard(c net.Conn) int {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return 0
	}
	return r.StatusCode
}

// longAnswered is a review whose answer is longer than it and large.
func longAnswered() string {
	return string(question([]byte(strings.Replace(goodPod, `"image":"web:1"`, `"image":"web:1","readinessProbe":{"httpGet":{"port":8080,"path":"/`+strings.Repeat("a", smallBytes*3/4)+`"}}`, 1)), nil))
}

// Whoever does not take an answer holds nobody up: not as many as may be reviewed at
// once, and not those whose answers are so long that only some may wait.
func TestAnswersThatAreNotTakenHoldUpNobody(t *testing.T) {
	small := posted(string(question([]byte(goodPod), nil)))
	for name, text := range map[string]string{"short": small, "long": posted(longAnswered())} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connect := peers(t, mostConnections, nil)
				for range mostShort + 1 {
					connect(text)
				}
				begin := time.Now()
				harness.Equal(t, heard(connect(small)), http.StatusOK, "status")
				if took := time.Since(begin); took != 0 {
					t.Errorf("a review waited %v for answers that are not taken", took)
				}
			})
		})
	}
}

// Long answers that are not taken are held as far as the memory for them goes: others get
// 503, until it is over with these.
func TestOnlySoManyLongAnswersAreHeld(t *testing.T) {
	if n := len(posted(longAnswered())); n > smallBytes {
		t.Fatalf("got a question of %d bytes, want a short one", n)
	}
	synctest.Test(t, func(t *testing.T) {
		v := newReviewer(nil)
		_, connect := startPeers(t, v, mostConnections, nil)
		text := posted(longAnswered())
		answer, err := http.ReadResponse(bufio.NewReader(connect(text)), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("a long answer: got %v, %v, want 200", answer, err)
		}
		length, err := io.Copy(io.Discard, answer.Body)
		harness.NoError(t, err)
		const held = 20
		v.texts = newBudget(held*int(length) + smallBytes)
		for range held {
			connect(text)
		}
		harness.Equal(t, heard(connect(text)), http.StatusServiceUnavailable, "one more than may be held: status")
		time.Sleep(longestRequest + time.Second)
		harness.Equal(t, heard(connect(text)), http.StatusOK, "when their time is over: status")
	})
}

// Requests that do not come to an end lock nobody out, however many connections
// they hold; and a connection that was used is not ended for those that say nothing.
func TestUnfinishedReviewsLockNobodyOut(t *testing.T) {
	const most = 20
	small := posted(string(question([]byte(goodPod), nil)))
	for name, text := range map[string]string{
		"nothing":         "",
		"half a head":     small[:20],
		"half a body":     small[:len(small)-1],
		"no answer taken": small,
		"a refusal":       strings.Replace(small, "POST", "GET", 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connect := peers(t, most, nil)
				used := connect(small)
				if got := heard(used); got != http.StatusOK {
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
					if got := heard(used); got != http.StatusOK {
						t.Fatalf("a connection that is used: got status %d, want 200", got)
					}
				}
				harness.Equal(t, heard(connect(small)), http.StatusOK, "a new one: status")
			})
		})
	}
}

// A slow peer does something on its connection, and is closed when its time is over.
type slowPeer struct {
	name    string
	within  bool // TLS
	listens bool
	do      func(c net.Conn)
	want    time.Duration
}

func slowPeers(t *testing.T) []slowPeer {
	t.Helper()
	small := posted(string(question([]byte(goodPod), nil)))
	head, body, _ := strings.Cut(small, "\r\n\r\n")
	head += "\r\n\r\n"
	says := func(c net.Conn, text string) { _, _ = io.WriteString(c, text) }
	drips := func(c net.Conn, text string) { // a byte a second
		for i := range len(text) {
			if _, err := io.WriteString(c, text[i:i+1]); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
	const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
	return []slowPeer{
		{"nothing", false, true, func(net.Conn) {}, longestHead},
		{"half a handshake", false, true, func(c net.Conn) { says(c, hello) }, longestHead},
		{"a handshake, a byte a second", false, true, func(c net.Conn) { drips(c, hello+strings.Repeat("\x03", 508)) }, longestHead},
		{"a handshake that is not read", false, false, func(c net.Conn) { says(c, helloOf(t)) }, longestHead},
		{"nothing after the handshake", true, true, func(net.Conn) {}, longestHead},
		{"a head, a byte a second", true, true, func(c net.Conn) { drips(c, head) }, longestHead},
		{"half a head", true, true, func(c net.Conn) { says(c, head[:30]) }, longestHead},
		{"a body, a byte a second", true, true, func(c net.Conn) { says(c, head); drips(c, body) }, longestRequest},
		{"half a body", true, true, func(c net.Conn) { says(c, head+body[:10]) }, longestRequest},
		{"an answer not taken", true, false, func(c net.Conn) { says(c, small) }, longestRequest},
		{"answers not taken", true, false, func(c net.Conn) { says(c, strings.Repeat(small, 10)) }, longestRequest},
		{"nothing after an answer", true, true, func(c net.Conn) { says(c, small) }, longestIdle},
		{"half a head after an answer", true, true, func(c net.Conn) { says(c, small+head[:30]) }, longestHead},
	}
}

// Every way of being slow ends at its clock.
func TestSlowPeersAreEnded(t *testing.T) {
	const goodbye = 5 * time.Second // that TLS may take more to say it
	certificate, roots := bubbleCertificate(t)
	for _, c := range slowPeers(t) {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := peers(t, mostConnections, certificate)("")
				began := time.Now()
				var all sync.WaitGroup
				all.Go(func() {
					conn := p.Conn
					if c.within {
						to := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "a", SessionTicketsDisabled: true}) // none comes unasked
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
						t.Errorf("ended after %v, want %v", took, c.want)
					}
				case <-time.After(time.Hour):
					t.Errorf("still there after an hour, want its end after %v", c.want)
				}
				p.Close()
				all.Wait()
			})
		})
	}
}

// A peer that lets a review last holds up the end no longer than reviews may take.
func TestSlowPeersDoNotHoldUpTheEnd(t *testing.T) {
	small := posted(string(question([]byte(goodPod), nil)))
	synctest.Test(t, func(t *testing.T) {
		s, connect := startPeers(t, newReviewer(nil), mostConnections, nil)
		p := connect(small[:10])
		time.Sleep(longestHead - time.Second)
		go func() { _, _ = io.WriteString(p, small[10:]) }() // and does not take the answer
		began := time.Now()
		end(t.Context(), s)
		if took := time.Since(began); took > longestEnd {
			t.Errorf("the end took %v, want at most %v", took, longestEnd)
		}
		select {
		case <-p.ended:
		default:
			t.Error("the connection is still there, want it ended")
		}
	})
}

// A head costs many times its length.
func TestLongHeadsAreRefused(t *testing.T) {
	small := posted(string(question([]byte(goodPod), nil)))
	for length, want := range map[int]int{2 << 10: http.StatusOK, 6 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		synctest.Test(t, func(t *testing.T) {
			text := strings.Replace(small, "Host: a\r\n", "Host: a\r\nAuthorization: Bearer "+strings.Repeat("a", length)+"\r\n", 1)
			harness.Equal(t, heard(peers(t, mostConnections, nil)(text)), want, "a token of", length, "bytes: status")
		})
	}
}

// Reviews are asked for over HTTP/1.1 and nothing else, as API servers do.
func TestNoHTTP2IsOffered(t *testing.T) {
	certificate, roots := bubbleCertificate(t)
	synctest.Test(t, func(t *testing.T) {
		connect := peers(t, mostConnections, certificate)
		c := tls.Client(connect(""), &tls.Config{RootCAs: roots, ServerName: "a", NextProtos: []string{"h2"}})
		if err := c.Handshake(); err == nil {
			t.Errorf("to h2 alone: got %q, want no connection", c.ConnectionState().NegotiatedProtocol)
		}
		c = tls.Client(connect(""), &tls.Config{RootCAs: roots, ServerName: "a", NextProtos: []string{"h2", "http/1.1"}})
		harness.NoError(t, c.Handshake())
		harness.Equal(t, c.ConnectionState().NegotiatedProtocol, "http/1.1", "to both")
		go func() {
			_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}()
		if got := heard(c); got < 400 {
			t.Errorf("HTTP/2 all the same: got status %d, want it refused", got)
		}
	})
}

// What is no TLS costs its sender the connection at once.
func TestTLSGarbageEndsTheConnection(t *testing.T) {
	certificate, _ := bubbleCertificate(t)
	for name, text := range map[string]string{
		"plain HTTP":          "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"zeros":               strings.Repeat("\x00", 1000),
		"a record too long":   "\x16\x03\x01\xff\xff" + strings.Repeat("x", 70_000),
		"an alert":            "\x15\x03\x01\x00\x02\x02\x28",
		"a hello of nothing":  "\x16\x03\x01\x00\x04\x01\x00\x00\x00",
		"data before a hello": "\x17\x03\x03\x00\x10" + strings.Repeat("x", 16),
		"a hello and garbage": helloOf(t) + strings.Repeat("x", 1000),
		"endless empty data":  strings.Repeat("\x16\x03\x01\x00\x00", 1000),
		"a long hello":        longHello(mostHandshake + 1000),
	} {
		synctest.Test(t, func(t *testing.T) {
			p := peers(t, mostConnections, certificate)("")
			go func() { _, _ = io.Copy(io.Discard, p) }()
			began := time.Now()
			_, _ = io.WriteString(p, text)
			select {
			case <-p.ended:
			case <-time.After(time.Hour):
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: ended after %v, want at once", name, took)
			}
		})
	}
}

// bubbleCertificate is a certificate for the time that it is in bubbles, and who trusts it.
func bubbleCertificate(t *testing.T) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	authority, certificate := authorityOf(t, "a", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	return certificate, trusting(authority)
}

// longHello is the beginning of a client's hello of 64 KiB.
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

// helloOf is a client's first record.
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
