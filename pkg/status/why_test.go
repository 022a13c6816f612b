package status

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"
)

// An answer without end, and one that leads elsewhere, end `queue-proxy why` with an
// error, and with little memory.
func TestWhyTakesABoundedAnswer(t *testing.T) {
	const most = 8 << 20 // bytes of garbage: JSON of 1 MiB is read into a buffer that doubles
	endless := func(w http.ResponseWriter, start, rest string) {
		piece := bytes.Repeat([]byte(rest), 8<<10)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for _, err = io.WriteString(conn, start); err == nil; {
			_, err = conn.Write(piece)
		}
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"a head without end": func(w http.ResponseWriter, _ *http.Request) { endless(w, "HTTP/1.1 200 OK\r\n", "X: xxx\r\n") },
		"a body without end": func(w http.ResponseWriter, _ *http.Request) { endless(w, "HTTP/1.1 200 OK\r\n\r\n[\"", "x") },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
	} {
		server := httptest.NewServer(answer)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Why(ctx, server.Listener.Addr().String(), false, io.Discard)
		runtime.ReadMemStats(&after)
		cancel()
		server.Close()
		if err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > most {
			t.Errorf("%s: got %d KiB of garbage, want %d at most", name, got>>10, most>>10)
		}
	}
}
