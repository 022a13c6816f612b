//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestBuildsTableHasRatioAndInterval(t *testing.T) {
	r := &Results{Cells: map[string]map[string]*Cell{}}
	for _, ratio := range []float64{0.9, 1.1, 1.02, 1, 1.04, 1.05} {
		r.add("cpu/get-1", beforeName, 20)
		r.add("cpu/get-1", ours, 20*ratio)
		r.add("before/get-1", ours, ratio)
	}
	var table strings.Builder
	printBuilds(&table, r)
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines, want a header and one row:\n%s", len(lines), table.String())
	}
	got := strings.Join(strings.Fields(lines[1]), " ")
	const want = "GET 1 KB, 1 connection 20.0 20.6 1.030 0.90 to 1.10 6"
	if got != want {
		t.Errorf("got row %q, want %q", got, want)
	}
}
