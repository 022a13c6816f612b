package sidecar

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
)

// openCertificates reads the certificate, which may also appear later. A pair
// that cannot be used is an error.
func (s *sidecar) openCertificates() (*certs.Watcher, error) {
	c := s.config
	pair, err := certs.Open(c.CertDir, certs.Options{
		ClientCA: c.TLSClientCA,
		OnReload: func(leaf *x509.Certificate) {
			s.log.Info("certificate in use", zap.Strings("names", leaf.DNSNames), zap.Time("notAfter", leaf.NotAfter))
		},
		OnError: func(err error) { s.log.Warn("certificate not in use", zap.Error(err)) },
	})
	return pair, s.nameFiles(err)
}

// nameFiles says of each error about files which setting has named them.
func (s *sidecar) nameFiles(err error) error {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for i, err := range all {
		variable := "TLS_CERT_DIR"
		if ca := s.config.TLSClientCA; ca != "" && strings.Contains(err.Error(), ca) {
			variable = "QUEUE_PROXY_TLS_CLIENT_CA"
		}
		all[i] = fmt.Errorf("%s: %w", variable, err)
	}
	return errors.Join(all...)
}

// hasPair reports whether there is a certificate already.
func hasPair(w *certs.Watcher) bool {
	select {
	case <-w.First():
		return true
	default:
		return false
	}
}

// metricsTLS returns the certificate of the metrics' port, nil where it has none.
// The settings are those of Knative's head. Who asks for encryption or for clients'
// certificates never gets metrics without: what cannot be used is an error.
func (s *sidecar) metricsTLS() (*certs.Watcher, error) {
	c := &s.config.Telemetry.MetricsTLS
	auth := strings.ToLower(strings.TrimSpace(c.ClientAuth))
	switch {
	case (c.Cert == "") != (c.Key == ""):
		return nil, errors.New("METRICS_PROMETHEUS_TLS_CERT and METRICS_PROMETHEUS_TLS_KEY: one is set without the other")
	case auth != "" && auth != "none" && auth != "optional" && auth != "require":
		return nil, fmt.Errorf("METRICS_PROMETHEUS_TLS_CLIENT_AUTH: %q is not none, optional or require", c.ClientAuth)
	case (auth == "optional" || auth == "require") != (c.ClientCA != ""):
		return nil, errors.New("METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE: it needs METRICS_PROMETHEUS_TLS_CLIENT_AUTH to be optional or require, which need it")
	case c.ClientCA != "" && c.Cert == "":
		return nil, errors.New("METRICS_PROMETHEUS_TLS_CLIENT_AUTH: it needs METRICS_PROMETHEUS_TLS_CERT")
	case c.Cert == "":
		return nil, nil
	}
	return certs.OpenFiles(c.Cert, c.Key, certs.Options{
		ClientCA:       c.ClientCA,
		ClientOptional: auth == "optional",
		OnReload: func(leaf *x509.Certificate) {
			s.log.Info("metrics: certificate in use", zap.Strings("names", leaf.DNSNames), zap.Time("notAfter", leaf.NotAfter))
		},
		OnError: func(err error) { s.log.Warn("metrics: certificate not in use", zap.Error(err)) },
	})
}

// serveTLS serves requests over TLS from the moment on when there is a
// certificate.
func (s *sidecar) serveTLS(ctx context.Context, ln net.Listener) error {
	if ln == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.pair.First():
		}
		var err error
		if ln, err = net.Listen("tcp", ":"+strconv.Itoa(s.config.TLSPort)); err != nil {
			// Plain requests are still served: a certificate that comes late must not
			// take them down.
			s.log.Error("TLS is not served", zap.Error(fmt.Errorf("QUEUE_SERVING_TLS_PORT: %w", err)))
			return nil
		}
	}
	c := s.config
	config := s.pair.Config(certs.Settings{
		MinVersion:   c.TLSMinVersion,
		MaxVersion:   c.TLSMaxVersion,
		CipherSuites: c.TLSCipherSuites,
		Curves:       c.TLSCurves,
	})
	return s.serveClients(ln, config)
}
