package netconn_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// tryRead reads the available content.
func tryRead(t *testing.T, l *netconn.Conn) (string, error) {
	t.Helper()
	var text string
	var failed error
	buf := make([]byte, 4096)
	harness.NoError(t, l.WaitRead(func(fd uintptr) bool {
		n, err := l.TryRead(fd, buf)
		text, failed = string(buf[:n]), err
		return true
	}))
	return text, failed
}

// An incomplete record starts the timeout for a header section.
func TestIncompleteRecordIsStalled(t *testing.T) {
	for _, kind := range []string{"TLS 1.2", "TLS 1.3"} {
		for _, part := range []int{1, 4, 5, 6, 20} { // the first 5 bytes are the header
			t.Run(fmt.Sprintf("%s, %d bytes", kind, part), func(t *testing.T) {
				p := newPair(t, kinds[kind])
				if p.link.Stalled() {
					t.Error("got stalled after the handshake, want not stalled")
				}
				p.wire.holdBack()
				p.client.Write([]byte("hello, world"))
				p.wire.release(t, part)
				harness.Until(t, "the connection is stalled", func() bool {
					text, err := tryRead(t, p.link)
					if text != "" || !errors.Is(err, netconn.ErrAgain) {
						t.Fatalf("got %q, %v from a part of a record, want ErrAgain", text, err)
					}
					return p.link.Stalled()
				})
				p.wire.release(t, len(p.wire.held))
				harness.Until(t, "the record is read", func() bool {
					text, _ := tryRead(t, p.link)
					return text == "hello, world"
				})
				if p.link.Stalled() {
					t.Error("got stalled after the complete record, want not stalled")
				}
			})
		}
	}
}

// A complete record precedes the incomplete record.
func TestIncompleteSecondRecordIsStalled(t *testing.T) {
	p := newPair(t, kinds["TLS 1.3"])
	p.wire.holdBack()
	p.client.Write([]byte("one"))
	first := len(p.wire.held)
	p.client.Write([]byte("two"))
	p.wire.release(t, first+3)
	harness.Until(t, "the first", func() bool {
		text, _ := tryRead(t, p.link)
		return text == "one"
	})
	if !p.link.Stalled() {
		t.Error("got not stalled with a part of a second record, want stalled")
	}
}

func TestLongHandshakeReturnsError(t *testing.T) {
	client, accepted := tcpPair(t)
	l, err := netconn.New(accepted)
	harness.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- shake(l, server()) }()
	hello := append([]byte{1, 0, 0xff, 0}, make([]byte, 64<<10)...) // a ClientHello that announces 65,280 bytes
	sent := 0
	for len(hello) > 0 {
		n := min(len(hello), 1000)
		record := append([]byte{22, 3, 1, byte(n >> 8), byte(n)}, hello[:n]...)
		if _, err := client.Write(record); err != nil {
			break
		}
		sent, hello = sent+n, hello[n:]
	}
	select {
	case err = <-done:
	case <-time.After(harness.Patience):
		t.Fatalf("got no error after %d bytes, want the handshake rejected", sent)
	}
	if err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("got %v, want the handshake rejected as too large", err)
	}
}

func TestFailedHandshakeIsRecorded(t *testing.T) {
	certificate, err := harness.NewCertificate(nil)
	harness.NoError(t, err)
	other, err := harness.NewCertificate(nil)
	harness.NoError(t, err)
	for name, test := range map[string]struct {
		config *tls.Config // configuration of the client; nil if the client sends HTTP without TLS
		want   bound.Name
		error  string
	}{
		"HTTP":                 {nil, bound.TLSFailed, "first record does not look like a TLS handshake"},
		"old version":          {&tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}, bound.TLSFailed, "unsupported versions"},
		"untrusted server":     {&tls.Config{ServerName: "a", Certificates: []tls.Certificate{certificate}}, bound.TLSRejected, "bad certificate"},
		"no certificate":       {&tls.Config{InsecureSkipVerify: true}, bound.TLSNoCertificate, "didn't provide a certificate"},
		"untrusted client":     {&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{other}}, bound.TLSBadCertificate, "failed to verify certificate"},
		"accepted certificate": {&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}}, bound.NumEvents, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bounds := bound.NewRecorder()
			authority := x509.NewCertPool()
			leaf, err := x509.ParseCertificate(certificate.Certificate[0])
			harness.NoError(t, err)
			authority.AddCert(leaf)
			s := netconn.NewServer(&tls.Config{
				Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13,
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority,
			}, 0, bounds)
			client, accepted := tcpPair(t)
			l, err := netconn.New(accepted)
			harness.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- shake(l, s) }()
			if test.config == nil {
				fmt.Fprint(client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			} else if err := tls.Client(client, test.config).Handshake(); err != nil {
				client.Close()
			}
			err = <-done
			harness.Equal(t, err != nil, test.want != bound.NumEvents, fmt.Sprint("handshake fails: ", err))
			states := bounds.States(time.Now())
			if test.want == bound.NumEvents {
				harness.Equal(t, len(states), 0, "recorded events")
				return
			}
			wantEvent(t, states, test.want, test.error)
		})
	}
}

// failedHandshake calls the function end after the client has received the beginning of the server's first
// flight. The handshake must then fail. failedHandshake returns the recorded events.
func failedHandshake(t *testing.T, end func(client *net.TCPConn, l *netconn.Conn)) []bound.State {
	t.Helper()
	bounds := bound.NewRecorder()
	client, accepted := tcpPair(t)
	l, err := netconn.New(accepted)
	harness.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- shake(l, recordingServer(0, bounds)) }()
	io.WriteString(client, hello(t))
	_, err = io.ReadFull(client, make([]byte, 100))
	harness.NoError(t, err)
	end(client.(*net.TCPConn), l)
	if err := harness.Receive(t, done, "end of the handshake"); err == nil {
		t.Error("got no error, want an error of the handshake")
	}
	return bounds.States(time.Now())
}

// OpenSSL does not encrypt the alert with which it rejects a certificate.
func TestUnencryptedAlertIsRecordedAsRejection(t *testing.T) {
	for name, test := range map[string]struct {
		record []byte // record that the client sends after the first messages of the server
		want   bound.Name
		error  string
	}{
		"unknown CA":            {[]byte{21, 3, 3, 0, 2, 2, 48}, bound.TLSRejected, "remote error: tls: unknown certificate authority"},
		"change_cipher_spec":    {[]byte{20, 3, 3, 0, 1, 1, 21, 3, 3, 0, 2, 2, 42}, bound.TLSRejected, "remote error: tls: bad certificate"},
		"alert with a long MAC": {append([]byte{21, 3, 3, 0, 19}, make([]byte, 19)...), bound.TLSFailed, "bad record MAC"},
		"encrypted garbage":     {append([]byte{23, 3, 3, 0, 19}, make([]byte, 19)...), bound.TLSFailed, "bad record MAC"},
	} {
		t.Run(name, func(t *testing.T) {
			states := failedHandshake(t, func(client *net.TCPConn, _ *netconn.Conn) {
				_, err := client.Write(test.record)
				harness.NoError(t, err)
			})
			wantEvent(t, states, test.want, test.error)
		})
	}
}

// A TCP probe opens a connection and closes it.
func TestHandshakeWithoutDataIsNotRecorded(t *testing.T) {
	bounds := bound.NewRecorder()
	client, accepted := tcpPair(t)
	l, err := netconn.New(accepted)
	harness.NoError(t, err)
	client.Close()
	if err := shake(l, recordingServer(0, bounds)); err == nil {
		t.Error("got no error, want an error of the handshake")
	}
	harness.Equal(t, len(bounds.States(time.Now())), 0, "recorded events")
}

// The sidecar closes connections to serve others, and clients disconnect. These are not errors of TLS.
func TestClosedHandshakeIsNotRecorded(t *testing.T) {
	for name, end := range map[string]func(client *net.TCPConn, l *netconn.Conn){
		"deadline of the sidecar": func(_ *net.TCPConn, l *netconn.Conn) { l.SetReadDeadline(time.Unix(1, 0)) },
		"closed by the sidecar":   func(_ *net.TCPConn, l *netconn.Conn) { _ = l.Cut() },
		"closed by the client":    func(client *net.TCPConn, _ *netconn.Conn) { _ = client.CloseWrite() },
		"closed within a record": func(client *net.TCPConn, _ *netconn.Conn) {
			_, _ = client.Write([]byte{23, 3, 3, 0, 30, 1})
			_ = client.CloseWrite()
		},
		"reset by the client": func(client *net.TCPConn, _ *netconn.Conn) {
			_ = client.SetLinger(0)
			_ = client.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Equal(t, len(failedHandshake(t, end)), 0, "recorded events")
		})
	}
}

// Handshakes that stop after the ClientHello use all slots. Other clients of the same address are served
// after the stall time.
func TestStalledHandshakesReleaseSlots(t *testing.T) {
	const most = 256
	s := newServer()
	s.SetMaxHandshakes(most, most, time.Second)
	stalled := make(chan error, most)
	first := hello(t)
	for range most {
		client, accepted := tcpPair(t)
		io.WriteString(client, first)
		l, err := netconn.New(accepted)
		harness.NoError(t, err)
		go func() { stalled <- shake(l, s) }()
	}
	var honest sync.WaitGroup
	for range 20 {
		honest.Go(func() { newPairOf(t, kinds["TLS 1.3"], s) })
	}
	honest.Wait()
	if err := <-stalled; err == nil {
		t.Error("got a completed handshake, want an error")
	}
}

// Silent connections do not use slots.
func TestSilentConnectionsDoNotDelayHandshakes(t *testing.T) {
	s := newServer()
	s.SetMaxHandshakes(1, 1, harness.Patience)
	for _, text := range []string{"", beginning} {
		client, accepted := tcpPair(t)
		io.WriteString(client, text)
		l, err := netconn.New(accepted)
		harness.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- shake(l, s) }()
		newPairOf(t, kinds["TLS 1.3"], s)
		client.Close()
		if err := <-done; err == nil {
			t.Error("got a completed handshake, want an error")
		}
	}
}

func TestManyHandshakesSucceed(t *testing.T) {
	s := newServer()
	s.SetTimeout(harness.Patience)
	var clients sync.WaitGroup
	for range 300 { // more than can run concurrently
		clients.Go(func() { newPairOf(t, kinds["TLS 1.3"], s) })
	}
	clients.Wait()
}

func TestCloseDuringHandshakeReturnsError(t *testing.T) {
	client, accepted := tcpPair(t)
	l, _ := netconn.New(accepted)
	client.Write([]byte{22, 3, 1})
	client.Close()
	if err := shake(l, server()); err == nil {
		t.Error("got no error, want one")
	}
}

func TestOnlyCutOmitsCloseNotify(t *testing.T) {
	for name, c := range map[string]struct {
		end     func(*netconn.Conn) error
		goodbye bool
	}{"Close": {(*netconn.Conn).Close, true}, "CloseWrite": {(*netconn.Conn).CloseWrite, true}, "Cut": {(*netconn.Conn).Cut, false}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, kinds["TLS 1.3"])
			p.link.Write([]byte("x"))
			if _, err := p.client.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			before := p.wire.bytesRead()
			harness.NoError(t, c.end(p.link))
			io.Copy(io.Discard, p.wire) // until the connection ends
			if got := p.wire.bytesRead() > before; got != c.goodbye {
				t.Errorf("got a close_notify %t, want %t", got, c.goodbye)
			}
		})
	}
}

// forger encrypts client records with the secret of the connection (RFC 8446 sections 5.2, 7.2 and
// 7.3). It can send records that TLS libraries do not send.
type forger struct {
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// newForger reads the secret from a key log.
func newForger(t *testing.T, keyLog string) *forger {
	t.Helper()
	_, rest, ok := strings.Cut(keyLog, "CLIENT_TRAFFIC_SECRET_0 ")
	if !ok {
		t.Fatalf("no secret in %q", keyLog)
	}
	secret, err := hex.DecodeString(strings.Fields(rest)[1])
	harness.NoError(t, err)
	f := &forger{secret: secret}
	f.makeKeys()
	return f
}

// update switches to the next secret, as after a KeyUpdate.
func (f *forger) update() {
	f.secret = f.expand("traffic upd", sha256.Size)
	f.makeKeys()
}

func (f *forger) makeKeys() {
	block, err := aes.NewCipher(f.expand("key", 16))
	if err != nil {
		panic(err)
	}
	if f.aead, err = cipher.NewGCM(block); err != nil {
		panic(err)
	}
	f.iv, f.seq = f.expand("iv", 12), 0
}

// expand implements HKDF-Expand-Label.
func (f *forger) expand(label string, n int) []byte {
	label = "tls13 " + label
	info := append([]byte{0, byte(n), byte(len(label))}, label...)
	b, err := hkdf.Expand(sha256.New, f.secret, string(append(info, 0)), n)
	if err != nil {
		panic(err)
	}
	return b
}

// record returns an encrypted record with the given type and content.
func (f *forger) record(kind byte, content []byte) []byte {
	nonce := append([]byte(nil), f.iv...)
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], f.seq)
	f.seq++
	for i := range seq {
		nonce[4+i] ^= seq[i]
	}
	n := len(content) + 1 + f.aead.Overhead()
	header := []byte{23, 3, 3, byte(n >> 8), byte(n)}
	return f.aead.Seal(header, nonce, append(append([]byte(nil), content...), kind), header)
}

// forged returns a connection whose client is a forger.
func forged(t *testing.T) (pair, *forger) {
	t.Helper()
	return forgedOf(t, server())
}

// forgedOf is like forged, but with the given server.
func forgedOf(t *testing.T, server *netconn.Server) (pair, *forger) {
	t.Helper()
	var keyLog strings.Builder
	p := newPairOf(t, &tls.Config{MinVersion: tls.VersionTLS13, KeyLogWriter: &keyLog}, server)
	if suite := p.link.TLS().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Fatalf("got cipher suite %x, want AES-128-GCM, which the forger supports", suite)
	}
	return p, newForger(t, keyLog.String())
}

func TestForgedRecordIsRead(t *testing.T) { // a precondition of the following tests
	p, f := forged(t)
	p.wire.Write(f.record(23, []byte("forged")))
	b := make([]byte, 10)
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	if n, err := p.link.Read(b); err != nil || string(b[:n]) != "forged" {
		t.Errorf("got %q, %v, want forged", b[:n], err)
	}
}

// A connection with an incomplete TLS message is stalled. A long message closes the connection, because the message
// is held in memory.
func TestEndlessTLSMessageIsStalled(t *testing.T) {
	p, f := forged(t)
	const handshake, keyUpdate = 22, 24
	message := append([]byte{keyUpdate, 0, 0xff, 0}, make([]byte, 60<<10)...)
	p.wire.Write(f.record(handshake, message[:1000]))
	harness.Until(t, "the connection is stalled", func() bool {
		tryRead(t, p.link)
		return p.link.Stalled()
	})
	go func() {
		for message = message[1000:]; len(message) > 0; message = message[min(1000, len(message)):] {
			if _, err := p.wire.Write(f.record(handshake, message[:min(1000, len(message))])); err != nil {
				return
			}
		}
	}()
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	_, err := p.link.Read(make([]byte, 10))
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v after 60 KiB of one message, want the connection ended", err)
	}
}

// The server does not respond to records without content, and closes the connection after too many of them.
func TestEmptyRecordsCloseConnection(t *testing.T) {
	p, f := forged(t)
	go func() {
		for range 1000 {
			if _, err := p.wire.Write(f.record(23, nil)); err != nil {
				return
			}
		}
	}()
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	if n, err := p.link.Read(make([]byte, 10)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d, %v, want an error", n, err)
	}
}

// The client repeatedly requests new keys and does not read the responses.
func TestReaderSendsKeyUpdateResponse(t *testing.T) {
	p, f := forged(t)
	const handshake, keyUpdate, requested = 22, 24, 1
	p.wire.Write(f.record(handshake, []byte{keyUpdate, 0, 0, 1, requested}))
	before := p.wire.bytesRead()
	harness.Until(t, "the answer is sent by the reader", func() bool {
		if text, err := tryRead(t, p.link); text != "" || !errors.Is(err, netconn.ErrAgain) {
			t.Fatalf("got %q, %v, want ErrAgain", text, err)
		}
		p.wire.Conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		p.wire.Read(make([]byte, 100))
		return p.wire.bytesRead() > before
	})
}

// The client also sends a byte of content after each request. Its connection is closed before the responses fill the
// memory.
func TestUnreadTLSRepliesCloseConnection(t *testing.T) {
	p, f := forged(t)
	// The buffers fill quickly, but are large enough that the kernel does not drop acknowledgments of the
	// client's bytes.
	_ = p.wire.Conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	_ = p.link.TCP().SetWriteBuffer(16 << 10)
	const handshake, keyUpdate, requested = 22, 24, 1
	go func() {
		for range 100_000 {
			records := f.record(handshake, []byte{keyUpdate, 0, 0, 1, requested})
			f.update()
			if _, err := p.wire.Write(append(records, f.record(23, []byte("x"))...)); err != nil {
				return
			}
		}
	}()
	p.link.SetReadDeadline(time.Now().Add(harness.Patience))
	var err error
	for got := 0; err == nil; got++ {
		if got == 100_000 {
			t.Fatal("got all requests answered, want the connection closed")
		}
		_, err = p.link.Read(make([]byte, 10))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the connection ended", err)
	}
}

var _ net.Conn = (*netconn.Conn)(nil)
