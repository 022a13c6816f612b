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
)

// File names in a Secret of type kubernetes.io/tls.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// maxFile is the maximum size of a file in bytes. A Secret has the same maximum size.
const maxFile = 1 << 20

// pair is a certificate and its private key. It is immutable.
type pair struct {
	path        string // path of the certificate, for messages
	certificate tls.Certificate
	sum         [sha256.Size]byte // hash of both files
}

// A ValidityError reports that a certificate has expired or is not valid yet.
type ValidityError struct {
	InUse bool // the certificate is in use, because there is no valid certificate

	problem string
}

// Error implements error.
func (e *ValidityError) Error() string { return e.problem }

// IsInUse reports whether err is a [ValidityError] about the certificate in use.
func IsInUse(err error) bool {
	v, ok := errors.AsType[*ValidityError](err)
	return ok && v.InUse
}

// checkValidity returns a *ValidityError if p is not valid at the time now. inUse is the value for
// ValidityError.InUse.
func (p *pair) checkValidity(now time.Time, inUse bool) error {
	switch leaf := p.certificate.Leaf; {
	case now.After(leaf.NotAfter):
		return &ValidityError{inUse, fmt.Sprintf("%s: expired at %s", p.path, leaf.NotAfter.UTC().Format(time.RFC3339))}
	case now.Before(leaf.NotBefore):
		return &ValidityError{inUse, fmt.Sprintf("%s: not valid before %s", p.path, leaf.NotBefore.UTC().Format(time.RFC3339))}
	}
	return nil
}

// files contains a certificate file and a key file that were read together.
type files struct {
	certPath, keyPath string
	cert, key         []byte
	sum               [sha256.Size]byte // hash of both files
}

// readFiles reads a key pair. It returns nil if both files are missing, and an error that wraps
// [fs.ErrNotExist] if one file is missing.
func readFiles(certPath, keyPath string, read func(path string) ([]byte, error)) (*files, error) {
	cert, err := read(certPath)
	key, keyErr := read(keyPath)
	// The kubelet updates a symbolic link to replace all files of a Secret atomically. If the
	// certificate has changed since the first read, the key may have changed too.
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
	fmt.Fprintf(sum, "%d ", len(cert)) // separates the two files in the hash
	sum.Write(cert)
	sum.Write(key)
	return &files{certPath, keyPath, cert, key, [sha256.Size]byte(sum.Sum(nil))}, nil
}

// parse returns the key pair in f. Each error contains a file name.
func (f *files) parse() (*pair, error) {
	chain, err := certificates(f.cert)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.certPath, err)
	}
	// Only the leaf is parsed. Clients validate the rest of the chain.
	if _, err := x509.ParseCertificate(chain[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", f.certPath, err)
	}
	certificate, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.keyPath, err) // the certificate is valid, so the key is invalid or does not match
	}
	return &pair{f.certPath, certificate, f.sum}, nil
}

// certificates returns the DER form of all certificates in text. It returns an error if there is no
// certificate, or if a certificate is truncated because the file is still being written.
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
		return nil, fmt.Errorf("%d PEM blocks of type CERTIFICATE found, %d are valid", begun, len(found))
	}
	return found, nil
}

// authorities contains the certificate authorities for client certificates.
type authorities struct {
	pool *x509.CertPool
	sum  [sha256.Size]byte
}

// readAuthorities reads a PEM file with at least one certificate. It returns an error if any certificate is invalid.
// Otherwise, clients of an authority with an invalid certificate would be rejected without an error in the log. If the
// file has not changed, readAuthorities returns old.
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

// read returns the content of a file. Each error contains the file name.
func read(path string) ([]byte, error) { return readSmallFile(path, maxFile) }
