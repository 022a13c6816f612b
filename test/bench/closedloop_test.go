//go:build linux

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func TestClosedLoopSupportsEachProtocol(t *testing.T) {
	var mu sync.Mutex
	got := map[string]bool{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[fmt.Sprint(r.ProtoMajor, r.TLS != nil)] = true
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Write(bytes.Repeat([]byte("x"), 1024))
	}))
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.Config.Protocols = &protocols
	s.Start()
	defer s.Close()
	secure := httptest.NewUnstartedServer(s.Config.Handler)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	trusts := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}

	for want, c := range map[string]struct {
		client client
		server *httptest.Server
	}{
		"1 false": {client{}, s},
		"2 false": {client{h2: true}, s},
		"1 true":  {client{tls: trusts}, secure},
		"2 true":  {client{tls: trusts, h2: true}, secure},
	} {
		clear(got)
		address := c.server.Listener.Addr().String()
		took, err := c.client.closedLoop(address, "/", 3, 0)
		if err != nil || len(took) != 3 || len(took[0]) != 1 {
			t.Errorf("%s: got %v, %v, want a response on each of three connections", want, took, err)
		}
		if len(got) != 1 || !got[want] {
			t.Errorf("got requests with version and TLS %v, want only %q", got, want)
		}
		if _, err := c.client.closedLoop(address, "/none", 1, 0); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("%s, missing path: got %v, want an error with 404", want, err)
		}
	}
}

// The initial window of a connection is 64 KB, so the client must replenish it.
func TestClosedLoopReplenishesHTTP2Window(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(bytes.Repeat([]byte("x"), 50<<10))
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	c, err := client{h2: true}.dial(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a, err := newH2Asker(c, "bench", "/", false)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := a.ask(); err != nil {
			t.Fatal(err)
		}
	}
}
