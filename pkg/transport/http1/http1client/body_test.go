package http1client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// stuck is a body that returns its first bytes and then blocks until StopBody is called.
type stuck struct {
	first   []byte
	stopped <-chan struct{}
}

func (s *stuck) Read(p []byte) (int, error) {
	if len(s.first) > 0 {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	<-s.stopped
	return 0, errors.New("stopped by the engine")
}

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestRequestBodyFramings(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	for name, body := range map[string][]byte{"empty": nil, "short": []byte("hello"), "10 MB": large} {
		for _, framing := range []string{"length", "chunked", "trailers"} {
			t.Run(name+" "+framing, func(t *testing.T) {
				type seen struct{ body, trailer string }
				arrived := make(chan seen, 2)
				a := app(t, func(conn *harness.AppConn) {
					for range 2 {
						r, b := readRequest(conn)
						arrived <- seen{b, r.Trailer.Get("A")}
						conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
					}
				})
				wantTrailer := ""
				for range 2 { // both requests use one connection, so that bytes left by the first request are detected
					k := newCall("POST", "/")
					switch framing {
					case "length":
						k.with(bytes.NewReader(body), int64(len(body)))
					case "chunked":
						k.with(bytes.NewReader(body), -1)
					case "trailers":
						k.with(bytes.NewReader(body), -1).field("Trailer", "A")
						k.Trailer = func() []wire.Field { return []wire.Field{{Name: []byte("A"), Value: []byte("b")}} }
						wantTrailer = "b"
					}
					got := k.do(a)
					got.want(t, 204, "")
					if idle(a) != 1 {
						t.Fatalf("got %d idle, want 1", idle(a))
					}
					if s := <-arrived; s.body != string(body) || s.trailer != wantTrailer {
						t.Fatalf("got %d bytes, trailer %q, want %d bytes, trailer %q", len(s.body), s.trailer, len(body), wantTrailer)
					}
				}
			})
		}
	}
}

func TestRequestBodyReadByteByByte(t *testing.T) {
	for _, length := range []int64{5, -1} {
		arrived := make(chan string, 1)
		a := app(t, func(conn *harness.AppConn) {
			_, b := readRequest(conn)
			arrived <- b
			conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
		})
		newCall("POST", "/").with(iotest.OneByteReader(strings.NewReader("hello")), length).do(a).want(t, 204, "")
		harness.Equal(t, <-arrived, "hello")
	}
}

// Excess bytes of a body would be parsed as the next request.
func TestBodyLengthMismatchClosesConnection(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"longer":               func() io.Reader { return strings.NewReader("helloGET /smuggled HTTP/1.1\r\n\r\n") },
		"longer, byte by byte": func() io.Reader { return iotest.OneByteReader(strings.NewReader("hello!")) },
		"shorter":              func() io.Reader { return strings.NewReader("hell") },
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, answered early %v", name, early), func(t *testing.T) {
				arrived := make(chan string, 1)
				a := app(t, func(conn *harness.AppConn) {
					readHead(conn)
					if early {
						conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
					}
					b := make([]byte, 100)
					n, _ := io.ReadFull(conn.In, b[:5])
					if !early {
						conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
					}
					m, _ := io.ReadFull(conn.In, b[n:])
					arrived <- string(b[:n+m])
				})
				newCall("POST", "/").with(body(), 5).do(a)
				kept := idle(a)
				a.Close()
				if whole := <-arrived == "hello"; kept == 1 && !whole {
					t.Errorf("got %d connections kept after an upload with the correct length: %v", kept, whole)
				}
			})
		}
	}
}

func TestEarlyResponseIsReturnedDuringUpload(t *testing.T) {
	for _, c := range []struct {
		name  string
		times int
		serve func(conn *harness.AppConn) // called after the response was sent
	}{
		{"and the connection is closed", 40, func(conn *harness.AppConn) {}},
		{"with the connection open", 8, func(conn *harness.AppConn) { conn.Idle() }},
		{"and the connection is half-closed", 8, func(conn *harness.AppConn) { conn.CloseWrite(); conn.Hang() }},
		{"without further reads", 8, func(conn *harness.AppConn) { conn.CloseRead(); conn.Idle() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := app(t, func(conn *harness.AppConn) {
				readHead(conn)
				conn.Send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\r\nlarge")
				c.serve(conn)
			})
			heard := 0
			for i := range c.times {
				k := newCall("POST", "/")
				switch i % 4 {
				case 0:
					k.with(endless{}, -1)
				case 1:
					k.with(endless{}, 1<<40)
				case 2:
					k.with(&stuck{[]byte("hello"), k.stopped}, -1)
				case 3:
					k.with(&stuck{nil, k.stopped}, 10)
				}
				got := harness.Within(t, "an early answer", func() outcome { return k.do(a) })
				if got.err == nil && got.status == 413 && got.body == "large" {
					heard++
				}
				if idle(a) != 0 {
					t.Errorf("got %d idle, want 0", idle(a))
				}
			}
			harness.Equal(t, heard, c.times, "answers")
		})
	}
}

// The user container responds before the last bytes are sent. Both connections can be reused.
func TestCloseWaitsForLastBodyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Settings{Port: 1, Bounds: bound.NewRecorder()})
		a.versions.setH1(true)
		defer a.Close()
		near, far := pipes()
		answered := make(chan struct{})
		k := newCall("POST", "/").with(readerFunc(func(p []byte) (int, error) {
			<-answered
			return copy(p, "hello"), io.EOF
		}), 5)
		head := make([]byte, len(k.head()))
		go func() {
			io.ReadFull(far, head)
			io.WriteString(far, "HTTP/1.1 204 No Content\r\n\r\n")
			io.Copy(io.Discard, far)
		}()
		c := newClientConn(near, a.buffers)
		k.attach(c)
		r, _, err := k.exchange(a, c)
		harness.NoError(t, err)
		if _, err := r.Next(); err != io.EOF {
			t.Fatalf("got %v, want the end", err)
		}
		close(answered)
		if r.Close(); idle(a) != 1 {
			t.Errorf("got %d idle connections, want 1", idle(a))
		}
	})
}

// The connection still has the deadline that stopped the upload.
func TestStoppedUploadClosesConnection(t *testing.T) {
	a := app(t, answersOnce("HTTP/1.1 204 No Content\r\n\r\n"))
	k := newCall("POST", "/").with(strings.NewReader("hello"), 5)
	nc, err := net.Dial("tcp", a.addresses[0])
	harness.NoError(t, err)
	c := slotted(a, &lateWriter{TCPConn: nc.(*net.TCPConn), head: len(k.head()), cut: make(chan struct{})})
	a.put(c, -1)
	got := k.do(a)
	got.want(t, 204, "")
	if n := idle(a); n != 0 {
		t.Errorf("got %d idle connections, want 0 (%v)", n, c.alive())
	}
}

// Without a reset, the kernel would keep the part of the body that the user container has not read.
func TestInterruptedUploadResetsConnection(t *testing.T) {
	abort, aborted, end := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	a := app(t, func(conn *harness.AppConn) {
		readHead(conn)
		close(abort)
		<-aborted
		_, err := io.Copy(io.Discard, conn.In)
		end <- err
	})
	k := newCall("POST", "/").with(strings.NewReader(strings.Repeat("x", 64<<20)), 64<<20)
	done := make(chan outcome, 1)
	k.Begin()
	go func() { done <- k.do(a) }()
	<-abort
	k.Abort()
	if got := harness.Within(t, "an aborted call", func() outcome { return <-done }); transport.FaultOf(got.err) != transport.FaultAborted {
		t.Errorf("got %v, want aborted", got.err)
	}
	close(aborted)
	if err := harness.Within(t, "the end of the upload", func() error { return <-end }); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the user container read %v, want a reset", err)
	}
}

// lateWriter does not return from writing a body until a deadline expires, although all bytes
// were written.
type lateWriter struct {
	*net.TCPConn
	head int
	once sync.Once
	cut  chan struct{}
}

func (w *lateWriter) Write(p []byte) (int, error) {
	n, err := w.TCPConn.Write(p)
	if n != w.head {
		<-w.cut
	}
	return n, err
}

func (w *lateWriter) SetDeadline(t time.Time) error {
	w.once.Do(func() { close(w.cut) })
	return w.TCPConn.SetDeadline(t)
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestBodyReadErrorAbortsExchange(t *testing.T) {
	broken := errors.New("the client has gone")
	for _, length := range []int64{100, -1} {
		for _, answered := range []bool{false, true} {
			t.Run(fmt.Sprintf("length %d, answered %v", length, answered), func(t *testing.T) {
				begun := make(chan struct{})
				whole := make(chan bool, 1)
				a := app(t, func(conn *harness.AppConn) {
					r := readHead(conn)
					if answered {
						conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
					}
					close(begun)
					_, err := io.ReadAll(r.Body)
					whole <- err == nil
				})
				k := newCall("PUT", "/")
				k.with(io.MultiReader(strings.NewReader("hello"), readerFunc(func([]byte) (int, error) {
					<-begun
					return 0, broken
				})), length)
				got := harness.Within(t, "the end", func() outcome { return k.do(a) })
				if transport.FaultOf(got.err) != transport.FaultClientGone || !errors.Is(got.err, broken) || idle(a) != 0 || k.sends != 1 {
					t.Errorf("got %v, %d idle, %d sends, want the body's fault, 0, 1", got.err, idle(a), k.sends)
				}
				if <-whole {
					t.Error("got a body that looks complete to the user container, want a truncated body")
				}
			})
		}
	}
}

// If the user container closes the connection during the upload, the error of the stopped body is not reported.
func TestConnectionErrorDuringUploadReturnsReset(t *testing.T) {
	for name, serve := range map[string]func(conn *harness.AppConn){
		"close":   func(conn *harness.AppConn) {},
		"reset":   func(conn *harness.AppConn) { conn.Reset() },
		"garbage": func(conn *harness.AppConn) { conn.Send("what?\r\n"); conn.Hang() },
	} {
		t.Run(name, func(t *testing.T) {
			a := app(t, func(conn *harness.AppConn) {
				readHead(conn)
				io.ReadFull(conn.In, make([]byte, 5))
				serve(conn)
			})
			k := newCall("POST", "/")
			k.with(&stuck{[]byte("hello"), k.stopped}, 10)
			got := harness.Within(t, "the end", func() outcome { return k.do(a) })
			want := transport.FaultReset
			if name == "garbage" {
				want = transport.FaultGarbage
			}
			harness.Equal(t, transport.FaultOf(got.err), want, got.err)
		})
	}
}

func TestExpectContinueDelaysBody(t *testing.T) {
	var said atomic.Bool
	arrived := make(chan string, 1)
	a := app(t, func(conn *harness.AppConn) {
		r := readHead(conn)
		conn.Send("HTTP/1.1 103 Early Hints\r\n\r\n")
		said.Store(true)
		conn.Send("HTTP/1.1 100 Continue\r\n\r\n")
		b, _ := io.ReadAll(r.Body)
		arrived <- string(b)
		conn.Send("HTTP/1.1 204 No Content\r\n\r\n")
		conn.Hang()
	})
	body := strings.NewReader("hello")
	k := newCall("POST", "/")
	k.Expect100, k.request.Expect100 = true, true
	k.with(readerFunc(func(p []byte) (int, error) {
		if !said.Load() {
			t.Error("got a read of the body before the 100 response, want it after")
		}
		return body.Read(p)
	}), 5)
	got := k.do(a)
	got.want(t, 204, "")
	if b := <-arrived; b != "hello" || idle(a) != 1 {
		t.Errorf("got %q, %d idle, want hello, 1", b, idle(a))
	}
}

func TestExpectContinueTimeoutSendsBody(t *testing.T) {
	t.Parallel()
	a := app(t, func(conn *harness.AppConn) {
		_, b := readRequest(conn) // like an HTTP/1.0 app, it does not send status 100
		conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + b)
	})
	k := newCall("POST", "/").with(strings.NewReader("hello"), 5)
	k.Expect100 = true
	begin := time.Now()
	k.do(a).want(t, 200, "hello")
	if took := time.Since(begin); took < rewrite.ContinueTimeout {
		t.Errorf("got the body after %v, want not before %v", took, rewrite.ContinueTimeout)
	}
}

func TestExpectContinueFinalResponseSkipsBody(t *testing.T) {
	a := app(t, answersOnce("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno"))
	k := newCall("POST", "/")
	k.Expect100 = true
	k.with(readerFunc(func([]byte) (int, error) {
		t.Error("got a read of the body, want none")
		return 0, io.EOF
	}), 5)
	got := k.do(a)
	got.want(t, 417, "no")
	if idle(a) != 0 {
		t.Errorf("got %d idle, want 0", idle(a))
	}
	if k.upload.starter.Stop() {
		t.Error("got a timer that would still start the upload, want it stopped")
	}
}

// A user container can respond while it reads. While its protocol is unknown, the body is delayed
// until the header section of the response arrives.
func TestUploadContinuesAfterResponseHeader(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known %v", known), func(t *testing.T) {
			a := app(t, func(conn *harness.AppConn) {
				r := readHead(conn)
				conn.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				b := make([]byte, 1)
				for {
					if _, err := io.ReadFull(r.Body, b); err != nil {
						break
					}
					conn.Send("1\r\n" + string(b) + "\r\n")
				}
				conn.Send("0\r\n\r\n")
				conn.Hang()
			})
			if !known {
				a.versions.forget()
			}
			k := newCall("POST", "/").with(strings.NewReader("hello"), 5)
			got := harness.Within(t, "the echo", func() outcome { return k.do(a) })
			got.want(t, 200, "hello")
			if idle(a) != 1 {
				t.Errorf("got %d idle, want 1", idle(a))
			}
		})
	}
}
