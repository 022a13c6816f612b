package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// authority is a certificate authority for tests.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

// newAuthority returns a self-signed authority.
func newAuthority(t testing.TB, name string) *authority { return makeAuthority(t, name, nil) }

// below returns an intermediate authority signed by a.
func (a *authority) below(name string) *authority { return makeAuthority(a.t, name, a) }

func makeAuthority(t testing.TB, name string, above *authority) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.NoError(t, err)
	a := &authority{t: t, key: key}
	if above == nil {
		above = a
	}
	a.cert = above.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
	}, &key.PublicKey)
	a.pem = certPEM(a.cert)
	return a
}

// issue returns a key pair for servers and clients. It is valid from one hour ago until one hour
// from now.
func (a *authority) issue(name string) (cert, key string) {
	return a.issueFor(name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

func (a *authority) issueFor(name string, from, to time.Time) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.NoError(a.t, err)
	der, err := x509.MarshalECPrivateKey(private)
	harness.NoError(a.t, err)
	leaf := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"app.example"}, NotBefore: from, NotAfter: to,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, &private.PublicKey)
	return certPEM(leaf), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// put writes a key pair to a directory.
func (a *authority) put(dir, name string) {
	a.t.Helper()
	cert, key := a.issue(name)
	writePair(a.t, dir, cert, key)
}

func (a *authority) putFor(dir, name string, from, to time.Time) {
	a.t.Helper()
	cert, key := a.issueFor(name, from, to)
	writePair(a.t, dir, cert, key)
}

// folder returns a new directory with a key pair.
func (a *authority) folder(name string) string {
	a.t.Helper()
	dir := a.t.TempDir()
	a.put(dir, name)
	return dir
}

// pair returns a certificate for [tls.Config].
func (a *authority) pair(name string) tls.Certificate {
	a.t.Helper()
	cert, key := a.issue(name)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	harness.NoError(a.t, err)
	return pair
}

func (a *authority) sign(c *x509.Certificate, public *ecdsa.PublicKey) *x509.Certificate {
	c.SerialNumber = big.NewInt(1)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, a.key)
	harness.NoError(a.t, err)
	signed, err := x509.ParseCertificate(der)
	harness.NoError(a.t, err)
	return signed
}

func certPEM(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// client returns a client configuration that trusts a and sends the given certificates, if any.
func (a *authority) client(shown ...tls.Certificate) *tls.Config {
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "app.example", NextProtos: []string{"h2", "http/1.1"}, Certificates: shown}
	c.RootCAs.AddCert(a.cert)
	return c
}

func write(t testing.TB, path, content string) {
	t.Helper()
	harness.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func writePair(t testing.TB, dir, cert, key string) {
	t.Helper()
	write(t, filepath.Join(dir, certFile), cert)
	write(t, filepath.Join(dir, keyFile), key)
}

// mount creates the directory layout of the kubelet: tls.crt is a link to ..data/tls.crt, and
// ..data is a link to a separate directory for each version of the Secret. The returned function
// switches to a new version.
func mount(t *testing.T, dir string) (exchange func(cert, key string)) {
	t.Helper()
	for _, name := range []string{certFile, keyFile} {
		harness.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	n := 0
	return func(cert, key string) {
		t.Helper()
		n++
		state := fmt.Sprintf("..state_%d", n)
		harness.NoError(t, os.Mkdir(filepath.Join(dir, state), 0o700))
		writePair(t, filepath.Join(dir, state), cert, key)
		harness.NoError(t, os.Symlink(state, filepath.Join(dir, "..data_tmp")))
		harness.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		harness.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..state_%d", n-1))))
	}
}

// heard collects the calls to OnReload and OnError.
type heard struct {
	reloads, errors []string
}

func (h *heard) options() Options {
	return Options{
		OnReload: func(leaf *x509.Certificate) { h.reloads = append(h.reloads, leaf.Subject.CommonName) },
		OnError:  func(err error) { h.errors = append(h.errors, err.Error()) },
	}
}

// watch opens the key pair in a directory and collects the calls to its callbacks.
func watch(t *testing.T, dir string) (*Watcher, *heard) {
	t.Helper()
	h := new(heard)
	return open(t, dir, h.options()), h
}

func open(t *testing.T, dir string, o Options) *Watcher {
	t.Helper()
	w, err := Open(dir, o)
	harness.NoError(t, err)
	return w
}

// connect performs a handshake over an in-memory connection and exchanges one byte.
func connect(server, client *tls.Config) (tls.ConnectionState, error) {
	in, out := net.Pipe()
	// A pipe has no buffer. Without deadlines, a client that rejects the certificate and a server that
	// is still writing would block each other.
	in.SetDeadline(time.Now().Add(harness.Patience))
	out.SetDeadline(time.Now().Add(harness.Patience))
	end := make(chan error, 1)
	go func() {
		s := tls.Server(in, server)
		defer s.Close()
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		end <- err
	}()
	c := tls.Client(out, client)
	err := c.Handshake()
	if err == nil { // with TLS 1.3, a rejection by the server is only visible after the handshake
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	out.Close()
	if serverErr := <-end; err == nil {
		err = serverErr
	}
	return c.ConnectionState(), err
}

// served returns the name in the certificate that a client receives.
func served(server, client *tls.Config) (string, error) {
	state, err := connect(server, client)
	if err != nil {
		return "", err
	}
	return state.PeerCertificates[0].Subject.CommonName, nil
}

func wantServed(t *testing.T, w *Watcher, a *authority, want string) {
	t.Helper()
	got, err := served(w.Config(&tls.Config{}), a.client())
	if got != want || err != nil {
		t.Errorf("served certificate: got %q, %v; want %q", got, err, want)
	}
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) == len(want) {
		for i := range got {
			harness.Contains(t, got[i], want[i], what, i)
		}
		return
	}
	t.Errorf("%s: got %q, want %q", what, got, want)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestOpenWithoutFiles(t *testing.T) {
	for _, dir := range []string{t.TempDir(), "/no/such/directory"} {
		w, h := watch(t, dir)
		w.reload()
		if isClosed(w.First()) {
			t.Errorf("%s: First is closed, want open", dir)
		}
		if got := w.NotAfter(); !got.IsZero() {
			t.Errorf("%s: NotAfter: got %v, want the zero time", dir, got)
		}
		if got, err := w.GetCertificate(nil); err == nil {
			t.Errorf("%s: GetCertificate: got %v, want an error", dir, got)
		}
		want(t, "errors", h.errors)
	}
}

func TestOpenInvalidPairErrorContainsFile(t *testing.T) {
	a := newAuthority(t, "ca")
	cert, key := a.issue("one")
	_, otherKey := a.issue("other")
	const rubbish = "rubbish"
	notACertificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("rubbish")}))
	for _, c := range []struct {
		name, cert, key, want string
	}{
		{"garbage certificate", rubbish, key, "tls.crt: no PEM block of type CERTIFICATE"},
		{"an empty certificate", "", key, "tls.crt: no PEM block of type CERTIFICATE"},
		{"a certificate that does not parse", notACertificate, key, "tls.crt: x509: "},
		{"a chain that is cut off", cert + cert[:len(cert)/2], key, "tls.crt: 2 PEM blocks of type CERTIFICATE found, 1 are valid"},
		{"the files exchanged", key, cert, "tls.crt: no PEM block of type CERTIFICATE"},
		{"garbage key", cert, rubbish, "tls.key: "},
		{"an empty key", cert, "", "tls.key: "},
		{"a key that is cut off", cert, key[:len(key)/2], "tls.key: "},
		{"key of another certificate", cert, otherKey, "tls.key: tls: private key does not match public key"},
		{"a huge file", strings.Repeat("x", maxFile+1), key, "tls.crt: larger than 1048576 bytes"},
	} {
		dir := t.TempDir()
		writePair(t, dir, c.cert, c.key)
		w, err := Open(dir, Options{})
		if w != nil || err == nil || !strings.Contains(err.Error(), filepath.Join(dir, c.want)) {
			t.Errorf("%s: got %v, want %s", c.name, err, filepath.Join(dir, c.want))
		}
	}
}

func TestOpenUnreadableFileReturnsError(t *testing.T) {
	dir := t.TempDir()
	_, key := newAuthority(t, "ca").issue("one")
	harness.NoError(t, os.Mkdir(filepath.Join(dir, certFile), 0o700))
	write(t, filepath.Join(dir, keyFile), key)
	if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, certFile)+": not a regular file (directory)") {
		t.Errorf("got %v, want an error because tls.crt is a directory", err)
	}
}

func TestOpenReturnsAllErrors(t *testing.T) {
	dir := t.TempDir()
	writePair(t, dir, "rubbish", "rubbish")
	_, err := Open(dir, Options{ClientCA: filepath.Join(dir, "no-such-ca.crt")})
	if err == nil {
		t.Fatal("got no error, want two")
	}
	want(t, "lines", strings.Split(err.Error(), "\n"), "tls.crt: no PEM block", "no-such-ca.crt: no such file")
}

func TestOpenReportsMissingFile(t *testing.T) {
	for alone, missing := range map[string]string{certFile: keyFile, keyFile: certFile} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, alone), "anything")
		w, h := watch(t, dir)
		w.reload()
		if isClosed(w.First()) {
			t.Errorf("only %s: First is closed, want open", alone)
		}
		want(t, "errors with "+alone+" as the only file", h.errors, filepath.Join(dir, missing)+": no such file or directory")
	}
}

func TestRunLoadsFilesCreatedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, "ca")
		dir := filepath.Join(t.TempDir(), "certs")
		ctx, stop := context.WithCancel(t.Context())
		w, h := watch(t, dir)
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()

		time.Sleep(time.Hour + interval/2) // sleep until halfway between two reads
		if isClosed(w.First()) {
			t.Error("without files: First is closed, want open")
		}
		harness.NoError(t, os.Mkdir(dir, 0o700))
		a.put(dir, "first")
		before := time.Now()
		<-w.First()
		if waited := time.Since(before); waited > interval {
			t.Errorf("reload took %v, want at most %v", waited, interval)
		}
		time.Sleep(interval / 2)
		wantServed(t, w, a, "first")
		harness.Equal(t, w.NotAfter().Sub(before).Round(time.Minute), time.Hour, "NotAfter", "from now")

		a.put(dir, "second")
		time.Sleep(interval)
		synctest.Wait()
		wantServed(t, w, a, "second")

		stop()
		harness.Equal(t, <-ended, nil, "Run")
		want(t, "reloads", h.reloads, "first", "second")
		want(t, "errors", h.errors)
	}) // synctest.Test waits until all goroutines have exited
}

func TestInvalidPairIsReportedOnce(t *testing.T) {
	a := newAuthority(t, "ca")
	cert, key := a.issue("old")
	newCert, newKey := a.issue("new")
	for _, c := range []struct {
		name, want string
		spoil      func(dir string)
	}{
		{"rubbish", "tls.crt: no PEM block", func(dir string) { writePair(t, dir, "rubbish", "rubbish") }},
		{"empty files", "tls.crt: no PEM block", func(dir string) { writePair(t, dir, "", "") }},
		{"the certificate replaced, the key not yet", "tls.key: tls: private key does not match", func(dir string) { write(t, filepath.Join(dir, certFile), newCert) }},
		{"the key replaced, the certificate not yet", "tls.key: tls: private key does not match", func(dir string) { write(t, filepath.Join(dir, keyFile), newKey) }},
		{"a certificate half written", "tls.crt: 1 PEM blocks", func(dir string) { write(t, filepath.Join(dir, certFile), newCert[:len(newCert)/2]) }},
		{"missing private key", "tls.key: no such file", func(dir string) { os.Remove(filepath.Join(dir, keyFile)) }},
		{"both missing", "tls.key: file does not exist", func(dir string) { os.RemoveAll(dir) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "certs")
			harness.NoError(t, os.Mkdir(dir, 0o700))
			writePair(t, dir, cert, key)
			w, h := watch(t, dir)
			expiry := w.NotAfter()

			c.spoil(dir)
			w.reload()
			w.reload()
			wantServed(t, w, a, "old")
			harness.Equal(t, w.NotAfter(), expiry, "NotAfter")
			want(t, "errors", h.errors, c.want)

			harness.NoError(t, os.MkdirAll(dir, 0o700))
			writePair(t, dir, newCert, newKey)
			w.reload()
			wantServed(t, w, a, "new")
			want(t, "reloads", h.reloads, "old", "new")
			want(t, "errors after a valid update", h.errors, c.want)

			writePair(t, dir, cert, key)
			w.reload()
			c.spoil(dir)
			w.reload()
			want(t, "errors after the second invalid update", h.errors, c.want, c.want)
		})
	}
}

func TestRestoredPairDoesNotReload(t *testing.T) {
	dir := t.TempDir()
	cert, key := newAuthority(t, "ca").issue("old")
	writePair(t, dir, cert, key)
	w, h := watch(t, dir)
	writePair(t, dir, "rubbish", "rubbish")
	w.reload()
	writePair(t, dir, cert, key)
	w.reload()
	want(t, "reloads", h.reloads, "old")
	want(t, "errors", h.errors, "tls.crt")
}

func TestSecretUpdateReloadsPair(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := t.TempDir()
	exchange := mount(t, dir)
	exchange(a.issue("0"))
	w, h := watch(t, dir)
	for i := range 5 {
		exchange(a.issue(fmt.Sprint(i + 1)))
		w.reload()
		wantServed(t, w, a, fmt.Sprint(i+1))
	}
	want(t, "reloads", h.reloads, "0", "1", "2", "3", "4", "5")
	want(t, "errors", h.errors)
}

// The Secret is updated before the first read, before the second read, and so on. In all cases, readFiles
// must return a matching key pair.
func TestReadFilesDuringSecretUpdate(t *testing.T) {
	a := newAuthority(t, "ca")
	for before := range 8 {
		dir := t.TempDir()
		exchange := mount(t, dir)
		exchange(a.issue("old"))
		reads := 0
		found, err := readFiles(filepath.Join(dir, certFile), filepath.Join(dir, keyFile), func(path string) ([]byte, error) {
			if reads == before {
				exchange(a.issue("new"))
			}
			reads++
			return read(path)
		})
		if err != nil {
			t.Errorf("exchange before read %d: got %v, want no error", before, err)
			continue
		}
		p, err := found.parse()
		if err != nil {
			t.Errorf("exchange before read %d: got %v, want a pair that matches", before, err)
			continue
		}
		wanted := "old" // expected if the update was after the last read
		if before < reads {
			wanted = "new"
		}
		harness.Equal(t, p.certificate.Leaf.Subject.CommonName, wanted, "exchange before read", before, "of", reads)
	}
}

func TestHandshakesSucceedDuringReload(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := t.TempDir()
	exchange := mount(t, dir)
	exchange(a.issue("pair 0"))
	w, h := watch(t, dir)
	config, client := w.Config(&tls.Config{}), a.client()

	var handshakes atomic.Int64
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for !isClosed(done) {
				if name, err := served(config, client); err != nil || !strings.HasPrefix(name, "pair ") {
					t.Errorf("got %q, %v; want a test pair", name, err)
				}
				handshakes.Add(1)
			}
		})
	}
	const rotations = 30
	for i := range rotations {
		exchange(a.issue(fmt.Sprintf("pair %d", i+1)))
		w.reload()
		if i%5 == 0 { // invalid data between the updates
			exchange("rubbish", "rubbish")
			w.reload()
		}
		at := handshakes.Load()
		harness.Until(t, fmt.Sprintf("8 handshakes after rotation %d", i), func() bool { return handshakes.Load() >= at+8 })
	}
	close(done)
	clients.Wait()
	wantServed(t, w, a, fmt.Sprintf("pair %d", rotations))
	harness.Equal(t, len(h.reloads), rotations+1, "reloads")
	t.Logf("%d handshakes during %d rotations", handshakes.Load(), rotations)
}

func TestReloadKeepsConnections(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("old")
	w := open(t, dir, Options{})
	in, out := net.Pipe()
	defer in.Close()
	defer out.Close()
	go io.Copy(io.Discard, tls.Server(in, w.Config(&tls.Config{})))
	c := tls.Client(out, a.client())
	harness.NoError(t, c.Handshake())
	a.put(dir, "new")
	w.reload()
	if _, err := c.Write([]byte("still here")); err != nil {
		t.Errorf("write after the reload: got %v, want no error", err)
	}
	wantServed(t, w, a, "new")
}

func TestOpenUsesExpiredPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, "ca")
		dir := t.TempDir()
		now := time.Now()
		a.putFor(dir, "expired", now.Add(-2*time.Hour), now.Add(-time.Hour))
		w, h := watch(t, dir)
		w.reload()
		want(t, "reloads", h.reloads, "expired")
		want(t, "errors", h.errors, "tls.crt: expired at 1999-12-31T23:00:00Z")

		a.putFor(dir, "expired too", now.Add(-2*time.Hour), now.Add(-time.Minute))
		w.reload()
		want(t, "reloads", h.reloads, "expired", "expired too")
		want(t, "errors", h.errors, "expired", "tls.crt: expired at 1999-12-31T23:59:00Z")
	})
}

func TestExpiredPairDoesNotReplaceValidPair(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("valid")
	w, h := watch(t, dir)
	a.putFor(dir, "expired", time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	w.reload()
	wantServed(t, w, a, "valid")
	want(t, "reloads", h.reloads, "valid")
	want(t, "errors", h.errors, "tls.crt: expired at ")
}

func TestFuturePairIsUsedWhenValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, "ca")
		dir := a.folder("old")
		w, h := watch(t, dir)
		now := time.Now()
		a.putFor(dir, "new", now.Add(time.Minute), now.Add(time.Hour))
		w.reload()
		wantServed(t, w, a, "old")
		time.Sleep(time.Minute - time.Second)
		w.reload()
		wantServed(t, w, a, "old")
		want(t, "errors", h.errors, "tls.crt: not valid before 2000-01-01T00:01:00Z")
		time.Sleep(time.Second)
		w.reload()
		wantServed(t, w, a, "new")
		want(t, "reloads", h.reloads, "old", "new")
	})
}

func TestExpiryOfUsedPairIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := newAuthority(t, "ca").folder("one")
		w, h := watch(t, dir)
		w.reload()
		want(t, "errors", h.errors)
		time.Sleep(time.Hour + time.Second)
		w.reload()
		w.reload()
		want(t, "errors", h.errors, "tls.crt: expired at 2000-01-01T01:00:00Z")
	})
}

// A pair that has expired is reported as in use only if there is no valid pair.
func TestValidityErrorReportsPairInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, "ca")
		dir := a.folder("valid")
		var inUse []bool
		w := open(t, dir, Options{OnError: func(err error) {
			v, ok := errors.AsType[*ValidityError](err)
			inUse = append(inUse, ok && v.InUse)
		}})
		check := func(what, name string, rejected bool, want ...bool) {
			t.Helper()
			w.reload()
			harness.Equal(t, fmt.Sprint(inUse), fmt.Sprint(want), what, "in use")
			leaf, err := w.State()
			harness.Equal(t, leaf.Subject.CommonName, name, what, "certificate")
			harness.Equal(t, err != nil, rejected, what, "rejected files", err)
		}
		now := time.Now()
		check("valid pair", "valid", false)
		a.putFor(dir, "expired", now.Add(-2*time.Hour), now.Add(-time.Hour))
		check("valid pair replaced by expired pair", "valid", true, false)
		time.Sleep(time.Hour + time.Second)
		check("both pairs expired", "expired", false, false, true)
		writePair(t, dir, "rubbish", "rubbish")
		check("expired pair replaced by invalid pair", "expired", true, false, true, false)
	})
}

func TestStateWithoutPair(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, Options{})
	if leaf, err := w.State(); leaf != nil || err != nil {
		t.Errorf("no files: got %v, %v; want nothing", leaf, err)
	}
	write(t, filepath.Join(dir, certFile), "anything")
	for _, w := range []*Watcher{w, open(t, dir, Options{})} {
		w.reload()
		if leaf, err := w.State(); leaf != nil || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("one file: got %v, %v; want the missing file", leaf, err)
		}
	}
}

func TestInvalidPairWithoutCallbacks(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("one")
	w := open(t, dir, Options{})
	writePair(t, dir, "", "")
	w.reload()
	wantServed(t, w, a, "one")
}

func TestRemovedFilesReturnError(t *testing.T) {
	dir := newAuthority(t, "ca").folder("one")
	w := open(t, dir, Options{})
	os.RemoveAll(dir)
	if err := w.renewPair(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

func BenchmarkReloadUnchangedFiles(b *testing.B) {
	dir := newAuthority(b, "ca").folder("one")
	w, err := Open(dir, Options{})
	harness.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		w.reload()
	}
}
