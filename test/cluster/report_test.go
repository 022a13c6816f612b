//go:build cluster

package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// report prints the table of all scenarios with traffic. well reports whether all tests passed. If
// it is true and -update is set, report also writes the table to results.txt, and the totals to
// docs/reliability.md.
func report(well bool) error {
	if len(results.all) == 0 {
		return nil
	}
	slices.SortFunc(results.all, func(a, b *result) int { return strings.Compare(a.scenario, b.scenario) })
	const columns = " | sent | application | sidecar | broken | lost |\n|---|---|---|---|---|---|\n"
	var b strings.Builder
	b.WriteString("| scenario" + columns)
	var sum result
	for _, r := range results.all {
		byUs := fmt.Sprint(r.count[ledger.FromSidecar])
		if r.count[ledger.FromSidecar] > 0 {
			byUs += ": " + strings.Join(slices.Sorted(maps.Keys(r.words[ledger.FromSidecar])), ", ")
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %d | %d |\n", r.scenario, r.sent(), r.count[ledger.FromApp], byUs, r.count[ledger.Broken], r.count[ledger.Lost])
		for v, n := range r.count {
			sum.count[v] += n
		}
	}
	all := fmt.Sprintf(" | %d | %d | %d | %d | **%d** |\n", sum.sent(), sum.count[ledger.FromApp], sum.count[ledger.FromSidecar], sum.count[ledger.Broken], sum.count[ledger.Lost])
	b.WriteString("| **all**" + all)
	fmt.Printf("\n%s\n", b.String())
	if !*update || !well {
		return nil
	}
	if err := harness.WriteSection("results.txt", "scenarios", "\n"+b.String()+"\n"); err != nil {
		return err
	}
	summary := fmt.Sprintf("\n| scenarios%s| %d%s\n", columns, len(results.all), all)
	return harness.WriteSection("../../docs/reliability.md", "cluster", summary)
}
