package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzCertificates parses arbitrary certificate files. Encoding the result and parsing it again must not
// change the result. If the encoded form is truncated within a certificate, parsing must return an error.
// AppendCertsFromPEM must succeed if and only if at least one certificate is valid.
func FuzzCertificates(f *testing.F) {
	a := newAuthority(f, "a")
	cert, key := a.issue("b")
	f.Add([]byte(cert+a.pem), uint16(len(cert)))
	f.Add([]byte("a comment\n"+cert+key), uint16(len(cert)-1))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nA: b\n\nMTIz\n-----END CERTIFICATE-----\n"), uint16(40))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n"), uint16(0))
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		found, err := certificates(text)
		if err != nil {
			harness.Equal(t, found, nil, len(found), "certificates with error", err)
			return
		}
		var whole []byte
		var ends []int // end of each certificate; the newline after the last one is optional
		for _, der := range found {
			whole = append(whole, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
			ends = append(ends, len(whole)-1)
		}
		again, err := certificates(whole)
		if err != nil || len(again) != len(found) {
			t.Fatalf("%q: got %d certificates (%v) of %q, want %d", text, len(again), err, whole, len(found))
		}
		for i := range found {
			if !bytes.Equal(again[i], found[i]) {
				t.Errorf("certificate %d of %q: got %x, want %x", i, text, again[i], found[i])
			}
		}
		written := whole[:int(cut)%(len(whole)+1)]
		begun := bytes.Count(written, []byte("-----BEGIN CERTIFICATE-----"))
		ended, _ := slices.BinarySearch(ends, len(written)+1)
		switch part, err := certificates(written); {
		case begun == ended && ended > 0 && len(part) != ended:
			t.Errorf("%q: got %d certificates (%v), want %d", written, len(part), err, ended)
		case (begun != ended || ended == 0) && err == nil:
			t.Errorf("%q: got %d certificates from %d started and %d complete blocks, want an error", written, len(part), begun, ended)
		}

		pool := x509.NewCertPool()
		parsed := 0
		for _, der := range found {
			if _, err := x509.ParseCertificate(der); err == nil {
				parsed++
			}
		}
		if ok := pool.AppendCertsFromPEM(whole); ok != (parsed > 0) {
			t.Errorf("%q: AppendCertsFromPEM = %t, want %t", text, ok, !ok)
		}
	})
}
