package main

import (
	"fmt"
	"slices"
	"strings"
)

// results are what was seen with a limit, round for round.
type results struct {
	name  string
	loads [2][]seen // closed, open
	found []int     // by the adaptive limit
}

// last is what the last round has shown, for who waits.
func (r *results) last() string {
	n := len(r.loads[0]) - 1
	s := fmt.Sprintf("closed %+v, open %+v", r.loads[0][n], r.loads[1][n])
	if len(r.found) > 0 {
		s += fmt.Sprintf(", found %d", r.found[n])
	}
	return s
}

// table returns both loads of an app, a row for each limit, in Markdown.
func table(app string, rate float64, all []results) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s; the open loop has %.0f requests a second\n\n", app, rate)
	b.WriteString("| limit | closed: requests/s | p50 | p99 | open: requests/s | p50 | p99 | refused | failed |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		name := r.name
		if len(r.found) > 0 {
			name += fmt.Sprintf(": found %s", strings.Trim(fmt.Sprint(r.found), "[]"))
		}
		closed, open := r.loads[0], r.loads[1]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", name,
			rates(closed), times(closed, func(s seen) float64 { return s.p50 }), times(closed, func(s seen) float64 { return s.p99 }),
			rates(open), times(open, func(s seen) float64 { return s.p50 }), times(open, func(s seen) float64 { return s.p99 }),
			parts(open, func(s seen) float64 { return s.refused }), parts(open, func(s seen) float64 { return s.failed }))
	}
	return b.String()
}

// rates is the median, and the least and the most behind it.
func rates(all []seen) string {
	least, middle, most := spread(all, func(s seen) float64 { return s.throughput })
	return fmt.Sprintf("%.0f (%.0f to %.0f)", middle, least, most)
}

func times(all []seen, value func(seen) float64) string {
	_, middle, _ := spread(all, value)
	return fmt.Sprintf("%.0f ms", 1000*middle)
}

func parts(all []seen, value func(seen) float64) string {
	_, middle, _ := spread(all, value)
	return fmt.Sprintf("%.0f %%", 100*middle)
}

// spread returns the least, the median and the most of a value over the rounds.
func spread(all []seen, value func(seen) float64) (least, middle, most float64) {
	var values []float64
	for _, s := range all {
		values = append(values, value(s))
	}
	slices.Sort(values)
	return values[0], values[len(values)/2], values[len(values)-1]
}
