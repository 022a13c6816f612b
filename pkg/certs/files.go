package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/smallfile"
)

// Names in a Secret of type kubernetes.io/tls.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// maxFile is the size in bytes up to which a file is read: that of the largest
// Secret.
const maxFile = 1 << 20

// pair is a certificate with its key. It never changes.
type pair struct {
	path        string // of the certificate, for messages
	certificate tls.Certificate
	sum         [sha256.Size]byte // of both files
}

// outOfDate says why p is not valid at now, nil if it is.
func (p *pair) outOfDate(now time.Time) error {
	switch leaf := p.certificate.Leaf; {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%s: expired at %s", p.path, leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%s: not valid before %s", p.path, leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// files are the two as they were at one moment.
type files struct {
	certPath, keyPath string
	cert, key         []byte
	sum               [sha256.Size]byte // of both
}

// readFiles reads a pair. It is nil if neither file exists, and an
// error that is [fs.ErrNotExist] if only one does.
func readFiles(certPath, keyPath string, read func(path string) ([]byte, error)) (*files, error) {
	cert, err := read(certPath)
	key, keyErr := read(keyPath)
	// A Secret's directory is exchanged as a whole, by one symbolic link. If the
	// certificate is another one by now, the key may be as well.
	for range 3 {
		again, againErr := read(certPath)
		if bytes.Equal(cert, again) {
			break
		}
		cert, err = again, againErr
		key, keyErr = read(keyPath)
	}
	if errors.Is(err, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		return nil, nil
	}
	if err := errors.Join(err, keyErr); err != nil {
		return nil, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d ", len(cert)) // where the one ends and the other begins
	sum.Write(cert)
	sum.Write(key)
	return &files{certPath, keyPath, cert, key, [sha256.Size]byte(sum.Sum(nil))}, nil
}

// parse makes a pair of f; every error names the file.
func (f *files) parse() (*pair, error) {
	chain, err := certificates(f.cert)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.certPath, err)
	}
	// Only the leaf is parsed: what follows it is for the clients to validate.
	if _, err := x509.ParseCertificate(chain[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", f.certPath, err)
	}
	certificate, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.keyPath, err) // the certificate is good: it is the key, or the two differ
	}
	return &pair{f.certPath, certificate, f.sum}, nil
}

// certificates is the DER form of every certificate in text, at least one. One
// that is cut off, by a writer that has not finished, is an error.
func certificates(text []byte) ([][]byte, error) {
	var found [][]byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			found = append(found, block.Bytes)
		}
	}
	switch begun := bytes.Count(text, []byte("-----BEGIN CERTIFICATE-----")); {
	case begun == 0:
		return nil, errors.New("no PEM block of type CERTIFICATE")
	case begun != len(found):
		return nil, fmt.Errorf("%d PEM blocks of type CERTIFICATE begin, %d can be read", begun, len(found))
	}
	return found, nil
}

// authorities are those that may sign a client's certificate.
type authorities struct {
	pool *x509.CertPool
	sum  [sha256.Size]byte
}

// readAuthorities reads a PEM file with at least one certificate. One that
// cannot be parsed spoils the file: to leave it out would turn its clients away
// without a word. If the file is that of old, so is the result.
func readAuthorities(path string, old *authorities) (*authorities, error) {
	text, err := read(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	if old != nil && old.sum == sum {
		return old, nil
	}
	found, err := certificates(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	pool := x509.NewCertPool()
	for i, der := range found {
		ca, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", path, i+1, err)
		}
		pool.AddCert(ca)
	}
	return &authorities{pool, sum}, nil
}

// read is the content of a file; every error names the file.
func read(path string) ([]byte, error) { return smallfile.Read(path, maxFile) }
