package netconn_test

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Each bound has a test with an attack and a test with the heaviest legitimate peer. docs/bounds.md lists the bounds
// and their tests.

// soon is a timeout that expires during a test.
const soon = 30 * time.Millisecond

// beginning is the beginning of a ClientHello.
const beginning = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

// wantBounds waits until each of the named bounds has an event, and checks that no other bound has an
// event.
func wantBounds(t *testing.T, bounds *bound.Recorder, names ...bound.Name) {
	t.Helper()
	for _, name := range names {
		harness.Until(t, "an event of the bound "+name.String(), func() bool { return bounds.Count(name) > 0 })
	}
	harness.Equal(t, len(bounds.States(time.Now())), len(names), "bounds with events")
}

// wantClosed sends text to a server and checks that the server closes the connection because of
// a bound.
func wantClosed(t *testing.T, server *netconn.Server, bounds *bound.Recorder, text string, name bound.Name) {
	t.Helper()
	c, err := newShaker(t, server).dial("127.0.0.1")
	harness.NoError(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(harness.Patience))
	_, _ = io.WriteString(c, text) // an error means that the server has closed the connection early
	if _, err := io.Copy(io.Discard, c); harness.IsTimeout(err) {
		t.Errorf("got %v, want the connection closed", err)
	}
	wantBounds(t, bounds, name)
}

func TestIncompleteHandshakeTimesOut(t *testing.T) {
	bounds := bound.NewRecorder()
	wantClosed(t, recordingServer(soon, bounds), bounds, beginning, bound.TLSHandshakeTimeout)
}

func TestUnansweredHandshakeTimesOut(t *testing.T) {
	bounds := bound.NewRecorder()
	wantClosed(t, recordingServer(soon, bounds), bounds, hello(t), bound.TLSHandshakeTimeout)
}

// slow is a connection that sends each byte separately.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (n int, err error) {
	for i := range b {
		if _, err := s.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// Each byte of the handshake arrives separately, as on a network with small packets.
func TestSplitHandshakeSucceeds(t *testing.T) {
	bounds := bound.NewRecorder()
	c, err := newShaker(t, recordingServer(0, bounds)).dial("127.0.0.1")
	harness.NoError(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(harness.Patience))
	harness.NoError(t, tls.Client(slow{c}, &tls.Config{InsecureSkipVerify: true}).Handshake())
	wantBounds(t, bounds)
}

func TestSilentTLSConnectionTimesOut(t *testing.T) {
	bounds := bound.NewRecorder()
	wantClosed(t, recordingServer(soon, bounds), bounds, "", bound.SilentConnection)
}

func TestStalledHandshakeIsClosed(t *testing.T) {
	bounds := bound.NewRecorder()
	server := recordingServer(0, bounds)
	server.SetMaxHandshakes(1, 1, soon)
	s := newShaker(t, server)
	for range 2 {
		c, err := s.dial("127.0.0.1")
		harness.NoError(t, err)
		defer c.Close()
		io.WriteString(c, hello(t))
	}
	wantBounds(t, bounds, bound.TLSHandshakeStall)
}

// hello returns the ClientHello of crypto/tls.
func hello(t *testing.T) string {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake()
	b := make([]byte, 16<<10)
	n, err := server.Read(b)
	harness.NoError(t, err)
	return string(b[:n])
}

func TestFullHandshakeQueueClosesConnection(t *testing.T) {
	bounds := bound.NewRecorder()
	server := recordingServer(0, bounds)
	server.SetMaxHandshakes(1, 0, soon)
	defer server.HoldSlot()()
	wantClosed(t, server, bounds, hello(t), bound.TLSHandshakeQueue)
}

// The time in the queue depends on the sidecar and not on the client.
func TestQueuedHandshakeDoesNotTimeOut(t *testing.T) {
	bounds := bound.NewRecorder()
	server := recordingServer(soon, bounds)
	server.SetMaxHandshakes(1, 1, harness.Patience)
	release := server.HoldSlot()
	s := newShaker(t, server)
	done := make(chan error, 1)
	c, err := s.dial("127.0.0.1")
	harness.NoError(t, err)
	defer c.Close()
	go func() { done <- tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	harness.Until(t, "the handshake is queued", func() bool { return server.Queued() == 1 })
	silent, err := s.dial("127.0.0.1")
	harness.NoError(t, err)
	defer silent.Close()
	wantBounds(t, bounds, bound.SilentConnection) // the timeout has expired
	server.SetTimeout(harness.Patience)
	release()
	harness.NoError(t, <-done, "handshake after the timeout")
	wantBounds(t, bounds, bound.SilentConnection)
}

// If a client's message has arrived but was not read, the sidecar is slow, not the client.
func TestUnreadInputDoesNotStallHandshake(t *testing.T) {
	p := newPair(t, nil)
	harness.Equal(t, p.link.StalledHandshake(time.Minute, true), time.Minute, "time without input")
	io.WriteString(p.client, "x")
	harness.Until(t, "input arrived", func() bool { return !p.link.Silent() })
	harness.Equal(t, p.link.StalledHandshake(time.Minute, true), 0, "time with input")
	harness.Equal(t, p.link.StalledHandshake(time.Minute, false), time.Minute, "time while the client does not read")
}

// The clients connect at the same time, for example after a proxy restarts.
func TestConcurrentHandshakesSucceed(t *testing.T) {
	bounds := bound.NewRecorder()
	server := recordingServer(0, bounds)
	server.SetMaxHandshakes(4, 40, harness.Patience)
	var clients sync.WaitGroup
	for range 40 { // 10 times the number of slots
		clients.Go(func() { newPairOf(t, kinds["TLS 1.3"], server) })
	}
	clients.Wait()
	wantBounds(t, bounds)
}

func TestLongHandshakeIsClosed(t *testing.T) {
	bounds := bound.NewRecorder()
	wantClosed(t, recordingServer(0, bounds), bounds, longHello(), bound.TLSHandshakeSize)
}

// longHello returns a ClientHello of 65,280 bytes in records of 16 KiB.
func longHello() string {
	record := "\x16\x03\x01\x40\x00"
	return record + "\x01\x00\xff\x00" + strings.Repeat("x", 16<<10-4) + strings.Repeat(record+strings.Repeat("x", 16<<10), 3)
}

// The handshakes in progress share the memory for long handshakes.
func TestLongHandshakesShareExtraBytes(t *testing.T) {
	bounds := bound.NewRecorder()
	server := recordingServer(0, bounds)
	server.SetExtraBytes(16 << 10)
	s := newShaker(t, server)
	for range 2 { // the first handshake must return its extra bytes to the server
		c, err := s.dial("127.0.0.1")
		harness.NoError(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(harness.Patience))
		_, _ = io.WriteString(c, longHello())
		if _, err := io.Copy(io.Discard, c); harness.IsTimeout(err) {
			t.Errorf("got %v, want the connection closed", err)
		}
	}
	harness.Until(t, "bytes of both handshakes returned", func() bool { return server.ExtraBytes() == 16<<10 })
	harness.Equal(t, bounds.Count(bound.TLSHandshakeSize), 2, "events")
}

// The ClientHello of a browser with a post-quantum key share has about 1.8 KiB. This one is ten
// times as long.
func TestBrowserHandshakeSucceeds(t *testing.T) {
	bounds := bound.NewRecorder()
	config := kinds["TLS 1.3"].Clone()
	for range 75 {
		config.NextProtos = append(config.NextProtos, strings.Repeat("x", 250))
	}
	config.NextProtos = append(config.NextProtos, "http/1.1")
	newPairOf(t, config, recordingServer(0, bounds))
	wantBounds(t, bounds)
}

// recordingForger is like forged, but the server has a recorder.
func recordingForger(t *testing.T) (pair, *forger, *bound.Recorder) {
	t.Helper()
	bounds := bound.NewRecorder()
	p, f := forgedOf(t, recordingServer(0, bounds))
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	return p, f, bounds
}

// Types of TLS messages (RFC 8446 section 4), and the argument of KeyUpdate.
const (
	handshakeRecord = 22
	contentRecord   = 23
	keyUpdate       = 24
	updateRequested = 1
)

func TestEndlessTLSMessageClosesConnection(t *testing.T) {
	p, f, bounds := recordingForger(t)
	go func() {
		message := append([]byte{keyUpdate, 0, 0xff, 0}, make([]byte, 60<<10)...)
		for part := range 60 {
			if _, err := p.wire.Write(f.record(handshakeRecord, message[part<<10:(part+1)<<10])); err != nil {
				return
			}
		}
	}()
	_, err := p.link.Read(make([]byte, 10))
	if err == nil || harness.IsTimeout(err) {
		t.Errorf("got %v after 60 KiB of one message, want the connection closed", err)
	}
	wantBounds(t, bounds, bound.TLSNoContent)
}

// exchangeKeys sends n records of size bytes. The client sends the given number of KeyUpdate messages before each
// record, and reads the replies. The test fails if the content cannot be read.
func exchangeKeys(t *testing.T, p pair, f *forger, n, updates, size int) {
	t.Helper()
	go io.Copy(io.Discard, p.wire)
	go func() {
		for range n {
			var out []byte
			for range updates {
				out = append(out, f.record(handshakeRecord, []byte{keyUpdate, 0, 0, 1, updateRequested})...)
				f.update()
			}
			if _, err := p.wire.Write(append(out, f.record(contentRecord, make([]byte, size))...)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	if _, err := io.CopyN(io.Discard, p.link, int64(n*size)); err != nil {
		t.Errorf("got %v, want %d records of content", err, n)
	}
}

// The client updates its keys before each record of 16 KiB. Libraries update keys only after gigabytes.
func TestKeyUpdatesBetweenContentSucceed(t *testing.T) {
	p, f, bounds := recordingForger(t)
	exchangeKeys(t, p, f, 100, 10, 16<<10)
	wantBounds(t, bounds)
}

func TestUnreadKeyUpdatesCloseConnection(t *testing.T) {
	p, f, bounds := recordingForger(t)
	_ = p.wire.Conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	_ = p.link.TCP().SetWriteBuffer(16 << 10)
	go func() {
		for {
			var out []byte
			for range 100 { // small segments would fill the receive buffer with their overhead
				out = append(out, f.record(handshakeRecord, []byte{keyUpdate, 0, 0, 1, updateRequested})...)
				f.update()
				out = append(out, f.record(contentRecord, []byte("x"))...)
			}
			if _, err := p.wire.Write(out); err != nil {
				return
			}
		}
	}()
	if _, err := io.Copy(io.Discard, p.link); err == nil || harness.IsTimeout(err) {
		t.Errorf("got %v, want the connection closed", err)
	}
	p.link.Cut()
	wantBounds(t, bounds, bound.TLSUnreadReplies)
}

// The client requests new keys after each byte, and reads the replies.
func TestReadKeyUpdatesSucceed(t *testing.T) {
	p, f, bounds := recordingForger(t)
	exchangeKeys(t, p, f, 3000, 1, 1)
	wantBounds(t, bounds)
}
