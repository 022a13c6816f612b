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

	"github.com/queue-proxy/queue-proxy/pkg/portlimit"
	"github.com/queue-proxy/queue-proxy/pkg/sink"
)

// How long a connection may take.
const (
	longestHead    = 5 * time.Second
	longestRequest = 10 * time.Second
	longestIdle    = 2 * time.Minute
	longestEnd     = 10 * time.Second // for the reviews that are under way when we stop
	// Of a head net/http takes 4 KiB more, and twenty times that to take it apart. An
	// API server's is some hundred bytes, and a token.
	mostHeadBytes = 1 << 10

	mostConnections = 500 // an API server has one for each review that it waits for, by default at most 200
	mostBeside      = 100 // kubelet and Prometheus need one or a few each
)

// A Runner does something until ctx is done, and has stopped when it returns.
type Runner func(ctx context.Context) error

// Server is the webhook's process: reviews over HTTPS on one address, /metrics, /healthz
// and /readyz in plain HTTP on another.
type Server struct {
	Reviewer    *Reviewer
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool   // of whom a client's certificate must be; nil: none is asked for
	NotAfter    func() time.Time // of the certificate; the zero time while there is none, and then we are not ready
	Metrics     *Metrics
	Log         *zap.Logger

	Addr        string        // of reviews, as in :8443
	MetricsAddr string        // as in :8080
	Linger      time.Duration // how long reviews are still answered after ctx is done, while API servers learn that we go
	Beside      []Runner      // run as long as reviews are answered

	draining         atomic.Bool
	failedHandshakes sink.Throttle
}

// Run answers reviews until ctx is done, then for Linger more, then ends what is under
// way. Both addresses are bound before anything starts; listening is called with them. The error is the first thing that failed.
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
	main.Handle(reviewPath, s.guarded(s.Reviewer))
	beside := http.NewServeMux()
	beside.Handle("GET /metrics", s.Metrics)
	beside.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	beside.HandleFunc("GET /readyz", s.ready)

	mainServer, besideServer := s.server(s.closing(main), mostConnections), s.server(s.closing(beside), mostBeside)

	// The others live as long as reviews are answered, and end before we return.
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
	run(func() error { return s.serveTLS(mainServer, reviews) })
	run(func() error { return besideServer.Serve(metrics) })
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
	end(context.WithoutCancel(ctx), mainServer, besideServer)
	failed := context.Cause(running)
	stop(nil)
	all.Wait()
	return failed
}

// end ends servers once all requests are answered, or after longestEnd: a peer that is
// slow enough to be there still is no failure of ours.
func end(ctx context.Context, servers ...*http.Server) {
	ctx, cancel := context.WithTimeout(ctx, longestEnd)
	defer cancel()
	for _, s := range servers {
		if s.Shutdown(ctx) != nil {
			_ = s.Close() // its listener is closed
		}
	}
}

// server speaks HTTP/1.1 alone, as API servers do with webhooks: what HTTP/2 lets one
// connection do would have to be bounded too.
func (s *Server) server(h http.Handler, most int) *http.Server {
	quiet, _ := zap.NewStdLogAt(s.Log, zap.DebugLevel) // a level that zap knows: what unknown clients do to a port is no news
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: longestHead,
		ReadTimeout:       longestRequest,
		WriteTimeout:      longestRequest,
		IdleTimeout:       longestIdle,
		MaxHeaderBytes:    mostHeadBytes,
		Protocols:         &protocols,
		ErrorLog:          quiet,
	}
	portlimit.Bound(server, portlimit.Limits{Connections: most})
	return server
}

// closing returns a handler that closes the connection after each response while the server drains. An API server keeps
// its connection to the webhook, so it would otherwise send reviews to this replica until the process exits. Idle
// connections are not closed, because the API server may already have sent the next review.
func (s *Server) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// guarded answers 500 where a review would take the connection with it.
func (s *Server) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.Log.Error("a review failed", zap.Any("panic", p), zap.Stack("stack"))
				s.Metrics.failed(internal)
				http.Error(w, "the review failed", http.StatusInternalServerError)
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
