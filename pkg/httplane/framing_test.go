package httplane_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// net/http does not always say what was wrong with a body in chunks.
func TestBadChunksAreAnswered400WhereverTheyAreSplit(t *testing.T) {
	h := build(t, &targets{}, nil)
	const text = "1\r\nx\r\n0;e\r\nContent-Length: 3\r\n\r\n"
	for split := range text {
		c := h.dial()
		c.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + text[:split])
		time.Sleep(time.Millisecond) // so that most are read apart
		c.send(text[split:])
		if r, _ := c.receive("POST"); r.StatusCode != 400 || !r.Close {
			t.Errorf("split at %d: got %d, close %v, want 400, true", split, r.StatusCode, r.Close)
		}
		c.ended()
	}
}

// A trailer section is as long as may be, or it is told that it is not: net/http
// has a bound of its own, of which it says nothing.
func TestTrailersAreTakenOrAnswered400(t *testing.T) {
	h := build(t, &targets{}, nil)
	for _, size := range []int{100, wire.MaxRequestTrailer, wire.MaxRequestTrailer + 1, 5000, 10_000, 20_000} {
		want := 200
		if size > wire.MaxRequestTrailer {
			want = 400
		}
		for _, piece := range []int{1000, 1 << 20} {
			c := h.dial()
			text := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("x", size-len("X: \r\n")) + "\r\n\r\n"
			for ; text != ""; text = text[min(piece, len(text)):] {
				c.send(text[:min(piece, len(text))])
				time.Sleep(time.Millisecond) // so that most are read apart
			}
			if r, _ := c.receive("POST"); r.StatusCode != want {
				t.Errorf("%d bytes of trailers in pieces of %d: got %d, want %d", size, piece, r.StatusCode, want)
			}
		}
	}
}

// A connection that ends behind an answer is not reset for what was sent behind
// the request.
func TestAnAnswerSurvivesWhatNobodyReads(t *testing.T) {
	const size = 1 << 20
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Repeat("x", size))
	}), nil)
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.1\nHost: a\n\n", // in doubt
	} {
		c := h.dial()
		before := len(h.observed(0))
		c.send(head + strings.Repeat("y", 100<<10))
		r, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(r.Body, b[:size*3/4]); err != nil {
			t.Fatal(err)
		}
		h.observed(before + 1)
		time.Sleep(10 * time.Millisecond) // net/http has still to close it
		if n, err := io.ReadFull(r.Body, b[size*3/4:]); err != nil {
			t.Errorf("%q: got %v after %d bytes of the last quarter, want all of it", head, err, n)
		}
	}
}
