package status

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// An endless response or a redirect must cause an error and must not use much memory.
func TestWhyLimitsResponseSize(t *testing.T) {
	const most = 8 << 20 // allocated bytes; JSON of 1 MiB is read into a buffer that doubles its size
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
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("got a request after a redirect, want none") }))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"endless header section": func(w http.ResponseWriter, _ *http.Request) { endless(w, "HTTP/1.1 200 OK\r\n", "X: xxx\r\n") },
		"endless body":           func(w http.ResponseWriter, _ *http.Request) { endless(w, "HTTP/1.1 200 OK\r\n\r\n[\"", "x") },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
	} {
		server := httptest.NewServer(answer)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Why(ctx, netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, false, io.Discard)
		runtime.ReadMemStats(&after)
		cancel()
		server.Close()
		if err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > most {
			t.Errorf("%s: got %d KiB of allocations, want at most %d KiB", name, got>>10, most>>10)
		}
	}
}

// Before the sidecar starts, the user container can listen on the port of the status page and send control
// characters for a terminal.
func TestWhyRemovesHiddenCharacters(t *testing.T) {
	const answer = `{"ready":false,"reason":"a\u001b[2J\u009b31m\u202eb","problem":"c\u200b\r\nd"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
	defer server.Close()
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		if _, err := Why(t.Context(), netconn.LoopbackClient(), server.Listener.Addr().(*net.TCPAddr).Port, asJSON, &out); err != nil {
			t.Fatal(err)
		}
		hidden := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
		if got := out.String(); strings.ContainsFunc(got, hidden) || !strings.Contains(got, "31m") {
			t.Errorf("JSON %t: got %q, want the reason without hidden characters", asJSON, got)
		}
	}
}
