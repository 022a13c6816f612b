// Package certs is a server certificate that renews itself: a bad new pair
// never replaces a good old one (docs/promises.md 3.9).
//
// The pair is a certificate and a key, PEM, usually tls.crt and tls.key of a
// mounted Secret. [Open] reads it, [Watcher.Run] looks at it again every few seconds,
// and [Watcher.Config] is the TLS configuration that always uses the newest.
// Handshakes take no lock; connections that exist are not touched.
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

// interval is how often the files are looked at. Reading two small files is cheap,
// and a kubelet takes up to a minute to bring a new Secret.
const interval = 5 * time.Second

// Options of a [Watcher]. The zero value is good.
type Options struct {
	// ClientCA is a PEM file of the authorities whose client certificates are
	// accepted. If it is set, every client must show one. It is renewed as the
	// pair is. Empty: no client is asked.
	ClientCA string

	// ClientOptional serves clients too that show no certificate to ClientCA.
	ClientOptional bool

	// OnReload, if not nil, is called with the certificate of every pair that is taken
	// into use, the first one included.
	OnReload func(leaf *x509.Certificate)

	// OnError, if not nil, is called with what is wrong with the files: once, and again
	// after it has changed or has been good in between. What was in use before
	// stays in use.
	//
	// Both are called by Open and by Run, never at the same time.
	OnError func(error)
}

// A Watcher holds a pair. Its methods but Run may be called
// concurrently.
type Watcher struct {
	cert, key string // files
	opts      Options

	pair      atomic.Pointer[pair]            // nil: there was none yet
	clientCAs atomic.Pointer[authorities]     // nil: clients are not asked
	first     chan struct{}                   // closed when pair is set first
	said      struct{ pair, clientCA string } // what OnError heard last; Open, then Run
}

// Open reads tls.crt and tls.key in dir, as [OpenFiles] does.
func Open(dir string, o Options) (*Watcher, error) {
	return OpenFiles(filepath.Join(dir, certFile), filepath.Join(dir, keyFile), o)
}

// OpenFiles reads the pair in two files.
//
// No files are no error: they may appear later, see [Watcher.First]. One of the
// two alone is no pair, and OnError is called. A pair that cannot be used is an
// error that names the file, as is an Options.ClientCA that cannot be read. A
// pair that has expired, or is not valid yet, is used for want of a better one,
// and OnError is called: clients validate it by their own clocks.
func OpenFiles(cert, key string, o Options) (*Watcher, error) {
	w := &Watcher{cert: cert, key: key, opts: o, first: make(chan struct{})}
	inPair, inClientCA := w.renewPair(), w.renewClientCA()
	if w.pair.Load() != nil || errors.Is(inPair, fs.ErrNotExist) {
		w.report(&w.said.pair, inPair)
		inPair = nil
	}
	if err := errors.Join(inPair, inClientCA); err != nil {
		return nil, err
	}
	return w, nil
}

// Run looks at the files every interval until ctx is done, and returns nil. It
// is called at most once.
func (w *Watcher) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		}
	}
}

// First is closed as soon as there is a pair to serve with.
func (w *Watcher) First() <-chan struct{} { return w.first }

// NotAfter is when the certificate in use expires, the zero time if there is
// none.
func (w *Watcher) NotAfter() time.Time {
	if p := w.pair.Load(); p != nil {
		return p.certificate.Leaf.NotAfter
	}
	return time.Time{}
}

// GetCertificate is for [tls.Config]. It is an error until there is a pair.
func (w *Watcher) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if p := w.pair.Load(); p != nil {
		return &p.certificate, nil
	}
	return nil, fmt.Errorf("%s: no certificate yet", w.cert)
}

// look is one look at all files. Only one runs at a time.
func (w *Watcher) look() {
	w.report(&w.said.pair, w.renewPair())
	w.report(&w.said.clientCA, w.renewClientCA())
}

// renewPair takes the pair on disk into use if it is a new one and is no worse
// than the old one. The error says what is wrong with what is on disk.
func (w *Watcher) renewPair() error {
	old := w.pair.Load()
	found, err := readFiles(w.cert, w.key, read)
	switch {
	case err != nil:
		return err
	case found == nil && old == nil:
		return nil
	case found == nil:
		return fmt.Errorf("%s and %s: %w any more", w.cert, w.key, fs.ErrNotExist)
	case old != nil && old.sum == found.sum:
		return old.outOfDate(time.Now())
	}
	next, err := found.parse()
	if err != nil {
		return err
	}
	// Clocks differ: a fresh pair may be valid only in a moment, and is looked
	// at again until then.
	outOfDate := next.outOfDate(time.Now())
	if outOfDate != nil && old != nil && old.outOfDate(time.Now()) == nil {
		return outOfDate
	}
	w.pair.Store(next)
	if old == nil {
		close(w.first)
	}
	if w.opts.OnReload != nil {
		w.opts.OnReload(next.certificate.Leaf)
	}
	return outOfDate
}

// renewClientCA takes the authorities on disk into use if all of them can be
// read.
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

// report tells OnError of err unless it did so last.
func (w *Watcher) report(said *string, err error) {
	if err == nil {
		*said = ""
		return
	}
	if err.Error() == *said {
		return
	}
	*said = err.Error()
	if w.opts.OnError != nil {
		w.opts.OnError(err)
	}
}
