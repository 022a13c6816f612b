package webhook

import (
	"crypto/x509"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
)

// OpenFiles watches a certificate in the files tls.crt and tls.key of a directory. Another
// program, for example cert-manager, renews the certificate. Missing files are not an error.
func OpenFiles(dir string, log *zap.Logger) (*certs.Watcher, error) {
	return certs.Open(dir, certs.Options{
		OnReload: func(leaf *x509.Certificate) {
			log.Info("loaded certificate", zap.Time("until", leaf.NotAfter))
		},
		OnError: func(err error) { log.Error("failed to load certificate", zap.Error(err)) },
	})
}
