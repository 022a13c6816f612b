package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

// seeds is the number of adaptive limits for each simulated row. The table contains the
// median.
const seeds = 3

// simulatedTables returns the tables of the simulation.
func simulatedTables(rows *regexp.Regexp) string {
	var b strings.Builder
	b.WriteString("\n#### Simulated rows\n\n")
	b.WriteString("| row | best fixed | goodput | ceiling | adaptive | p99 of best | p99 of adaptive | Gradient2 | Vegas | result |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range simulation.Rows() {
		if rows.MatchString(r.Name) {
			b.WriteString(simulatedLine(&r, true))
		}
	}
	b.WriteString("\n#### 8 of 40 clients are attackers (simulated)\n\n")
	b.WriteString("| attack | best fixed | goodput | ceiling | adaptive | p99 of best | p99 of adaptive | Gradient2 | Vegas | result |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range simulation.HostileRows() {
		if rows.MatchString(r.Name) {
			b.WriteString(simulatedLine(&r, false))
		}
	}
	b.WriteString("\n#### Settled limits of applications that are not full (simulated)\n\n| application | settled | goodput with it as a fixed limit | missing data |\n|---|---|---|---|\n")
	for _, r := range simulation.AdviceRows() {
		if rows.MatchString(r.Name) {
			b.WriteString(adviceLine(&r))
		}
	}
	return b.String()
}

// relative returns a goodput relative to the best one.
func relative(r, best *simulation.Result) string {
	return fmt.Sprintf("%.2f", r.Throughput/best.Throughput)
}

// simulatedLine returns the line of a row. criteria is false if only the goodput relative to
// the best fixed limit matters.
func simulatedLine(r *simulation.Row, criteria bool) string {
	limit, best := r.Best()
	ceiling := r.Compare(simulation.Fixed(simulation.Ceiling))
	var all []simulation.Result
	for jitter := range uint64(seeds) {
		got, _ := r.Adaptive(jitter)
		all = append(all, got)
	}
	slices.SortFunc(all, func(a, b simulation.Result) int { return int(1000 * (a.Throughput - b.Throughput)) })
	got := all[len(all)/2]
	missed := simulation.Criteria(&got, &best, &ceiling)
	if !criteria {
		missed = ""
		if got.Throughput < simulation.LeastOfBest*best.Throughput {
			missed = "costs " + fmt.Sprintf("%.0f %%", 100*(1-got.Throughput/best.Throughput))
		}
	}
	if missed == "" {
		missed = "pass"
	} else {
		missed = "**do not use it there**: " + missed
		if r.Avoid != "" {
			missed += " (" + r.Avoid + ")"
		}
	}
	gradient, vegas := r.Compare(simulation.Gradient2(simulation.Ceiling)), r.Compare(simulation.Vegas(simulation.Ceiling))
	return fmt.Sprintf("| %s: %s | %d | %.1f/s | %s | %s | %.0f ms | %.0f ms | %s | %s | %s |\n", r.Name, r.What, limit, best.Throughput,
		relative(&ceiling, &best), relative(&got, &best), 1000*best.P99, 1000*got.P99, relative(&gradient, &best), relative(&vegas, &best), missed)
}

func adviceLine(r *simulation.Row) string {
	none := r.Compare(simulation.Fixed(simulation.Ceiling))
	state := r.State()
	if state.Settled == 0 {
		return fmt.Sprintf("| %s: %s | unknown | | %s |\n", r.Name, r.What, state.Missing)
	}
	got := r.Compare(simulation.Fixed(state.Settled))
	return fmt.Sprintf("| %s: %s | %d | %s | |\n", r.Name, r.What, state.Settled, relative(&got, &none))
}
