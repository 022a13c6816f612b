package certs

import (
	"cmp"
	"crypto/tls"
	"sync/atomic"
)

// Config returns a copy of base that uses the current certificate of w for each handshake. If
// Options.ClientCA is set, client certificates are verified against the current authorities, and
// required unless Options.ClientOptional is set. See [VerifyClients]. By default, the configuration
// supports TLS 1.3 and later, and offers HTTP/2 and HTTP/1.1 by ALPN.
//
// [net/http.Server.ServeTLS] returns an error for TLS 1.2 if CipherSuites is set and does not contain
// TLS_ECDHE_*_WITH_AES_128_GCM_SHA256, which HTTP/2 requires (RFC 9113, 9.2.2).
func (w *Watcher) Config(base *tls.Config) *tls.Config {
	base = base.Clone()
	base.GetCertificate = w.GetCertificate
	// Small initial records allow a browser with a slow connection to show the beginning of a page
	// sooner. In a cluster, they have no benefit, and ten records of 1,400 bytes need more CPU time
	// than one large record.
	base.DynamicRecordSizingDisabled = true
	if base.NextProtos == nil {
		base.NextProtos = []string{"h2", "http/1.1"}
	}
	base.MinVersion = cmp.Or(base.MinVersion, tls.VersionTLS13)
	if w.opts.ClientCA == "" {
		return base
	}

	// Callers use this field to determine whether client certificates are requested. Handshakes use the
	// configuration that GetConfigForClient returns.
	base.ClientAuth = tls.RequireAndVerifyClientCert
	if w.opts.ClientOptional {
		base.ClientAuth = tls.VerifyClientCertIfGiven
	}
	// Otherwise, a client could use a session ticket after the authority of its certificate was removed.
	base.SessionTicketsDisabled = true
	var newest atomic.Pointer[tls.Config] // configuration of the last handshake; reused for the same authorities
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
