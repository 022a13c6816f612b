//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A tally is a row of docs/reliability.md.
type tally struct {
	name, what string
	count      [lost + 1]int
	words      [lost + 1]map[string]int
}

func (y *tally) sent() int {
	n := 0
	for _, c := range y.count {
		n += c
	}
	return n
}

func (y *tally) add(v verdict, word string) {
	y.count[v]++
	if y.words[v] == nil {
		y.words[v] = map[string]int{}
	}
	y.words[v][word]++
}

// cell returns a count and, in brackets, the words of it.
func (y *tally) cell(v verdict) string {
	if v != byUs || y.count[v] == 0 {
		return fmt.Sprint(y.count[v])
	}
	var words []string
	for w := range y.words[v] {
		words = append(words, w)
	}
	slices.Sort(words)
	return fmt.Sprintf("%d: %s", y.count[v], strings.Join(words, ", "))
}

// join holds the three ledgers against each other, request by request, when the
// sidecar has ended, and returns the row. What they do not agree on is lost:
//
//   - the app's answer to a request that the app does not know;
//   - a POST that came to the app twice;
//   - an answer that the request log does not have, or has differently;
//   - an end that a client noticed and the log calls well, unless the wire between
//     them or the client itself was at fault;
//   - a request on an open connection that broke and that the log does not know,
//     with the same exception; and but for a sidecar that ends, which may close a
//     connection on which it has not read a head.
//
// A log that was itself the victim, or whose writer was killed, can accuse nobody.
func join(t *testing.T, f *fault, p *pod, entries []entry) *tally {
	t.Helper()
	seen := map[string]int{}
	for _, line := range p.log("app") {
		if id, ok := strings.CutPrefix(line, "seen "); ok {
			seen[id]++
		}
	}
	type logged struct {
		Message, Target, Protocol, Reason string
		Status                            int
		Replayed                          bool
	}
	told := map[string][]logged{}
	for _, line := range p.log(sidecarName) {
		var l logged
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "request" {
			if _, id, ok := strings.Cut(l.Target, "id="); ok {
				told[id] = append(told[id], l)
			}
		}
	}

	y := &tally{name: f.name, what: f.what}
	for _, e := range entries {
		v, word := e.verdict, e.word
		lose := func(format string, args ...any) { v, word = lost, fmt.Sprintf(format, args...) }
		lines := told[e.id]
		switch {
		case v == lost:
		case v == byApp && seen[e.id] == 0:
			lose("answered by the app, which does not know it")
		case e.method == "POST" && seen[e.id] > 1:
			lose("a POST that came to the app %d times, logged as %+v", seen[e.id], lines)
		case f.logSuffers:
		case v == byApp && (len(lines) != 1 || lines[0].Reason != "ok" || lines[0].Status != e.status):
			lose("answered by the app with %d, logged as %+v", e.status, lines)
		case v == byUs && (len(lines) != 1 || lines[0].Reason != word || lines[0].Status != e.status):
			lose("answered by us with %d %s, logged as %+v", e.status, word, lines)
		case v == broken && !f.clientSuffers && !f.closes && e.conn && len(lines) == 0:
			lose("broken (%s), not in the log", word)
		case v == broken && !f.clientSuffers && len(lines) > 0 && lines[0].Reason == "ok":
			lose("broken (%s), logged as well", word)
		}
		y.add(v, word)
		if v == lost && y.count[lost] <= 10 {
			t.Errorf("%s %s: got it lost: %s", e.method, e.id, word)
		}
	}
	if y.count[lost] > 0 {
		t.Errorf("got %d requests lost, want 0", y.count[lost])
	}
	return y
}
