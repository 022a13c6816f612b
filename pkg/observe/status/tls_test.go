package status

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestTLSText(t *testing.T) {
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	certificate := func(from, to time.Duration) TLS {
		return TLS{On: true, Port: 8112, Subject: "CN=app", Names: []string{"app.example", "10.0.0.1"}, NotBefore: now.Add(from), NotAfter: now.Add(to)}
	}
	failed := certificate(-time.Hour, 90*24*time.Hour)
	failed.Error, failed.ClientCertificates = "tls.crt: no PEM block", true
	many := certificate(-time.Hour, time.Hour)
	many.Names = append(many.Names, "b.example", "c.example")
	unnamed := certificate(-time.Hour, time.Hour)
	unnamed.Names = nil
	for _, c := range []struct {
		state          TLS
		validity, want string
	}{
		{TLS{}, "", "off, no certificate"},
		{TLS{Error: "tls.key: no such file"}, "", "off; error: tls.key: no such file"},
		{certificate(-time.Hour, 90*time.Minute), "valid", "on, port 8112, certificate for app.example, 10.0.0.1, expires in 1h30m0s (2026-01-10 13:30 UTC)"},
		{certificate(-2*time.Hour, -time.Hour), "expired", "on, port 8112, certificate for app.example, 10.0.0.1, expired 1h0m0s ago (2026-01-10 11:00 UTC), rejected by clients"},
		{certificate(50*time.Hour, 90*time.Hour), "not-yet-valid", "on, port 8112, certificate for app.example, 10.0.0.1, not valid until 2026-01-12 14:00 UTC (in 2 days)"},
		{failed, "valid", "on, port 8112, certificate for app.example, 10.0.0.1, expires in 90 days (2026-04-10 12:00 UTC), client certificate required; error: tls.crt: no PEM block"},
		{many, "valid", "on, port 8112, certificate for app.example, 10.0.0.1 and others, expires in 1h0m0s (2026-01-10 13:00 UTC)"},
		{unnamed, "valid", "on, port 8112, certificate for CN=app, expires in 1h0m0s (2026-01-10 13:00 UTC)"},
	} {
		c.state.describe(now)
		harness.Equal(t, c.state.Text, c.want, "text")
		harness.Equal(t, c.state.Validity, c.validity, "validity of", c.want)
	}
}

// Both the output of why and status.json report an expired certificate.
func TestOutputsContainExpiredCertificate(t *testing.T) {
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	b.sources.TLS = func() TLS {
		return TLS{On: true, Port: 8112, Names: []string{"app.example"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	}
	server := httptest.NewServer(b.Handler(http.NotFoundHandler(), false))
	defer server.Close()
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		_, err := Why(t.Context(), netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, asJSON, &out)
		harness.NoError(t, err)
		want := "\nproblem: the TLS certificate is not valid\n  since: 1h0m0s ago "
		if asJSON {
			want = `"validity": "expired"`
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("JSON %t: got %s, want %q", asJSON, out.String(), want)
		}
	}
	var page struct{ TLS TLS }
	res, err := http.Get(server.URL + path)
	harness.NoError(t, err)
	defer res.Body.Close()
	harness.NoError(t, json.NewDecoder(res.Body).Decode(&page))
	harness.Equal(t, page.TLS.Validity, "expired", "validity in status.json")
}

// The new files are invalid. The output contains the certificate in use and the complete error.
func TestWhyContainsCertificateInUseAndError(t *testing.T) {
	failure := "TLS_CERT_DIR: /var/lib/knative/certs/tls.crt: the certificate " + strings.Repeat("a", 60) + " and the key " + strings.Repeat("b", 60) + " do not match"
	b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
	b.sources.TLS = func() TLS {
		return TLS{On: true, Port: 8112, Names: []string{"app.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(80 * time.Hour), Error: failure}
	}
	s := b.snapshot()
	checkScreen(t, s.text(), "numbers: "+failure)
	checkScreen(t, s.text(), "TLS: on, port 8112, certificate for app.example, expires in 3 days ("+s.TLS.NotAfter.UTC().Format("2006-01-02"))
}

func TestTLSProblemNamesCause(t *testing.T) {
	now := time.Now()
	valid := TLS{On: true, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(80 * time.Hour)}
	for _, c := range []struct {
		change     func(*TLS)
		confidence confidence
		want       string
	}{
		{func(s *TLS) { s.On, s.Error = false, "listen: address already in use" }, high, "TLS is not served"},
		{func(s *TLS) { *s = TLS{Error: "tls.key: no such file"} }, high, "TLS is not served"},
		{func(s *TLS) { s.Error = "ca.crt: no PEM block" }, medium, "failed to load the new certificate files"},
		{func(s *TLS) { s.NotAfter = now.Add(-time.Minute) }, high, "the TLS certificate is not valid"},
		{func(s *TLS) { s.NotBefore = now.Add(time.Minute) }, high, "the TLS certificate is not valid yet"},
		{func(s *TLS) { s.NotAfter, s.Error = now.Add(-time.Minute), "tls.crt: no PEM block" }, high, "the TLS certificate is not valid"},
	} {
		state := valid
		c.change(&state)
		b := board(observation.Readiness{Phase: observation.PhaseReady}, Drain{})
		b.sources.TLS = func() TLS { return state }
		problems := b.snapshot().Problems
		harness.Equal(t, len(problems), 1, c.want, "problems")
		p := problems[0]
		harness.Equal(t, p.Problem, c.want)
		harness.Equal(t, p.Confidence, c.confidence, c.want)
		if strings.Contains(p.Action, "Renew") != (p.Problem == "the TLS certificate is not valid") {
			t.Errorf("%s: got action %q, want Renew only for an invalid certificate", p.Problem, p.Action)
		}
		harness.Contains(t, p.Numbers, state.Error, c.want)
	}
}
