package netconn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// tcpPair returns both ends of a TCP connection.
func tcpPair(t testing.TB) (client net.Conn, server *net.TCPConn) {
	t.Helper()
	client, server = harness.Pair(t)
	client.SetDeadline(time.Now().Add(harness.Patience))
	return client, server
}

// server returns the server of most tests.
var server = sync.OnceValue(newServer)

// newServer returns a server with a new certificate.
func newServer() *netconn.Server { return recordingServer(0, nil) }

// recordingServer is like newServer, but with a limit on the time of handshakes and with a recorder.
func recordingServer(limit time.Duration, bounds *bound.Recorder) *netconn.Server {
	certificate, err := harness.NewCertificate(func(c *x509.Certificate) { c.Subject.CommonName = "test" })
	if err != nil {
		panic(err)
	}
	return netconn.NewServer(&tls.Config{
		Certificates: []tls.Certificate{certificate},
		NextProtos:   []string{"h2", "http/1.1"}, DynamicRecordSizingDisabled: true,
	}, limit, bounds)
}

// A holder is a connection that can delay its writes.
type holder struct {
	net.Conn
	mu   sync.Mutex
	hold bool
	held []byte
	got  int // number of bytes read
}

func (h *holder) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold {
		h.held = append(h.held, p...)
		return len(p), nil
	}
	return h.Conn.Write(p)
}

func (h *holder) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got += n
	return n, err
}

// bytesRead returns the number of bytes read.
func (h *holder) bytesRead() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got
}

// holdBack delays all following writes.
func (h *holder) holdBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = true
}

// release writes the next n delayed bytes.
func (h *holder) release(t *testing.T, n int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.Conn.Write(h.held[:n]); err != nil {
		t.Fatal(err)
	}
	h.held = h.held[n:]
}

// A pair is the client side and the server side of a connection.
type pair struct {
	client net.Conn // plaintext of the client
	wire   *holder  // TCP connection of the client
	link   *netconn.Conn
}

// newPair returns a pair over TCP, or over TLS if config is not nil. config is the configuration of the client.
func newPair(t testing.TB, config *tls.Config) pair {
	t.Helper()
	return newPairOf(t, config, server())
}

// shake completes a TLS handshake as the server.
func shake(l *netconn.Conn, s *netconn.Server) error {
	return l.Handshake(context.Background(), s, func(bool, bool) {})
}

// newPairOf is like newPair, but with the given server.
func newPairOf(t testing.TB, config *tls.Config, server *netconn.Server) pair {
	t.Helper()
	client, accepted := tcpPair(t)
	l, err := netconn.New(accepted)
	harness.NoError(t, err)
	p := pair{wire: &holder{Conn: client}, link: l}
	p.client = p.wire
	if config == nil {
		return p
	}
	config = config.Clone()
	config.InsecureSkipVerify = true
	encrypted := tls.Client(p.wire, config)
	done := make(chan error, 1)
	go func() { done <- shake(l, server) }()
	harness.NoError(t, encrypted.Handshake(), "the client's handshake")
	harness.NoError(t, <-done, "the server's handshake")
	p.client = encrypted
	return p
}

// kinds contains the client configurations for all kinds of connections.
var kinds = map[string]*tls.Config{
	"TCP":     nil,
	"TLS 1.2": {MaxVersion: tls.VersionTLS12},
	"TLS 1.3": {MinVersion: tls.VersionTLS13},
}

// forEachKind runs a test for each kind of connection.
func forEachKind(t *testing.T, run func(*testing.T, pair)) {
	for name, config := range kinds {
		t.Run(name, func(t *testing.T) { run(t, newPair(t, config)) })
	}
}

// wantEvent checks that exactly one event was recorded, with the given name, a peer, and an error that contains text.
func wantEvent(t *testing.T, states []bound.State, name bound.Name, text string) {
	t.Helper()
	harness.Equal(t, len(states), 1, "recorded events")
	harness.Equal(t, states[0].Name, name, "event")
	harness.Equal(t, states[0].Count, 1, "number of events")
	if !strings.Contains(states[0].Error, text) || states[0].Peer == "" {
		t.Errorf("got error %q and peer %q, want %q and a peer", states[0].Error, states[0].Peer, text)
	}
}
