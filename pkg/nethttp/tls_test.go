package nethttp_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Metrics, traces and templates of log lines tell of it.
func TestARequestOverTLSIsObservedAsSuch(t *testing.T) {
	proxy := start(t, harness.NewApp(t, harness.Echo).Port, nil)
	with := httptest.NewTLSServer(nil) // for its certificate
	defer with.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		served <- proxy.Serve(ln, &tls.Config{Certificates: with.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}})
	}()
	t.Cleanup(func() { ln.Close(); <-served })
	for i, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		p := new(http.Protocols)
		p.SetHTTP1(protocol == "HTTP/1.1")
		p.SetHTTP2(protocol == "HTTP/2")
		tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "a.test"}}
		defer tr.CloseIdleConnections()
		for range 2 {
			r, err := (&http.Client{Transport: tr, Timeout: harness.Patience}).Get("https://" + ln.Addr().String() + "/")
			harness.NoError(t, err)
			r.Body.Close()
		}
		for _, o := range proxy.Observed(2*i + 2)[2*i:] {
			if !o.TLS || o.Major != i+1 {
				t.Errorf("%s: got TLS %v, HTTP/%d, want TLS", protocol, o.TLS, o.Major)
			}
		}
	}
	if r, err := http.Get("http://" + proxy.Address + "/"); err != nil {
		t.Error(err)
	} else if r.Body.Close(); proxy.Observed(5)[4].TLS {
		t.Error("got TLS of a request without, want none")
	}
}
