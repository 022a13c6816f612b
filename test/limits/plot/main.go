// The command plot draws the plots of docs/limits.md: it runs the simulated apps with the
// adaptive limit and with fixed ones, and writes SVG. The same source gives the same bytes.
//
//	go run ./test/limits/plot docs/limits
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plot FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, svg := range plots(simulate(simulation.Cases())) {
		if err := os.WriteFile(filepath.Join(folder, name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plots returns the plots by file name.
func plots(all []outcome) map[string][]byte {
	return map[string][]byte{"time.svg": overTime(all), "compared.svg": compared(all)}
}

// outcome is what a simulated app did with several limits.
type outcome struct {
	app      simulation.Case
	limit    int // the best fixed one
	best     simulation.Result
	low      simulation.Result // with the lowest limit of the sweep
	none     simulation.Result // with a limit that no request meets
	adaptive simulation.Result
	points   []simulation.Point // of the adaptive limit
}

// jitter is the seed of the adaptive limit.
const jitter = 0

// simulate runs all apps.
func simulate(cases []simulation.Case) []outcome {
	all := make([]outcome, len(cases))
	limits := simulation.Sweep()
	for i, c := range cases {
		var fixed []simulation.Result
		for _, limit := range limits {
			fixed = append(fixed, c.Fixed(limit, simulation.Requests))
		}
		o := outcome{app: c, low: fixed[0], none: fixed[len(fixed)-1]}
		o.limit, o.best = simulation.Best(limits, fixed)
		o.adaptive, o.points = c.Adaptive(simulation.Requests, jitter)
		all[i] = o
	}
	return all
}
