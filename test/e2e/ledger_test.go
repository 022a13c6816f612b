//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// A tally counts the requests in a row of results.txt.
type tally struct {
	name, what string
	count      [ledger.Verdicts]int
	words      [ledger.Verdicts]map[string]int
}

func (y *tally) sent() int {
	n := 0
	for _, c := range y.count {
		n += c
	}
	return n
}

func (y *tally) add(v ledger.Verdict, word string) {
	y.count[v]++
	if y.words[v] == nil {
		y.words[v] = map[string]int{}
	}
	y.words[v][word]++
}

// cell returns the count of a verdict. For responses from the sidecar, it also returns their reasons.
func (y *tally) cell(v ledger.Verdict) string {
	if v != ledger.FromSidecar || y.count[v] == 0 {
		return fmt.Sprint(y.count[v])
	}
	var words []string
	for w := range y.words[v] {
		words = append(words, w)
	}
	slices.Sort(words)
	return fmt.Sprintf("%d: %s", y.count[v], strings.Join(words, ", "))
}

// join compares the records of the clients, the application and the sidecar for each request, and returns the row. It is
// called after the sidecar has exited.
func join(t *testing.T, f *fault, p *pod, entries []ledger.Entry) *tally {
	t.Helper()
	books := ledger.NewBooks()
	for _, line := range p.log("app") {
		books.App(line)
	}
	for _, line := range p.log(sidecarName) {
		books.Sidecar(line)
	}
	y := &tally{name: f.name, what: f.what}
	for i := range entries {
		e := &entries[i]
		v, word := books.Reconcile(e, ledger.Exceptions{Client: f.clientSuffers, Log: f.logSuffers, End: f.closes})
		y.add(v, word)
		if v == ledger.Lost && y.count[v] <= 10 {
			t.Errorf("%s %s: lost: %s", e.Method, e.ID, word)
		}
	}
	if n := y.count[ledger.Lost]; n > 0 {
		t.Errorf("lost %d requests", n)
	}
	return y
}
