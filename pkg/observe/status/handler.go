package status

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

//go:embed page.html
var page []byte

// policy is the Content-Security-Policy of the page. It allows inline scripts and styles, and requests to
// this server. Everything else is forbidden, including frames. The policy is also sufficient for the index page
// of the profiler.
const policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// checkTimeout is the timeout of the readiness check for a status request.
const checkTimeout = 2 * time.Second

// Handler returns a handler that serves the page, its data as JSON, the log level and the profiler to local
// clients. If profiling is true, it also serves the profiler to other clients.
//
// A client is local if its address is a loopback address and the Host field is localhost or a loopback address.
// The condition on the Host field rejects requests from web pages whose host name resolves to a loopback address
// (docs/promises.md section 4, W27).
func (b *Board) Handler(level http.Handler, profiling bool) http.Handler {
	others := profiler() // has separate limits, so that other clients cannot block local clients
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
		// Recording a profile may take longer than the read timeout of the server. Package pprof sets the write deadline.
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

// path is the URL path of the page's data in JSON format. With the query ?ask, the user container is probed
// first. The result of the probe is used only for the response.
const path = "/status.json"

func (b *Board) serveJSON(w http.ResponseWriter, r *http.Request) {
	var snap snapshot
	if r.URL.Query().Has("ask") {
		snap = b.check(r.Context())
	} else {
		snap = b.snapshot()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(snap)
}

// check returns the current data with the result of a readiness check. It does not change the state.
func (b *Board) check(ctx context.Context) snapshot {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	select {
	case b.checking <- struct{}{}:
		defer func() { <-b.checking }()
	case <-ctx.Done():
		return b.snapshot()
	}
	result := b.sources.Check(ctx)
	recorded := b.sources.Readiness()
	snap := b.snapshotWith(checked(recorded, result))
	snap.Unprobed = !recorded.Probed()
	return snap
}

// checked applies the result of a check to the recorded readiness, and returns the new readiness. recorded and
// result must have the same probes. A probe does not change if the check has no result for it.
func checked(recorded, result observation.Readiness) observation.Readiness {
	if len(recorded.Probes) == 0 {
		return recorded // the user container is always ready
	}
	r := recorded
	r.Probes = slices.Clone(recorded.Probes)
	ready := true
	for i := range r.Probes {
		p, c := &r.Probes[i], &result.Probes[i]
		if c.Tries > 0 {
			if phase := p.Phase.Next(c.Phase == observation.PhaseReady); phase != p.Phase {
				p.Phase, p.Since = phase, c.Since
			}
			p.Word, p.Code, p.Detail, p.Warning = c.Word, c.Code, c.Detail, c.Warning
			p.Tries = cmp.Or(p.Tries, c.Tries)
		}
		ready = ready && p.Phase == observation.PhaseReady
	}
	if r.Phase = recorded.Phase.Next(ready); r.Phase != recorded.Phase {
		r.Since = result.At
	}
	return r
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
