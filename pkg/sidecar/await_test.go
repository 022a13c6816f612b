package sidecar

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
)

// An exec probe uses the memory of the sidecar container. The response may be large, because the server
// on the probed port may be the user container.
func TestExecProbeLimitsResponseSize(t *testing.T) {
	const most = 4 << 20 // maximum number of bytes that about 10 probes allocate
	piece := bytes.Repeat([]byte("X: xxxxxxxxxxx\r\n"), 4<<10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("got a request to the target of the redirect, want none")
	}))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"endless header": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for _, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"); err == nil; {
				_, err = conn.Write(piece)
			}
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
	} {
		server := httptest.NewServer(answer)
		ctx, cancel := context.WithTimeout(t.Context(), 10*probeInterval)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := AwaitReady(ctx, server.Listener.Addr().(*net.TCPAddr).Port)
		runtime.ReadMemStats(&after)
		cancel()
		server.Close()
		if err == nil {
			t.Errorf("%s: got no error", name)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > most {
			t.Errorf("%s: read %d KiB of the response in %v, want at most %d KiB", name, got>>10, 10*probeInterval, most>>10)
		}
	}
}
