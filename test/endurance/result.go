//go:build linux

package main

import (
	"encoding/json"
	"io"
	"maps"
	"regexp"
	"slices"
	"sync"
)

// A result contains the counts of one client load, or of all client loads of a row.
type result struct {
	Requests int            `json:"requests"`           // completed requests, or messages on long streams
	Bytes    int64          `json:"bytes"`              // bytes of content in both directions
	Expected map[string]int `json:"expected,omitempty"` // expected ends of calls by kind, such as an expired deadline
	Failures map[string]int `json:"failures,omitempty"` // failures by kind
}

// failures returns the number of failures of all kinds.
func (r *result) failures() int {
	n := 0
	for _, count := range r.Failures {
		n += count
	}
	return n
}

// add adds the counts of another result.
func (r *result) add(other *result) {
	r.Requests += other.Requests
	r.Bytes += other.Bytes
	for kind, n := range other.Expected {
		r.expect(kind, n)
	}
	for kind, n := range other.Failures {
		r.fail(kind, n)
	}
}

func (r *result) expect(kind string, n int) {
	if r.Expected == nil {
		r.Expected = map[string]int{}
	}
	r.Expected[kind] += n
}

func (r *result) fail(kind string, n int) {
	if r.Failures == nil {
		r.Failures = map[string]int{}
	}
	r.Failures[kind] += n
}

// withPrefix returns the counts with a prefix before each kind.
func withPrefix(prefix string, counts map[string]int) map[string]int {
	named := map[string]int{}
	for kind, n := range counts {
		named[prefix+kind] = n
	}
	return named
}

// kinds returns the kinds of failures, the most frequent kind first.
func kinds(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		if a < b {
			return -1
		}
		return 1
	})
}

// A tally is a result that multiple goroutines can update concurrently.
type tally struct {
	mu sync.Mutex
	r  result
}

// ok counts a successful request and its bytes of content.
func (t *tally) ok(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Requests++
	t.r.Bytes += int64(n)
}

// expected counts a request that ended as expected, for example because its deadline
// expired.
func (t *tally) expected(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Requests++
	t.r.expect(kind, 1)
}

// failed counts a failed request.
func (t *tally) failed(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Requests++
	t.r.fail(plain(kind), 1)
}

// add adds the counts of a result.
func (t *tally) add(part *result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.add(part)
}

func (t *tally) requests() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.r.Requests
}

// print writes the result as one line of JSON.
func (t *tally) print(w io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return json.NewEncoder(w).Encode(&t.r)
}

// maxKind is the maximum length of a kind in bytes.
const maxKind = 160

// volatileParts are the parts of a message that differ between two failures of the same
// kind.
var volatileParts = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`(127\.0\.0\.1|\[::1\]):\d+`), "ADDRESS"},
	{regexp.MustCompile(`(?i)(stream ID:?=? ?|LastStreamID=|timeout of )\d+`), "${1}N"},
	{regexp.MustCompile(`\d{4,}`), "N"},
	{regexp.MustCompile(`\s+`), " "},
}

// plain removes the volatile parts of a message.
func plain(kind string) string {
	for _, p := range volatileParts {
		kind = p.pattern.ReplaceAllString(kind, p.replacement)
	}
	return kind[:min(len(kind), maxKind)]
}
