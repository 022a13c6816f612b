//go:build cluster

package cluster

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/test/visit"
)

const (
	tableBegin = "<!-- cluster -->\n"
	tableEnd   = "<!-- /cluster -->\n"
	page       = "../../docs/reliability.md"
)

// report prints the table of all scenarios with traffic, and with -update writes it into
// the document, if all was well.
func report(well bool) error {
	if len(results.all) == 0 {
		return nil
	}
	slices.SortFunc(results.all, func(a, b *result) int { return strings.Compare(a.scenario, b.scenario) })
	var b strings.Builder
	b.WriteString("| scenario | sent | by the app | by us | broken | lost |\n|---|---|---|---|---|---|\n")
	var sum result
	for _, r := range results.all {
		byUs := fmt.Sprint(r.count[visit.ByUs])
		if r.count[visit.ByUs] > 0 {
			byUs += ": " + strings.Join(slices.Sorted(maps.Keys(r.words[visit.ByUs])), ", ")
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %d | %d |\n", r.scenario, r.sent(), r.count[visit.ByApp], byUs, r.count[visit.Broken], r.count[visit.Lost])
		for v, n := range r.count {
			sum.count[v] += n
		}
	}
	fmt.Fprintf(&b, "| **all** | %d | %d | %d | %d | **%d** |\n", sum.sent(), sum.count[visit.ByApp], sum.count[visit.ByUs], sum.count[visit.Broken], sum.count[visit.Lost])
	fmt.Printf("\n%s\n", b.String())
	if !*update || !well {
		return nil
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s: no place for the table", page)
	}
	return os.WriteFile(page, []byte(before+tableBegin+"\n"+b.String()+"\n"+tableEnd+after), 0o644)
}
