package httplane_test

import (
	"testing"
	"time"
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
