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

// policy lets the page run its own script and ask this server, and nothing else:
// nobody's page may show it in a frame. The profiler's index needs no more.
const policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// askTimeout bounds a question that the page or `queue-proxy why` puts to the
// user container.
const askTimeout = 2 * time.Second

// Handler serves the page, the same as JSON, the log level and the profiler to
// people on this host; with profiling the profiler also to everybody else.
//
// A person on this host is one whose connection and whose Host are of the
// loopback: a web page of somebody else's, whose name leads here, is not
// (docs/promises.md section 4, W27).
func (b *Board) Handler(level http.Handler, profiling bool) http.Handler {
	others := profiler() // a client far away cannot take the places of people on this host
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
		// A profile takes as long as it is asked for, and sees to the writing itself.
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
			http.Error(w, "this page is for this host alone: kubectl port-forward, then http://localhost", http.StatusForbidden)
		}
	})
}

// path is where the page's facts are served as JSON; with ?ask the user
// container is asked first.
const path = "/status.json"

func (b *Board) serveJSON(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("ask") {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		_ = b.sources.Ask(ctx) // the snapshot says what came of it
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(b.snapshot())
}

// isLocal reports whether a request comes from this host and was meant for it.
// What a browser sends on behalf of another site is not.
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
