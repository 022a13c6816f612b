package webhook

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A pooled certificate is a part of the bundles in FuzzMergeBundles.
type pooled struct {
	cert *x509.Certificate
	ours bool // the certificate remains in the bundle if it is already published
}

func poolAt(f *testing.F, now time.Time) []pooled {
	f.Helper()
	made := func(template *x509.Certificate, by *keyPair) *keyPair {
		pair, err := issue(template, by)
		harness.NoError(f, err)
		return pair
	}
	authority := func(name string, until time.Time) *keyPair {
		return made(&x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true}, nil)
	}
	first := authority(authorityName, now.Add(time.Hour))
	return []pooled{
		{first.cert, true},
		{authority(authorityName, now.Add(time.Second)).cert, true},
		{authority(authorityName, now.Add(2*time.Hour)).cert, true},
		{authority(authorityName, now).cert, false},
		{authority(authorityName, now.Add(-time.Minute)).cert, false},
		{authority("another", now.Add(time.Hour)).cert, false},
		{made(&x509.Certificate{Subject: pkix.Name{CommonName: authorityName}, NotBefore: now, NotAfter: now.Add(time.Hour)}, first).cert, false},
	}
}

// FuzzMergeBundles merges bundles of known certificates with other text between and after them. The
// low half of each byte in pick selects a certificate, and the high half selects one of the three
// bundles.
//
// The result must contain the expected certificates without duplicates and in order, and a second
// merge must not change it. Text that looks like a delimiter of a certificate can hide adjacent
// certificates, but must not add any.
func FuzzMergeBundles(f *testing.F) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	pool := poolAt(f, now)
	f.Add([]byte{}, []byte{})
	f.Add([]byte{0x00, 0x20}, []byte("\n"))
	f.Add([]byte{0x00, 0x11, 0x22, 0x21, 0x20}, []byte("a comment"))
	f.Add([]byte{0x05, 0x16, 0x25, 0x26, 0x23, 0x24, 0x03}, []byte("\r\n\t"))
	f.Add([]byte{0x00, 0x25, 0x26, 0x23}, []byte{})
	f.Add([]byte{0x20, 0x21}, []byte("-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n"))
	f.Add([]byte{0x00, 0x22}, []byte("-----BEGIN CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, pick, between []byte) {
		if len(pick) > 40 {
			return
		}
		var bundles [3][]byte
		var want [3][]*x509.Certificate
		for _, p := range pick {
			c, i := pool[int(p&15)%len(pool)], int(p>>4)%3
			bundles[i] = slices.Concat(bundles[i], between, []byte("\n"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw}), between)
			if now.Before(c.cert.NotAfter) && (i < 2 || c.ours) {
				want[i] = append(want[i], c.cert)
			}
		}
		got := mergeBundles(now, bundles[0], bundles[1], bundles[2])

		var wanted []byte
		var seen []*x509.Certificate
		for _, c := range slices.Concat(want[:]...) {
			if !slices.Contains(seen, c) {
				seen = append(seen, c)
				wanted = append(wanted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
			}
		}
		borders := bytes.Contains(between, []byte("-----"))
		if !borders && !bytes.Equal(got, wanted) {
			t.Errorf("%x between %q: got %d certificates\n%s\nwant %d\n%s", pick, between, bytes.Count(got, []byte("BEGIN")), got, len(seen), wanted)
		}
		for rest := got; len(rest) > 0; {
			block, after := pem.Decode(rest)
			if block == nil {
				t.Fatalf("got %q in addition to certificates", rest)
			}
			c, err := x509.ParseCertificate(block.Bytes)
			harness.NoError(t, err)
			if rest = after; !slices.ContainsFunc(seen, c.Equal) {
				t.Errorf("%x between %q: got unexpected certificate %v until %v", pick, between, c.Subject, c.NotAfter)
			}
			if bytes.Contains(rest, pem.EncodeToMemory(block)) {
				t.Errorf("%x between %q: got duplicate %v", pick, between, c.Subject)
			}
		}
		if again := mergeBundles(now, bundles[0], bundles[1], got); !bytes.Equal(again, got) {
			t.Errorf("%x between %q: a second merge changed\n%s\nto\n%s", pick, between, got, again)
		}
	})
}
