package main

import (
	"fmt"
	"slices"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

// seeds is the number of runs with an adaptive limit for each simulated row. Each run has a
// separate seed, and the table contains the median.
const seeds = 3

const simulatedCells = " | best fixed | goodput, 1/s | ceiling | adaptive | p99 | Gradient2 | Vegas | result |"

// simulatedTables returns the tables of the simulation.
func simulatedTables() []table {
	all := table{title: "Simulated rows", header: "| row" + simulatedCells}
	for _, r := range simulation.Rows() {
		all.lines = append(all.lines, line{r.Name, cell(&r), func() (string, error) { return simulatedLine(&r, true), nil }})
	}
	hostile := table{title: "Simulated rows with attackers", header: "| attack" + simulatedCells}
	for _, r := range simulation.HostileRows() {
		hostile.lines = append(hostile.lines, line{r.Name, cell(&r), func() (string, error) { return simulatedLine(&r, false), nil }})
	}
	advice := table{
		title:  "Settled limits of simulated applications that are not full",
		header: "| application | settled | goodput with it as a fixed limit | missing data |",
	}
	for _, r := range simulation.AdviceRows() {
		advice.lines = append(advice.lines, line{r.Name, r.Name, func() (string, error) { return adviceLine(&r), nil }})
	}
	return []table{all, hostile, advice}
}

func cell(r *simulation.Row) string {
	if r.What == "" {
		return r.Name
	}
	return r.Name + ": " + r.What
}

// relative returns the goodput of r divided by the goodput of best.
func relative(r, best *simulation.Result) string {
	return fmt.Sprintf("%.2f", r.Throughput/best.Throughput)
}

// simulatedLine returns the cells of a row except the first. If criteria is false, only the goodput relative to the
// best fixed limit is checked.
func simulatedLine(r *simulation.Row, criteria bool) string {
	limit, best, ceiling := r.Best()
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
		missed = "**not recommended**: " + missed
		if r.Avoid != "" {
			missed += " (" + r.Avoid + ")"
		}
	}
	gradient, vegas := r.Compare(simulation.Gradient2(simulation.Ceiling)), r.Compare(simulation.Vegas(simulation.Ceiling))
	return fmt.Sprintf("%d | %.1f | %s | %s | %.2f | %s | %s | %s", limit, best.Throughput,
		relative(&ceiling, &best), relative(&got, &best), got.P99/best.P99, relative(&gradient, &best), relative(&vegas, &best), missed)
}

// adviceLine returns the cells of a row except the first.
func adviceLine(r *simulation.Row) string {
	none := r.Compare(simulation.Fixed(simulation.Ceiling))
	state := r.State()
	if state.Settled == 0 {
		return fmt.Sprintf("unknown | | %s", state.Missing)
	}
	got := r.Compare(simulation.Fixed(state.Settled))
	return fmt.Sprintf("%d | %s |", state.Settled, relative(&got, &none))
}
