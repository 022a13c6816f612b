package conformance

import (
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
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// This file tests TLS (docs/promises.md 3.9).

// handshake opens a TLS connection and requests /bytes/2.
func handshake(addr string, config *tls.Config) (tls.ConnectionState, error) {
	d := net.Dialer{Timeout: patience}
	c, err := tls.DialWithDialer(&d, "tcp", addr, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	state := c.ConnectionState()
	if _, err := io.WriteString(c, "GET /bytes/2 HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"); err != nil {
		return state, err
	}
	b, err := io.ReadAll(c)
	if err == nil && !strings.HasPrefix(string(b), "HTTP/1.1 200 ") {
		err = fmt.Errorf("got %.100q, want 200", b)
	}
	return state, err
}

func unverified(change func(*tls.Config)) *tls.Config {
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
	if change != nil {
		change(c)
	}
	return c
}

// mount writes files in the same way as the kubelet for a Secret: it replaces all files at the
// same time by changing a symbolic link.
func mount(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	version, err := os.MkdirTemp(dir, "..version")
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(version, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, name)
		if _, err := os.Lstat(link); err != nil {
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func pair(t *testing.T) (files map[string][]byte, serial string) {
	t.Helper()
	certificate, key := newCertificate(t)
	block, _ := pem.Decode(certificate)
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"tls.crt": certificate, "tls.key": key}, parsed.SerialNumber.String()
}

// The certificate is replaced under load, first by a valid certificate and then by an invalid
// certificate. No handshake fails, the last valid key pair stays in use, and the error is
// logged.
func TestCertificateRotationFailsNoHandshake(t *testing.T) {
	p := newProxy(t)
	p.sample()
	first, firstSerial := pair(t)
	mount(t, p.dir, first)
	p.start()
	old := dialTLS(t, p.tlsAddr(), "http/1.1")
	oldH2 := newH2Peer(t, dialTLS(t, p.tlsAddr(), "h2").Conn)
	old.SetDeadline(time.Now().Add(3 * patience))
	stop := handshakeContinuously(t, p.tlsAddr())
	serial := func() string {
		t.Helper()
		state, err := handshake(p.tlsAddr(), unverified(nil))
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.String()
	}
	inUse := func(what, want string) {
		t.Helper()
		p.poll(what+" certificate is in use", func() error {
			if got := serial(); got != want {
				return fmt.Errorf("got %s, want %s", got, want)
			}
			return nil
		})
	}
	inUse("the first", firstSerial)
	second, secondSerial := pair(t)
	mount(t, p.dir, second)
	inUse("the new", secondSerial)
	mount(t, p.dir, map[string][]byte{"tls.crt": []byte("rubbish"), "tls.key": second["tls.key"]})
	p.awaitLog("failed to load certificate", "tls.crt")
	if got := serial(); got != secondSerial {
		t.Errorf("after the invalid certificate: got certificate %s, want %s", got, secondSerial)
	}
	// A valid certificate replaces the invalid one.
	third, thirdSerial := pair(t)
	mount(t, p.dir, third)
	inUse("the third", thirdSerial)
	stop()
	if m := old.ask("/bytes/2"); m.status() != 200 {
		t.Errorf("old connection: got %q, want 200", m.Start)
	}
	oldH2.open(1, true, "GET", "/bytes/2")
	if a := oldH2.answer(1); a.status != 200 {
		t.Errorf("old HTTP/2 connection: got %+v, want 200", a)
	}
}

// handshakeContinuously starts four clients that complete handshakes until stop is called. The
// test fails if a handshake fails.
func handshakeContinuously(t *testing.T, addr string) (stop func()) {
	t.Helper()
	end := make(chan struct{})
	var shaken atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				if _, err := handshake(addr, unverified(nil)); err != nil {
					t.Errorf("handshake: %v", err)
				}
				shaken.Add(1)
				time.Sleep(10 * time.Millisecond) // limit the rate of handshakes
			}
		})
	}
	return func() {
		close(end)
		all.Wait()
		t.Logf("completed %d handshakes", shaken.Load())
	}
}

// TLS starts when the certificate appears, without a restart.
func TestTLSStartsWhenCertificateAppears(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start()
	if c, err := net.Dial("tcp", p.tlsAddr()); err == nil {
		c.Close()
		t.Error("the TLS port is open without a certificate")
	}
	files, want := pair(t)
	mount(t, p.dir, map[string][]byte{"tls.crt": files["tls.crt"]}) // the sidecar must not use the certificate without its key
	p.awaitLog("failed to load certificate", "tls.key")
	mount(t, p.dir, files)
	p.poll("TLS is served", func() error {
		state, err := handshake(p.tlsAddr(), unverified(nil))
		if err == nil && state.PeerCertificates[0].SerialNumber.String() != want {
			err = errors.New("got another certificate")
		}
		return err
	})
	p.signal(syscall.SIGTERM)
}

func TestALPNSupportsHTTP2AndHTTP1(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	p.start()
	for _, row := range []struct{ client, want string }{
		{"h2 http/1.1", "h2"}, {"http/1.1 h2", "h2"}, {"http/1.1", "http/1.1"}, {"h2", "h2"}, {"", ""},
	} {
		c, err := tls.Dial("tcp", p.tlsAddr(), &tls.Config{InsecureSkipVerify: true, NextProtos: strings.Fields(row.client)})
		if err != nil {
			t.Errorf("%q: %v", row.client, err)
			continue
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != row.want {
			t.Errorf("%q: got %q, want %q", row.client, got, row.want)
		}
		c.Close()
	}
	for _, protocol := range []string{"tls", "tls-h2"} {
		if answer, body := get(t, httpClient(t, protocol), "https://"+p.tlsAddr()+"/bytes/2"); answer.StatusCode != 200 || body != "01" {
			t.Errorf("%s: got %s with %q, want 200", protocol, answer.Status, body)
		}
	}
}

// The test sets Knative's TLS settings and checks their effects on clients.
func TestTLSSettingsApplyToHandshakes(t *testing.T) {
	inParallel(t)
	only := func(version uint16) func(*tls.Config) {
		return func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version }
	}
	for name, row := range map[string]struct {
		env    []string
		client func(*tls.Config)
		check  func(tls.ConnectionState) error // check validates the connection; nil means that the handshake must fail
	}{
		"1.3 by default": {nil, nil, version(tls.VersionTLS13)},
		"no 1.2":         {nil, only(tls.VersionTLS12), nil},
		"1.2 allowed":    {[]string{"QUEUE_PROXY_TLS_MIN_VERSION=1.2"}, only(tls.VersionTLS12), version(tls.VersionTLS12)},
		"1.3 beside 1.2": {[]string{"QUEUE_PROXY_TLS_MIN_VERSION=1.2"}, nil, version(tls.VersionTLS13)},
		"never 1.1":      {[]string{"QUEUE_PROXY_TLS_MIN_VERSION=1.2"}, only(tls.VersionTLS11), nil},
		"at most 1.2":    {[]string{"QUEUE_PROXY_TLS_MIN_VERSION=1.2", "QUEUE_PROXY_TLS_MAX_VERSION=1.2"}, nil, version(tls.VersionTLS12)},
		"a cipher suite": {[]string{"QUEUE_PROXY_TLS_MIN_VERSION=1.2", "QUEUE_PROXY_TLS_MAX_VERSION=1.2", "QUEUE_PROXY_TLS_CIPHER_SUITES=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
			nil, func(s tls.ConnectionState) error {
				if s.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 {
					return fmt.Errorf("got cipher suite %s", tls.CipherSuiteName(s.CipherSuite))
				}
				return nil
			}},
		"another cipher suite": {[]string{"QUEUE_PROXY_TLS_MIN_VERSION=1.2", "QUEUE_PROXY_TLS_MAX_VERSION=1.2", "QUEUE_PROXY_TLS_CIPHER_SUITES=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
			func(c *tls.Config) {
				c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
			}, nil},
		"a curve": {[]string{"QUEUE_PROXY_TLS_CURVE_PREFERENCES=CurveP384, P-256"}, func(c *tls.Config) {
			c.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP384}
		}, func(s tls.ConnectionState) error {
			if s.CurveID != tls.CurveP384 {
				return fmt.Errorf("got curve %v, want P-384", s.CurveID)
			}
			return nil
		}},
		"another curve": {[]string{"QUEUE_PROXY_TLS_CURVE_PREFERENCES=P-384"}, func(c *tls.Config) {
			c.CurvePreferences = []tls.CurveID{tls.X25519}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.sample()
			p.start(row.env...)
			state, err := handshake(p.tlsAddr(), unverified(row.client))
			switch {
			case row.check == nil && err == nil:
				t.Errorf("connected with %s and %s, want a failed handshake", tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite))
			case row.check != nil && err != nil:
				t.Errorf("got %v, want a successful handshake", err)
			case row.check != nil:
				if err := row.check(state); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func version(want uint16) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if s.Version != want {
			return fmt.Errorf("got %s, want %s", tls.VersionName(s.Version), tls.VersionName(want))
		}
		return nil
	}
}

// Invalid values are rejected at startup, with or without a certificate.
func TestInvalidTLSSettingsFailStart(t *testing.T) {
	inParallel(t)
	for _, setting := range []string{
		"QUEUE_PROXY_TLS_MIN_VERSION=1.1", "QUEUE_PROXY_TLS_MIN_VERSION=TLS1.3", "QUEUE_PROXY_TLS_MAX_VERSION=1.4",
		"QUEUE_PROXY_TLS_MAX_VERSION=1.2", // this maximum version is lower than the minimum version
		"QUEUE_PROXY_TLS_CIPHER_SUITES=TLS_RSA_WITH_RC4_128_SHA", "QUEUE_PROXY_TLS_CIPHER_SUITES=nonsense",
		"QUEUE_PROXY_TLS_CURVE_PREFERENCES=P-111",
	} {
		t.Run(setting, func(t *testing.T) {
			p := newProxy(t)
			p.launch(setting)
			if got := p.code(); got != 1 {
				t.Errorf("got exit code %d, want 1", got)
			}
			name, value, _ := strings.Cut(setting, "=")
			if !p.out.HasLine(name, value) {
				t.Errorf("no log line with %s and %s", name, value)
			}
		})
	}
}

// An authority signs client certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, cert, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// client returns a client certificate signed by the authority.
func (a *authority) client() tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "client"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestClientCertificateIsRequired(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	ours, theirs := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ours.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start("QUEUE_PROXY_TLS_CLIENT_CA=" + file)
	with := func(cert tls.Certificate) *tls.Config {
		return unverified(func(c *tls.Config) {
			// Send the certificate even if the server does not accept its authority.
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		})
	}
	if _, err := handshake(p.tlsAddr(), with(ours.client())); err != nil {
		t.Errorf("client with a valid certificate: %v", err)
	}
	for name, c := range map[string]*tls.Config{"none": unverified(nil), "another authority's": with(theirs.client())} {
		if _, err := handshake(p.tlsAddr(), c); err == nil {
			t.Errorf("client with certificate %q: got a response, want an error", name)
		}
	}
	if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
		t.Errorf("plain HTTP: got %q, want 200", m.Start)
	}
	// The sidecar reloads the authorities in the same way as certificates.
	if err := os.WriteFile(file, theirs.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	p.poll("the new authority is trusted", func() error {
		_, err := handshake(p.tlsAddr(), with(theirs.client()))
		return err
	})
	if _, err := handshake(p.tlsAddr(), with(ours.client())); err == nil {
		t.Error("client with a certificate of the removed CA: got a response, want an error")
	}
}

func TestInvalidClientCAFailsStart(t *testing.T) {
	inParallel(t)
	for name, text := range map[string]string{"missing": "", "rubbish": "rubbish"} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			file := filepath.Join(t.TempDir(), "ca.crt")
			if text != "" {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p.launch("QUEUE_PROXY_TLS_CLIENT_CA=" + file)
			if got := p.code(); got != 1 {
				t.Errorf("got exit code %d, want 1", got)
			}
			if !p.out.HasLine("QUEUE_PROXY_TLS_CLIENT_CA", file) {
				t.Error("no log line with the variable and the file")
			}
		})
	}
}

// A connection with the wrong protocol is closed immediately.
func TestPlainHTTPOnTLSPortIsClosed(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := p.bare(answers(ok))
	p.start()
	for name, text := range map[string]string{
		"HTTP/1.1": request("GET", "/"), "HTTP/1.0": "GET / HTTP/1.0\r\n\r\n", "h2c": preface + "\r\n\r\nSM\r\n\r\n", "noise": "\x00\x01\x02\x03\x04\x05",
		"a queue probe": request("GET", "/", "K-Network-Probe: queue"),
	} {
		w := dial(t, p.tlsAddr())
		w.send(text)
		began := time.Now()
		b, _ := io.ReadAll(w.r)
		if took := time.Since(began); took > slack {
			t.Errorf("%s: connection closed after %v, want at most %v", name, took, slack)
		}
		if strings.Contains(string(b), " 200 ") {
			t.Errorf("%s: got %q, want no response with status 200", name, b)
		}
	}
	w := dial(t, p.addr())
	w.send("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
	if m := w.receive("GET"); m.status() != 400 {
		t.Errorf("TLS handshake on the plain port: got %q, want 400", m.Start)
	}
	w.closed()
	if heard, broken := app.requests(); len(heard)+len(broken) > 0 {
		t.Errorf("the app received %d requests, want 0", len(heard)+len(broken))
	}
}

// Requests that are rejected in plain text are also rejected over TLS. Data after an ambiguous
// request is not parsed as a request.
func TestSmugglingOverTLSIsRejected(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := p.bare(answers(ok))
	p.start()
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n"
	for name, row := range map[string]struct {
		text    string
		refused bool
	}{
		"Content-Length and Transfer-Encoding": {"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
		"two lengths":                          {"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody", true},
		"a space before the colon":             {"GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", true},
		"a bare LF":                            {"GET / HTTP/1.1\nHost: a.test\n\n", false},
		"a folded field":                       {"GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\n b\r\n\r\n", false},
	} {
		w := dialTLS(t, p.tlsAddr(), "http/1.1")
		w.send(row.text + smuggled)
		if m := w.receive("POST"); row.refused && m.status() != 400 {
			t.Errorf("%s: got %q, want 400", name, m.Start)
		}
		w.closed()
	}
	heard, broken := app.requests()
	for _, m := range heard {
		if strings.Contains(m.Start, "smuggled") {
			t.Error("the app received the smuggled request")
		}
	}
	if len(heard) > 2 || len(broken) > 0 {
		t.Errorf("the app received %d requests and %v, want at most 2 requests and no errors", len(heard), broken)
	}
}

// A client that negotiates HTTP/2 and does not send the HTTP/2 preface is disconnected without
// a response (RFC 9113 section 3.4), as by net/http.
func TestHTTP1AfterNegotiatingHTTP2ClosesConnection(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := p.bare(answers(ok))
	p.start()
	for name, text := range map[string]string{
		"HTTP/1.1":        request("GET", "/"),
		"a queue probe":   request("GET", "/", "K-Network-Probe: queue"),
		"noise":           "INVALID CONNECTION PREFACE\r\n\r\n",
		"invalid preface": preface + "\r\n\r\nXX\r\n\r\n",
	} {
		w := dialTLS(t, p.tlsAddr(), "h2")
		w.send(text)
		if b, err := io.ReadAll(w.r); len(b) > 0 || err != nil {
			t.Errorf("%s: got %q, %v, want a closed connection", name, b, err)
		}
	}
	if heard, broken := app.requests(); len(heard)+len(broken) > 0 {
		t.Errorf("the app received %d requests, want 0", len(heard)+len(broken))
	}
}

// scrapeTLS scrapes the metrics port over TLS like Prometheus. It sends the given certificate
// even if the server does not accept its authority.
func (p *proxy) scrapeTLS(certificate []byte, shown ...tls.Certificate) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	config := &tls.Config{RootCAs: roots}
	if len(shown) > 0 {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown[0], nil }
	}
	c := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	defer c.CloseIdleConnections()
	answer, err := c.Get("https://" + local(p.port.metrics) + "/metrics")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != 200 || !strings.Contains(string(b), "queue_proxy_build_info")) {
		err = fmt.Errorf("got %d %.100q, want 200 and metrics", answer.StatusCode, b)
	}
	return err
}

func TestMetricsTLSRejectsPlainText(t *testing.T) {
	p := newProxy(t)
	p.sample()
	dir := t.TempDir()
	first, key := newCertificate(t)
	mount(t, dir, map[string][]byte{"cert.pem": first, "key.pem": key})
	p.start("METRICS_NAMES=default", "METRICS_PROMETHEUS_TLS_CERT="+filepath.Join(dir, "cert.pem"), "METRICS_PROMETHEUS_TLS_KEY="+filepath.Join(dir, "key.pem"))
	if err := p.scrapeTLS(first); err != nil {
		t.Errorf("scrape over TLS: %v", err)
	}
	if answer, err := http.Get("http://" + local(p.port.metrics) + "/metrics"); err == nil {
		answer.Body.Close()
		if answer.StatusCode != 400 {
			t.Errorf("scrape in plain text: got %d, want 400", answer.StatusCode)
		}
	}
	second, key := newCertificate(t)
	mount(t, dir, map[string][]byte{"cert.pem": second, "key.pem": key})
	p.poll("the new certificate is served", func() error { return p.scrapeTLS(second) })
}

func TestMetricsClientCertificates(t *testing.T) {
	inParallel(t)
	for auth, without := range map[string]bool{"require": false, " Optional": true} {
		t.Run(auth, func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			writeCertificate(t, p.dir)
			ours, theirs := newAuthority(t), newAuthority(t)
			ca := filepath.Join(t.TempDir(), "ca.crt")
			if err := os.WriteFile(ca, ours.pem(), 0o600); err != nil {
				t.Fatal(err)
			}
			p.start("METRICS_NAMES=default", "METRICS_PROMETHEUS_TLS_CERT="+filepath.Join(p.dir, "tls.crt"), "METRICS_PROMETHEUS_TLS_KEY="+filepath.Join(p.dir, "tls.key"),
				"METRICS_PROMETHEUS_TLS_CLIENT_AUTH="+auth, "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE="+ca)
			server, err := os.ReadFile(filepath.Join(p.dir, "tls.crt"))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.scrapeTLS(server, ours.client()); err != nil {
				t.Errorf("scrape with a certificate: %v", err)
			}
			if err := p.scrapeTLS(server); (err == nil) != without {
				t.Errorf("scrape without a certificate: got %v, want success: %t", err, without)
			}
			if err := p.scrapeTLS(server, theirs.client()); err == nil {
				t.Error("scrape with a certificate of another CA: got a response, want an error")
			}
		})
	}
}

// If the TLS settings of the metrics port are invalid, the port is closed instead of serving
// plain text, and traffic is not affected.
func TestInvalidMetricsTLSDisablesMetrics(t *testing.T) {
	inParallel(t)
	certificate, key := newCertificate(t)
	dir := t.TempDir()
	at := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const cert, keys, auth, ca = "METRICS_PROMETHEUS_TLS_CERT=", "METRICS_PROMETHEUS_TLS_KEY=", "METRICS_PROMETHEUS_TLS_CLIENT_AUTH=", "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE="
	good, goodKey, rubbish := at("tls.crt", certificate), at("tls.key", key), at("rubbish", []byte("rubbish"))
	for name, v := range map[string]struct {
		env  []string
		want string
	}{
		"no key":                           {[]string{cert + good}, "METRICS_PROMETHEUS_TLS_KEY"},
		"rubbish":                          {[]string{cert + rubbish, keys + goodKey}, rubbish},
		"unknown value":                    {[]string{cert + good, keys + goodKey, auth + "requier"}, "METRICS_PROMETHEUS_TLS_CLIENT_AUTH"},
		"no CA":                            {[]string{cert + good, keys + goodKey, auth + "require"}, "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE"},
		"CA without client authentication": {[]string{cert + good, keys + goodKey, ca + good}, "METRICS_PROMETHEUS_TLS_CLIENT_CA_FILE"},
		"invalid CA":                       {[]string{cert + good, keys + goodKey, auth + "require", ca + rubbish}, rubbish},
		"client authentication without a certificate": {[]string{auth + "require", ca + good}, "METRICS_PROMETHEUS_TLS_CERT"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.sample()
			p.start(append(v.env, "METRICS_NAMES=default")...)
			p.awaitLog("metrics are not served", v.want)
			if c, err := net.DialTimeout("tcp", local(p.port.metrics), patience); err == nil {
				c.Close()
				t.Error("the metrics port is open")
			}
			if m := dial(t, p.addr()).ask("/bytes/2"); m.status() != 200 {
				t.Errorf("request: got %q, want 200", m.Start)
			}
		})
	}
}
