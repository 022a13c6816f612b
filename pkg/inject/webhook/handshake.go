package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

const (
	// maxHandshakeBytes is the maximum number of bytes that a client can send in a TLS handshake.
	// Without this limit, crypto/tls accepts a ClientHello of 64 KiB and certificates of 256 KiB per
	// connection. An API server sends 2 KiB in addition to its certificates.
	maxHandshakeBytes = 16 << 10
	// maxHandshakes is the maximum number of concurrent handshakes.
	maxHandshakes = 256
	// handshakeTimeout is the maximum duration of a handshake. It equals the time that an API
	// server waits for the response.
	handshakeTimeout = 5 * time.Second
)

// serveTLS serves HTTPS on a listener until server is closed.
func (s *Server) serveTLS(server *http.Server, l net.Listener) error {
	return server.Serve(fair.Handshakes{
		Config: s.tlsConfig(), Max: maxHandshakes, Bytes: maxHandshakeBytes, Time: handshakeTimeout,
		Failed: func(client net.Addr, err error) {
			s.Metrics.handshakes.Inc()
			if n := s.failedHandshakes.Add(time.Now()); n > 0 {
				s.Log.Warn("TLS handshakes failed", zap.Int("handshakes", n), zap.Stringer("client", client), zap.String("error", message.Truncate(err.Error(), maxTextLength)))
			}
		},
	}.Listener(l))
}

// tlsConfig returns a configuration that only offers HTTP/1.1.
func (s *Server) tlsConfig() *tls.Config {
	c := &tls.Config{GetCertificate: s.Certificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if s.ClientCAs != nil {
		certs.VerifyClients(c, s.ClientCAs, false)
	}
	return c
}

// ParseAuthorities returns a pool with the certificates in a PEM file. It returns an error if there
// are none.
func ParseAuthorities(text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no PEM certificate found")
	}
	return pool, nil
}
