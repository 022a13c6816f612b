package status

import (
	"net/http"
	"net/http/pprof"
)

// Maximum numbers of concurrent profiles for local clients. Separate limits with the same values apply to all other
// clients. The stacks of a busy process are several megabytes of text, which net/http/pprof holds in memory until the
// client has read them. A recording needs less memory, but the client chooses the duration of the recording.
const (
	maxDumps      = 1
	maxRecordings = 2 // for example, a CPU profile and a trace
)

// profiler returns a handler for the profiles of the runtime. If there are too many concurrent profiles, the
// response is 503.
func profiler() http.Handler {
	dumps, recordings := make(slots, maxDumps), make(slots, maxRecordings)
	dump, difference := dumps.limit(pprof.Index), recordings.limit(pprof.Index)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/{$}", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/profile", recordings.limit(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/trace", recordings.limit(pprof.Trace))
	mux.HandleFunc("GET /debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("seconds") != "" { // the difference between two profiles, recorded this number of seconds apart
			difference(w, r)
			return
		}
		dump(w, r)
	})
	return mux
}

// slots limits the number of concurrent requests.
type slots chan struct{}

// limit returns a handler that calls serve if a slot is free, and responds with 503 otherwise.
func (p slots) limit(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case p <- struct{}{}:
			defer func() { <-p }()
			serve(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many concurrent profiles", http.StatusServiceUnavailable)
		}
	}
}
