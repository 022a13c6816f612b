package status

import (
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
)

//go:embed page.html
var page []byte

// policy allows the page to run its own script and to send requests to this server. Everything else is
// forbidden, including frames. The index of the profiler does not need more.
const policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// checkTimeout is the timeout of a readiness check that a request for the status starts.
const checkTimeout = 2 * time.Second

// Handler returns a handler that serves the page, its data as JSON, the log level and the profiler to local
// clients. If profiling is true, it also serves the profiler to other clients.
//
// A client is local if its address is a loopback address and the Host field is localhost or a loopback address.
// This excludes requests of web pages with a name that resolves to a loopback address (docs/promises.md section 4,
// W27).
func (b *Board) Handler(level http.Handler, profiling bool) http.Handler {
	others := profiler() // separate limits, so that other clients cannot block local clients
	all := http.NewServeMux()
	all.Handle("/debug/pprof/", profiler())
	all.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	all.HandleFunc("GET "+path, b.serveJSON)
	all.Handle("GET /log-level", level)
	all.Handle("PUT /log-level", level)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A profile can take longer than the read timeout of the server. The package pprof sets the write deadline.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		switch {
		case isLocal(r):
			all.ServeHTTP(w, r)
		case profiling:
			others.ServeHTTP(w, r)
		default:
			http.Error(w, "the status page is only served to local clients: run kubectl port-forward and open http://localhost", http.StatusForbidden)
		}
	})
}

// path is the path of the data of the page as JSON. With the query ?ask, the user container is probed first.
const path = "/status.json"

func (b *Board) serveJSON(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("ask") {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		_ = b.sources.Ask(ctx) // the snapshot contains the result
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(b.snapshot())
}

// isLocal reports whether a request comes from this host and has a loopback address in its Host field. It
// returns false for requests that a browser sends on behalf of another site.
func isLocal(r *http.Request) bool {
	if !fair.Address(r.RemoteAddr).IsLoopback() {
		return false
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}
