package certs

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestConfigTLSVersion(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("one")
	w := open(t, dir, Options{})
	for _, c := range []struct {
		name           string
		settings       *tls.Config
		oldest, newest uint16 // versions that the client supports
		want           uint16 // 0 if the handshake must fail
	}{
		{"by default the newest", &tls.Config{}, 0, 0, tls.VersionTLS13},
		{"by default not 1.2", &tls.Config{}, 0, tls.VersionTLS12, 0},
		{"1.2 if allowed", &tls.Config{MinVersion: tls.VersionTLS12}, 0, tls.VersionTLS12, tls.VersionTLS12},
		{"1.3 if 1.2 is allowed and the client supports 1.3", &tls.Config{MinVersion: tls.VersionTLS12}, 0, 0, tls.VersionTLS13},
		{"1.2 at most", &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}, 0, 0, tls.VersionTLS12},
		{"1.2 at most, 1.3 required by the client", &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}, tls.VersionTLS13, 0, 0},
	} {
		client := a.client()
		client.MinVersion, client.MaxVersion = c.oldest, c.newest
		state, err := connect(w.Config(c.settings), client)
		if c.want == 0 && err == nil {
			t.Errorf("%s: got %s, want a handshake error", c.name, tls.VersionName(state.Version))
		}
		if c.want != 0 && (err != nil || state.Version != c.want) {
			t.Errorf("%s: got %s, %v; want %s", c.name, tls.VersionName(state.Version), err, tls.VersionName(c.want))
		}
	}
}

func TestConfigCipherSuiteAndCurve(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("one")
	w := open(t, dir, Options{})
	state, err := connect(w.Config(&tls.Config{
		MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
		CipherSuites:     []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384},
		CurvePreferences: []tls.CurveID{tls.CurveP384},
	}), a.client())
	if err != nil || state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 || state.CurveID != tls.CurveP384 {
		t.Errorf("got %s, %s, %v; want AES-256 and P-384", tls.CipherSuiteName(state.CipherSuite), state.CurveID, err)
	}
}

func TestConfigALPNProtocols(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("one")
	ca := filepath.Join(dir, "ca.crt")
	write(t, ca, a.pem)
	for _, o := range []Options{{}, {ClientCA: ca}} {
		w := open(t, dir, o)
		for _, c := range []struct {
			offered []string
			only    []string // protocols of the server
			want    string
		}{
			{[]string{"h2", "http/1.1"}, nil, "h2"},
			{[]string{"h2", "http/1.1"}, []string{"http/1.1"}, "http/1.1"},
			{[]string{"http/1.1"}, nil, "http/1.1"},
			{nil, nil, ""},
		} {
			client := a.client(a.pair("client"))
			client.NextProtos = c.offered
			state, err := connect(w.Config(&tls.Config{NextProtos: c.only}), client)
			if err != nil || state.NegotiatedProtocol != c.want {
				t.Errorf("offered %q, client CA %q: got %q, %v; want %q", c.offered, o.ClientCA, state.NegotiatedProtocol, err, c.want)
			}
		}
	}
}

func TestConfigRequiresClientCertificate(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	dir := ours.folder("server")
	ca := filepath.Join(dir, "clients.crt")
	write(t, ca, ours.pem)
	var h heard
	o := h.options()
	o.ClientCA = ca
	w := open(t, dir, o)
	config := w.Config(&tls.Config{})

	// All clients cache sessions, as real clients do.
	sessions := func(c *tls.Config) *tls.Config {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(8)
		return c
	}
	our, their := sessions(ours.client(ours.pair("our client"))), sessions(ours.client(theirs.pair("their client")))
	nobody := sessions(ours.client())
	wantClients := func(when string, wantOur, wantTheir bool) {
		t.Helper()
		for _, c := range []struct {
			name   string
			client *tls.Config
			want   bool
		}{{"our client", our, wantOur}, {"their client", their, wantTheir}, {"a client without a certificate", nobody, false}} {
			for range 2 {
				if _, err := served(config, c.client); (err == nil) != c.want {
					t.Errorf("%s: %s: got %v, want handshake success %v", when, c.name, err, c.want)
				}
			}
		}
	}
	wantClients("at start", true, false)

	write(t, ca, ours.pem+theirs.pem)
	w.reload()
	wantClients("with both authorities", true, true)

	write(t, ca, theirs.pem)
	w.reload()
	wantClients("with only the other authority", false, true)

	for _, bad := range []string{"", "rubbish", ours.pem + theirs.pem[:len(theirs.pem)/2]} {
		write(t, ca, bad)
		w.reload()
		wantClients("with an invalid authorities file", false, true)
	}
	want(t, "errors", h.errors, "clients.crt: no PEM block", "clients.crt: 2 PEM blocks of type CERTIFICATE found, 1 are valid")

	write(t, ca, ours.pem)
	w.reload()
	wantClients("with the first authority again", true, false)
}

func TestOpenInvalidClientCAErrorContainsFile(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("one")
	ca := filepath.Join(dir, "clients.crt")
	for content, wanted := range map[string]string{
		"": ca + ": no PEM block of type CERTIFICATE",
		a.pem + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n": ca + ": certificate 2: x509: ",
	} {
		write(t, ca, content)
		_, err := Open(dir, Options{ClientCA: ca})
		if err == nil {
			t.Errorf("got no error, want %s", wanted)
			continue
		}
		want(t, "error", []string{err.Error()}, wanted)
	}
	if got := open(t, dir, Options{}).Config(&tls.Config{}); got.ClientAuth != tls.NoClientCert || !slices.Equal(got.NextProtos, []string{"h2", "http/1.1"}) {
		t.Errorf("without a client CA: got %v, %q; want no request for a client certificate", got.ClientAuth, got.NextProtos)
	}
}

func TestConfigServesHTTP2WithNetHTTP(t *testing.T) {
	a := newAuthority(t, "ca")
	dir := a.folder("one")
	ca := filepath.Join(dir, "ca.crt")
	write(t, ca, a.pem)
	for _, o := range []Options{{}, {ClientCA: ca}} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Proto)
		}))
		server.Config.TLSConfig = open(t, dir, o).Config(&tls.Config{})
		ended := make(chan error, 1)
		go func() { ended <- server.Config.ServeTLS(server.Listener, "", "") }()
		for _, c := range []struct {
			http2 bool
			want  string
		}{{true, "HTTP/2.0"}, {false, "HTTP/1.1"}} {
			client := a.client(a.pair("client"))
			client.NextProtos = nil
			transport := &http.Transport{TLSClientConfig: client, ForceAttemptHTTP2: c.http2}
			r, err := (&http.Client{Transport: transport}).Get("https://" + server.Listener.Addr().String())
			harness.NoError(t, err, "client CA", o.ClientCA)
			if got, err := io.ReadAll(r.Body); string(got) != c.want || err != nil {
				t.Errorf("client CA %q: got %q, %v; want %q", o.ClientCA, got, err, c.want)
			}
			r.Body.Close()
			transport.CloseIdleConnections()
		}
		server.Config.Close()
		<-ended
	}
}
