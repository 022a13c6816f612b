// Package certs provides a TLS server certificate that is reloaded when its files change. An
// invalid new key pair never replaces a valid one (docs/promises.md 3.9).
//
// A key pair is a certificate and a private key in PEM files, usually tls.crt and tls.key of a
// mounted Secret. [Open] reads the key pair, [Watcher.Run] rereads it every 5 seconds, and
// [Watcher.Config] returns a TLS configuration that always uses the newest key pair. Handshakes take
// no lock, and existing connections are not affected.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"
)

// interval is the time between two reads of the files. A shorter interval would be of little use,
// because the kubelet takes up to a minute to update a mounted Secret.
const interval = 5 * time.Second

// Options configure a [Watcher]. The zero value is valid.
type Options struct {
	// ClientCA is a PEM file with the certificate authorities for client certificates. If it is
	// set, each client must send a certificate. The file is reloaded like the key pair. If it is
	// empty, client certificates are not requested.
	ClientCA string

	// If ClientOptional is true, clients that send no certificate are also accepted.
	ClientOptional bool

	// OnReload is called with the certificate of each key pair that the Watcher begins to use,
	// including the first one. It may be nil.
	OnReload func(leaf *x509.Certificate)

	// OnError is called if the files are missing or invalid. It is not called again for the same
	// error until a different error occurs or the files are valid. The previous key pair remains in
	// use. An error of type [ValidityError] can also describe the key pair in use. OnError may be nil.
	//
	// OnReload and OnError are called by Open and Run, but never concurrently.
	OnError func(error)
}

// A Watcher holds a key pair. All methods except Run are safe for concurrent use.
type Watcher struct {
	cert, key string // file paths
	opts      Options

	pair      atomic.Pointer[pair]            // nil before the first pair is loaded
	clientCAs atomic.Pointer[authorities]     // nil if client certificates are not requested
	first     chan struct{}                   // closed when pair is set for the first time
	rejected  atomic.Pointer[error]           // problem with the current files; see State
	reported  struct{ pair, clientCA string } // last errors passed to OnError; used by Open and then by Run
}

// Open reads the key pair tls.crt and tls.key in dir. See [OpenFiles].
func Open(dir string, o Options) (*Watcher, error) {
	return OpenFiles(filepath.Join(dir, certFile), filepath.Join(dir, keyFile), o)
}

// OpenFiles reads a key pair from two files.
//
// If both files are missing, OpenFiles returns no error because they can be created later. See
// [Watcher.First]. If only one file is missing, OpenFiles calls OnError and returns no error. If
// the key pair or the Options.ClientCA file is invalid, OpenFiles returns an error that contains
// the file name. OpenFiles accepts a key pair that has expired or is not valid yet, because clients
// check the validity with their own clocks. In this case, it calls OnError.
func OpenFiles(cert, key string, o Options) (*Watcher, error) {
	w := &Watcher{cert: cert, key: key, opts: o, first: make(chan struct{})}
	inPair, inClientCA := w.renewPair(), w.renewClientCA()
	var problem error // problem with the key pair that is reported but not returned
	if w.pair.Load() != nil || errors.Is(inPair, fs.ErrNotExist) {
		w.report(&w.reported.pair, inPair)
		problem, inPair = inPair, nil
	}
	if err := errors.Join(inPair, inClientCA); err != nil {
		return nil, err
	}
	w.noteRejected(problem, nil)
	return w, nil
}

// Run rereads the files every interval until ctx is done and then returns nil. It must be called at
// most once.
func (w *Watcher) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.reload()
		}
	}
}

// First returns a channel that is closed when the first key pair is available.
func (w *Watcher) First() <-chan struct{} { return w.first }

// NotAfter returns the expiry time of the certificate in use, or the zero time if there is none.
func (w *Watcher) NotAfter() time.Time {
	if p := w.pair.Load(); p != nil {
		return p.certificate.Leaf.NotAfter
	}
	return time.Time{}
}

// State returns the certificate in use, or nil if there is none. err describes the problem with the
// current files. It is nil if the files are in use, or if neither file has been created yet.
func (w *Watcher) State() (leaf *x509.Certificate, err error) {
	if p := w.pair.Load(); p != nil {
		leaf = p.certificate.Leaf
	}
	if rejected := w.rejected.Load(); rejected != nil {
		err = *rejected
	}
	return leaf, err
}

// GetCertificate implements [tls.Config.GetCertificate]. It returns an error if there is no key
// pair yet.
func (w *Watcher) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if p := w.pair.Load(); p != nil {
		return &p.certificate, nil
	}
	return nil, fmt.Errorf("%s: no certificate yet", w.cert)
}

// reload rereads all files once. It must not be called concurrently.
func (w *Watcher) reload() {
	inPair, inClientCA := w.renewPair(), w.renewClientCA()
	w.noteRejected(inPair, inClientCA)
	w.report(&w.reported.pair, inPair)
	w.report(&w.reported.clientCA, inClientCA)
}

// noteRejected stores the error that State returns. It ignores a [ValidityError] that describes the
// certificate in use.
func (w *Watcher) noteRejected(inPair, inClientCA error) {
	if IsInUse(inPair) {
		inPair = nil
	}
	if err := errors.Join(inPair, inClientCA); err != nil {
		w.rejected.Store(&err)
		return
	}
	w.rejected.Store(nil)
}

// renewPair replaces the key pair in use if the files contain a new key pair. A key pair that has
// expired or is not valid yet does not replace a valid key pair. The error describes the problem with
// the files.
func (w *Watcher) renewPair() error {
	old := w.pair.Load()
	found, err := readFiles(w.cert, w.key, read)
	switch {
	case err != nil:
		return err
	case found == nil && old == nil:
		return nil
	case found == nil:
		return fmt.Errorf("%s and %s: %w", w.cert, w.key, fs.ErrNotExist)
	case old != nil && old.sum == found.sum:
		return old.checkValidity(time.Now(), true)
	}
	next, err := found.parse()
	if err != nil {
		return err
	}
	// If the clock of the issuer is ahead, a new key pair is not valid for the first few seconds.
	// The pair is checked again after the next interval.
	now := time.Now()
	if old != nil && old.checkValidity(now, true) == nil {
		if err := next.checkValidity(now, false); err != nil {
			return err
		}
	}
	w.pair.Store(next)
	if old == nil {
		close(w.first)
	}
	if w.opts.OnReload != nil {
		w.opts.OnReload(next.certificate.Leaf)
	}
	return next.checkValidity(now, true)
}

// renewClientCA loads the authorities from disk and uses them if all of them are valid.
func (w *Watcher) renewClientCA() error {
	if w.opts.ClientCA == "" {
		return nil
	}
	next, err := readAuthorities(w.opts.ClientCA, w.clientCAs.Load())
	if err != nil {
		return err
	}
	w.clientCAs.Store(next)
	return nil
}

// report calls OnError unless err has the same message as the last error and describes the same key
// pair.
func (w *Watcher) report(reported *string, err error) {
	if err == nil {
		*reported = ""
		return
	}
	message := err.Error()
	if IsInUse(err) {
		message += " (in use)" // if the key pair in use expires, a rejected key pair replaces it, but the error message does not change
	}
	if message == *reported {
		return
	}
	*reported = message
	if w.opts.OnError != nil {
		w.opts.OnError(err)
	}
}
