//go:build load

package main

import (
	"io"
	"strings"
	"testing"
)

// endless is a body of spaces. left is the number of remaining bytes.
type endless struct{ left int }

func (e *endless) Read(b []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(b), e.left)
	for i := range b[:n] {
		b[i] = ' '
	}
	e.left -= n
	return n, nil
}

// The memory limit is the same as in deploy/base. The test needs the whole machine because the
// injector returns 503 if it cannot read and decode a review in a few seconds.
func TestOversizedReviewsAreRejected(t *testing.T) {
	p := startInjector(t, buildInjector(t))
	post := p.poster()
	if status, text, err := post("application/json", &endless{100 << 20}); err == nil && (status != 413 || !strings.Contains(text, "exceeds the limit of 8388608 bytes")) {
		t.Errorf("100 MB: got %d %q, want 413 or a closed connection", status, text)
	}
	postWrongReviews(t, post, map[string]wrongReview{
		"deep arrays":  {"application/json", strings.Repeat("[", 7<<20), 400},
		"deep objects": {"application/json", strings.Repeat(`{"a":`, 1<<20), 400},
		"many fields":  {"application/json", `{"a":[` + strings.Repeat(`{"b":1},`, 900_000) + `{}]}`, 400},
	})
	if status, text, err := post("application/json", strings.NewReader(goodReview)); err != nil || status != 200 || !strings.Contains(text, `"patch"`) {
		t.Errorf("valid review after the test: got %d %.200q, %v, want a patch", status, text, err)
	}
	if peak := p.peak(t); peak > injectorMemory {
		t.Errorf("got a peak of %d MB of memory, want at most %d", peak>>20, injectorMemory>>20)
	}
}
