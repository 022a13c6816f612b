package main

import (
	"cmp"
	"crypto/sha256"
	"slices"
)

// A selection selects workloads in a random but repeatable order.
type selection struct {
	seed string
	max  int // maximum number of workloads per repository
}

// hash returns a pseudorandom string for text.
func (s selection) hash(text string) string {
	sum := sha256.Sum256([]byte(s.seed + "\n" + text))
	return string(sum[:])
}

// choose selects at most max workloads of a repository. If several workloads have the same shape,
// it selects only one of them.
func (s selection) choose(r repository, all []*workload) []*workload {
	hashes := map[*workload]string{}
	for _, w := range all {
		hashes[w] = s.hash(r.name + "\n" + w.id())
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *workload) int { return cmp.Compare(hashes[a], hashes[b]) })
	var chosen []*workload
	drawn := map[string]bool{}
	for _, w := range all {
		if len(chosen) == s.max {
			break
		}
		if drawn[w.shape()] || drawn[w.id()] {
			continue
		}
		drawn[w.shape()], drawn[w.id()] = true, true
		chosen = append(chosen, w)
	}
	return chosen
}
