package certs

import (
	"cmp"
	"crypto/tls"
	"sync/atomic"
)

// Config is a server's configuration: that of base, with the certificate of w at the
// moment of each handshake and, if Options.ClientCA is set, a client certificate verified
// against the authorities of that moment, and required unless Options.ClientOptional
// (see [VerifyClients]). Where base does not say otherwise it offers TLS 1.3 and later,
// and HTTP/2 and HTTP/1.1 by ALPN.
//
// [net/http.Server.ServeTLS] refuses CipherSuites with MinVersion TLS 1.2 that
// lack HTTP/2's mandatory TLS_ECDHE_*_WITH_AES_128_GCM_SHA256 (RFC 9113, 9.2.2).
func (w *Watcher) Config(base *tls.Config) *tls.Config {
	base = base.Clone()
	base.GetCertificate = w.GetCertificate
	// Records of 1,400 bytes at first let a browser far away show the beginning of a
	// page sooner. In a cluster they are a cost: ten records in place of one.
	base.DynamicRecordSizingDisabled = true
	if base.NextProtos == nil {
		base.NextProtos = []string{"h2", "http/1.1"}
	}
	base.MinVersion = cmp.Or(base.MinVersion, tls.VersionTLS13)
	if w.opts.ClientCA == "" {
		return base
	}

	base.ClientAuth = tls.RequireAndVerifyClientCert // who looks sees that clients are asked
	if w.opts.ClientOptional {
		base.ClientAuth = tls.VerifyClientCertIfGiven
	}
	// A ticket would outlive the authority that its client was verified against.
	base.SessionTicketsDisabled = true
	var newest atomic.Pointer[tls.Config] // the one for the authorities in use
	outer := base.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c, pool := newest.Load(), w.clientCAs.Load().pool
		if c == nil || c.ClientCAs != pool {
			c = base.Clone()
			VerifyClients(c, pool, w.opts.ClientOptional)
			newest.Store(c)
		}
		return c, nil
	}
	return outer
}
