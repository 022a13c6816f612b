package sidecar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
)

// openCertificates reads the TLS certificate. It returns an error if the key pair is invalid, but not if
// the files are missing, because they may be created later.
func (s *sidecar) openCertificates() (*certs.Watcher, error) {
	o := s.certificateOptions("")
	o.ClientCA = s.config.TLSClientCA.V
	pair, err := certs.Open(s.config.CertDir.V, o)
	return pair, s.nameFiles(err)
}

// certificateOptions returns options that log each reload and each error. Each log message begins with
// prefix.
func (s *sidecar) certificateOptions(prefix string) certs.Options {
	return certs.Options{
		OnReload: func(leaf *x509.Certificate) {
			s.log.Info(prefix+"loaded certificate", zap.Strings("names", namesOf(leaf)), zap.Time("notAfter", leaf.NotAfter))
		},
		OnError: func(err error) {
			text := "failed to load certificate"
			if certs.IsInUse(err) {
				text = "the certificate in use is invalid"
			}
			s.log.Warn(prefix+text, zap.Error(err))
		},
	}
}

// maxNames is the maximum number of certificate names in logs and on the status page.
const maxNames = 8

// namesOf returns the first host names and IP addresses of a certificate.
func namesOf(leaf *x509.Certificate) (names []string) {
	names = slices.Clone(leaf.DNSNames[:min(len(leaf.DNSNames), maxNames)])
	for _, ip := range leaf.IPAddresses[:min(len(leaf.IPAddresses), maxNames-len(names))] {
		names = append(names, ip.String())
	}
	for i := range names {
		names[i] = observation.Shown(names[i])
	}
	if more := len(leaf.DNSNames) + len(leaf.IPAddresses) - len(names); more > 0 {
		names = append(names, message.Count(more, "more name"))
	}
	return names
}

// certificateValidity returns the period in which the certificate in use is valid, or zero times without a certificate.
func (s *sidecar) certificateValidity() (notBefore, notAfter time.Time) {
	if leaf, _ := s.pair.State(); leaf != nil {
		return leaf.NotBefore, leaf.NotAfter
	}
	return notBefore, notAfter
}

// tlsState returns the state of TLS on the port for requests.
func (s *sidecar) tlsState() status.TLS {
	leaf, err := s.pair.State()
	t := status.TLS{Port: s.config.TLSPort.V, On: leaf != nil, ClientCertificates: s.config.TLSClientCA.V != ""}
	if leaf != nil {
		t.Subject, t.Names = observation.Shown(leaf.Subject.String()), namesOf(leaf)
		t.NotBefore, t.NotAfter = leaf.NotBefore, leaf.NotAfter
	}
	if unserved := s.noTLS.Load(); unserved != nil {
		t.On, err = false, *unserved
	}
	if err != nil {
		t.Error = observation.Shown(err.Error())
	}
	return t
}

// nameFiles adds the name of the setting to each file error in err.
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

// listenTLS listens on the TLS port. It is called if the certificate is created after startup.
func (s *sidecar) listenTLS(ctx context.Context) (net.Listener, error) {
	return s.listen(ctx, ":"+s.config.TLSPort.String(), s.trafficBuffers)
}

// serveTLS waits until there is a certificate and then serves TLS.
func (s *sidecar) serveTLS(ctx context.Context, ln net.Listener) error {
	if ln == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.pair.First():
		}
		var err error
		if ln, err = s.listenTLS(ctx); err != nil {
			// The error is only logged, because a certificate that is created after startup must not
			// interrupt requests without TLS.
			unserved := notServed(&s.config.TLSPort, err)
			s.noTLS.Store(&unserved)
			s.log.Error("TLS is not served", zap.Error(unserved))
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
