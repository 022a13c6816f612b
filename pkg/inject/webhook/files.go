package webhook

import (
	"crypto/x509"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
)

// OpenFiles watches a certificate that somebody else renews, as cert-manager does: tls.crt
// and tls.key in a folder. Files that are not there yet are no error.
func OpenFiles(dir string, log *zap.Logger) (*certs.Watcher, error) {
	return certs.Open(dir, certs.Options{
		OnReload: func(leaf *x509.Certificate) {
			log.Info("the certificate is in use", zap.Time("until", leaf.NotAfter))
		},
		OnError: func(err error) { log.Error("the certificate cannot be used", zap.Error(err)) },
	})
}
