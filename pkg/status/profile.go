package status

import (
	"net/http"
	"net/http/pprof"
)

// How many profiles are made at once for clients on this host, and again for all
// others. All stacks of a busy process are megabytes of text, which net/http/pprof
// holds as a whole until the client has taken them. A recording holds little, but for
// as long as the client wants it.
const (
	dumpsAtOnce      = 1
	recordingsAtOnce = 2 // a CPU profile, and something beside it
)

// profiler returns a handler of the runtime's profiles that makes few at once. Who
// comes while as many are being made gets 503 and may come again.
func profiler() http.Handler {
	dumps, recordings := make(places, dumpsAtOnce), make(places, recordingsAtOnce)
	dump, difference := dumps.bound(pprof.Index), recordings.bound(pprof.Index)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/{$}", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/profile", recordings.bound(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/trace", recordings.bound(pprof.Trace))
	mux.HandleFunc("GET /debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("seconds") != "" { // of two dumps, and it waits in between
			difference(w, r)
			return
		}
		dump(w, r)
	})
	return mux
}

// places bound how many requests are served at once.
type places chan struct{}

// bound returns a handler that serves a request if there is a place, and else
// refuses it at once.
func (p places) bound(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case p <- struct{}{}:
			defer func() { <-p }()
			serve(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "another profile is being made; try again", http.StatusServiceUnavailable)
		}
	}
}
