package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// Limits of a connection.
const (
	headerTimeout   = 5 * time.Second
	requestTimeout  = 10 * time.Second
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 10 * time.Second // maximum time for open reviews during shutdown
	// net/http accepts 4 KiB more than this limit, and parsing a header section requires
	// twenty times its length in memory. The header section of a request from an API
	// server contains a token and a few hundred other bytes.
	maxHeaderBytes = 1 << 10

	maxConnections        = 500 // an API server opens one connection per concurrent review, by default at most 200
	maxMetricsConnections = 100 // each kubelet and each Prometheus server opens a few connections
)

// A Runner runs until ctx is done.
type Runner func(ctx context.Context) error

// Server serves reviews over HTTPS on one address, and /metrics, /healthz and /readyz over HTTP on
// another address.
type Server struct {
	Reviewer    *Reviewer
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool   // CAs of client certificates; nil means that clients need no certificate
	NotAfter    func() time.Time // expiry time of the certificate; the zero time means that there is none, so the server is not ready
	Metrics     *Metrics
	Log         *zap.Logger

	Addr        string        // address for reviews, such as :8443
	MetricsAddr string        // address for metrics and health checks, such as :8080
	Linger      time.Duration // time during which reviews are still accepted after ctx is done, so that API servers can detect the shutdown
	Beside      []Runner      // runners that run until the server stops

	draining         atomic.Bool
	failedHandshakes message.Throttle
}

// Run serves reviews until ctx is done, and for Linger afterwards. It then completes the open
// requests and returns. It calls listening after both addresses are bound and before it accepts
// connections. The error is the first error of the servers and the runners.
func (s *Server) Run(ctx context.Context, listening func(reviews, metrics net.Addr)) error {
	reviews, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return err
	}
	defer reviews.Close()
	metrics, err := net.Listen("tcp", s.MetricsAddr)
	if err != nil {
		return err
	}
	defer metrics.Close()
	listening(reviews.Addr(), metrics.Addr())

	main := http.NewServeMux()
	main.Handle(reviewPath, s.recoverPanics(s.Reviewer))
	metricsMux := http.NewServeMux()
	metricsMux.Handle("GET /metrics", s.Metrics)
	metricsMux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	metricsMux.HandleFunc("GET /readyz", s.ready)

	reviewServer, metricsServer := s.server(s.closing(main), maxConnections), s.server(s.closing(metricsMux), maxMetricsConnections)

	// The servers and the runners are not stopped when ctx is done, but just before Run returns.
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var all sync.WaitGroup
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) {
				stop(err)
			}
		})
	}
	run(func() error { return s.serveTLS(reviewServer, reviews) })
	run(func() error { return metricsServer.Serve(metrics) })
	for _, r := range s.Beside {
		run(func() error { return r(running) })
	}

	select {
	case <-ctx.Done():
		s.draining.Store(true)
		s.Log.Info("draining", zap.Duration("linger", s.Linger))
		select {
		case <-time.After(s.Linger):
		case <-running.Done():
		}
	case <-running.Done():
	}
	shutdown(context.WithoutCancel(ctx), reviewServer, metricsServer)
	failed := context.Cause(running)
	stop(nil)
	all.Wait()
	return failed
}

// shutdown shuts down servers. It waits at most shutdownTimeout for open requests, and then closes
// their connections.
func shutdown(ctx context.Context, servers ...*http.Server) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	for _, s := range servers {
		if s.Shutdown(ctx) != nil {
			_ = s.Close() // the listener is already closed
		}
	}
}

// server returns an HTTP/1.1 server with the limits above. API servers use HTTP/1.1 for webhooks.
// HTTP/2 would require more limits.
func (s *Server) server(h http.Handler, most int) *http.Server {
	quiet, _ := zap.NewStdLogAt(s.Log, zap.DebugLevel) // the level is valid; unknown clients can cause these errors, so they are logged at debug level
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         &protocols,
		ErrorLog:          quiet,
	}
	fair.LimitPort(server, fair.PortLimits{Connections: most})
	return server
}

// closing returns a handler that closes the connection after each response while the server drains.
// An API server keeps its connection to the webhook, so it would otherwise send reviews to this
// replica until the process exits. Idle connections are not closed, because the API server may
// already have sent the next review.
func (s *Server) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// recoverPanics returns a handler that responds with status 500 after a panic.
func (s *Server) recoverPanics(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.Log.Error("panic in review", zap.Any("panic", p), zap.Stack("stack"))
				s.Metrics.failed(internal)
				http.Error(w, "internal error", http.StatusInternalServerError)
			}
		}()
		h.ServeHTTP(w, r)
	})
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.draining.Load():
		http.Error(w, "draining", http.StatusServiceUnavailable)
	case s.NotAfter().IsZero():
		http.Error(w, "no certificate yet", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}
