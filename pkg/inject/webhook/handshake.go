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
	"github.com/queue-proxy/queue-proxy/pkg/portlimit"
	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

const (
	// mostHandshake bounds what a client sends until it is known, in bytes: crypto/tls alone
	// would take 64 KiB of a hello and 256 KiB of certificates, of every connection that it
	// has. An API server sends 2 KiB, and its certificates.
	mostHandshake = 16 << 10
	// mostHandshakes go on at once.
	mostHandshakes = 256
	// handshakeTime is how long one may take: an API server does not wait much longer for
	// the answer.
	handshakeTime = 5 * time.Second
)

// serveTLS serves HTTPS on a listener until server is closed.
func (s *Server) serveTLS(server *http.Server, l net.Listener) error {
	return server.Serve(portlimit.Handshakes{
		Config: s.tlsConfig(), Max: mostHandshakes, Bytes: mostHandshake, Time: handshakeTime,
		Failed: func(client net.Addr, err error) {
			s.Metrics.handshakes.Inc()
			if n := s.failedHandshakes.Add(time.Now()); n > 0 {
				s.Log.Warn("TLS handshakes failed", zap.Int("handshakes", n), zap.Stringer("client", client), zap.String("error", printable.Truncate(err.Error(), longestText)))
			}
		},
	}.Listener(l))
}

// tlsConfig offers HTTP/1.1 alone.
func (s *Server) tlsConfig() *tls.Config {
	c := &tls.Config{GetCertificate: s.Certificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if s.ClientCAs != nil {
		certs.VerifyClients(c, s.ClientCAs, false)
	}
	return c
}

// ParseAuthorities reads those whose certificates are believed, as PEM.
func ParseAuthorities(text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no certificate in it")
	}
	return pool, nil
}
