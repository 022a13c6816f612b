package sidecar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
)

// openCertificates reads the certificate, which may also appear later. A pair
// that cannot be used is an error.
func (s *sidecar) openCertificates() (*certs.Watcher, error) {
	o := s.certificateOptions("")
	o.ClientCA = s.config.TLSClientCA.V
	pair, err := certs.Open(s.config.CertDir.V, o)
	return pair, s.nameFiles(err)
}

// certificateOptions make the log say what becomes of a certificate; of begins each line.
func (s *sidecar) certificateOptions(of string) certs.Options {
	return certs.Options{
		OnReload: func(leaf *x509.Certificate) {
			s.log.Info(of+"certificate in use", zap.Strings("names", leaf.DNSNames), zap.Time("notAfter", leaf.NotAfter))
		},
		OnError: func(err error) { s.log.Warn(of+"certificate not in use", zap.Error(err)) },
	}
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
		variable := s.config.CertDir.Name()
		if ca := s.config.TLSClientCA.V; ca != "" && strings.Contains(err.Error(), ca) {
			variable = s.config.TLSClientCA.Name()
		}
		all[i] = fmt.Errorf("%s: %w", variable, err)
	}
	return errors.Join(all...)
}

// listenTLS listens on the TLS port if the certificate arrives after the start.
func (s *sidecar) listenTLS(ctx context.Context) (net.Listener, error) {
	return s.listen(ctx, ":"+s.config.TLSPort.String(), s.clientBuffers)
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
		if ln, err = s.listenTLS(ctx); err != nil {
			// Plain requests are still served: a certificate that comes late must not
			// take them down.
			s.log.Error("TLS is not served", zap.Error(fmt.Errorf("%s: %w", s.config.TLSPort.Name(), err)))
			return nil
		}
	}
	c := s.config
	return s.http1.Serve(ln, s.pair.Config(&tls.Config{
		MinVersion:       c.TLSMinVersion.V,
		MaxVersion:       c.TLSMaxVersion.V,
		CipherSuites:     c.TLSCipherSuites.V,
		CurvePreferences: c.TLSCurves.V,
	}))
}
