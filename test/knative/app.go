package knative

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
)

// An app is a user container that supports HTTP/1.1, h2c and the gRPC health service. A request
// for /hold waits until release is called.
type app struct {
	requests atomic.Int64 // number of requests except for readiness probes
	holding  atomic.Int64
	free     chan struct{}
	release  func()
	grpc     *grpc.Server

	mu   sync.Mutex
	last http.Header
}

// startApp starts the app on the user port and on the ports of the readiness probes. It uses
// TLS for probes with scheme HTTPS.
func startApp(p *pod) *app {
	p.t.Helper()
	a := &app{free: make(chan struct{}), grpc: grpc.NewServer()}
	a.release = sync.OnceFunc(func() { close(a.free) })
	p.t.Cleanup(a.release)
	grpc_health_v1.RegisterHealthServer(a.grpc, health.NewServer())

	secure := map[int]bool{p.userPort(): false}
	for _, c := range p.Spec.Containers {
		if port, https := probed(c.ReadinessProbe); port != 0 {
			secure[port] = https
		}
	}
	for port, https := range secure {
		a.listen(p.t, port, https)
	}
	return a
}

// probed returns the port of a readiness probe, or 0 if the probe has no port.
func probed(p *corev1.Probe) (port int, https bool) {
	switch {
	case p == nil:
		return 0, false
	case p.HTTPGet != nil:
		return p.HTTPGet.Port.IntValue(), p.HTTPGet.Scheme == corev1.URISchemeHTTPS
	case p.TCPSocket != nil:
		return p.TCPSocket.Port.IntValue(), false
	case p.GRPC != nil:
		return int(p.GRPC.Port), false
	default:
		return 0, false
	}
}

func (a *app) listen(t *testing.T, port int, https bool) {
	t.Helper()
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	var speaks http.Protocols
	speaks.SetHTTP1(true)
	speaks.SetUnencryptedHTTP2(!https)
	s := &http.Server{Handler: a, Protocols: &speaks, ErrorLog: log.New(io.Discard, "", 0)}
	if https {
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{newCertificate(t, "localhost")}}
		l = tls.NewListener(l, s.TLSConfig)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
}

func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		a.grpc.ServeHTTP(w, r)
		return
	case strings.HasPrefix(r.UserAgent(), "kube-probe/"):
		return
	}
	a.requests.Add(1)
	a.mu.Lock()
	a.last = r.Header.Clone()
	a.mu.Unlock()
	if r.URL.Path == "/hold" {
		a.holding.Add(1)
		defer a.holding.Add(-1)
		select {
		case <-a.free:
		case <-r.Context().Done():
		}
	}
	fmt.Fprintf(w, "%s %s", r.Proto, r.URL.Path)
}

// lastHeader returns the header of the last request.
func (a *app) lastHeader() http.Header {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}
