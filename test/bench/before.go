//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// beforeName is the name that reports use for the build that BENCH_BEFORE selects.
const beforeName = "before"

// findBuilds returns the two builds of queue-proxy that compareBuilds compares: the program in
// the directory bin, and the program whose path is before.
func findBuilds(bin, before string) ([]*peer, error) {
	var builds []*peer
	for _, build := range []struct{ name, program string }{{ours, filepath.Join(bin, "queue-proxy")}, {beforeName, before}} {
		program, err := filepath.Abs(build.program)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(program); err != nil {
			return nil, err
		}
		builds = append(builds, &peer{name: build.name, program: program, queues: true, sidecar: true, h2ToH1: true, command: queueProxy()})
	}
	return builds, nil
}

// compareBuilds measures each selected load with the two builds returned by findBuilds. It runs
// each load in Settings.Rounds pairs: with one build and immediately afterwards with the other
// build. The cells before/<load> contain the ratio of the CPU time per request for each pair.
func (b *bench) compareBuilds(ctx context.Context) error {
	app, err := b.startApp(0)
	if err != nil {
		return err
	}
	defer app.stop()
	for _, grpc := range []bool{false, true} {
		if err := b.compareLoads(ctx, app, grpc); err != nil {
			return err
		}
	}
	return nil
}

// compareLoads runs the loads of compareBuilds for one application. If grpc is true, the
// application supports only gRPC; otherwise, it supports only HTTP/1.1.
func (b *bench) compareLoads(ctx context.Context, app *runningApp, grpc bool) error {
	selected := slices.DeleteFunc(slices.Clone(loads), func(l load) bool {
		return l.grpc != grpc || !b.results.Settings.selects(l.group)
	})
	if len(selected) == 0 {
		return nil
	}
	in := circumstances{app: app, grpc: grpc, limit: concurrency}
	for n := range b.results.Settings.Rounds {
		// Both builds are restarted in each round, because the CPU time depends on the addresses of
		// code and data, which change with each start.
		peers, stop, err := b.startPeers(ctx, b.peers, in, client{h2: grpc}, "before/"+selected[0].id)
		if err != nil {
			return err
		}
		if len(peers) == len(b.peers) {
			err = b.comparePairs(ctx, selected, peers, n)
		}
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// comparePairs measures one pair of each load in round n.
func (b *bench) comparePairs(ctx context.Context, selected []load, peers []*running, n int) error {
	for i := range selected {
		l := &selected[i]
		costs := map[string]float64{}
		for _, r := range rotate(peers, n+i) {
			cost, _, err := b.cost(ctx, l, r)
			if err := b.failed(ctx, "before/"+l.id, r.name(), err); err != nil {
				return err
			}
			if err == nil {
				costs[r.name()] = cost
				b.results.add("cpu/"+l.id, r.name(), cost)
			}
		}
		if len(costs) == len(peers) {
			b.results.add("before/"+l.id, ours, costs[ours]/costs[beforeName])
		}
	}
	return nil
}

// printBuilds prints the table of compareBuilds. The column with the interval contains
// the 95 % confidence interval of the median ratio. It is "-" if there are fewer than six
// pairs.
func printBuilds(w io.Writer, r *Results) {
	fmt.Fprintf(w, "%-58s %10s %10s %7s %14s %5s\n", "CPU time per request", "before, us", "now, us", "ratio", "95 %", "pairs")
	for i := range loads {
		l := &loads[i]
		cell := r.Cells["before/"+l.id][ours]
		if cell == nil || len(cell.Values) == 0 {
			continue
		}
		interval := "-"
		if low, high, ok := medianInterval(cell.Values); ok {
			interval = fmt.Sprintf("%.2f to %.2f", low, high)
		}
		old, _ := r.median("cpu/"+l.id, beforeName)
		now, _ := r.median("cpu/"+l.id, ours)
		fmt.Fprintf(w, "%-58s %10.1f %10.1f %7.3f %14s %5d\n", l.title, old, now, median(cell.Values), interval, len(cell.Values))
	}
}
