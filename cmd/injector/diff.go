package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
)

// around is how many lines that are the same are shown on each side of a difference.
const around = 3

// unified writes the difference of two texts as diff -u does; "" for none.
func unified(name string, before, after []byte) string {
	edits := manifest.Compare(linesOf(before), linesOf(after))
	shown := make([]bool, len(edits)) // it differs, or is close to what does
	for i, e := range edits {
		if e.Mark == ' ' {
			continue
		}
		for near := max(0, i-around); near <= min(i+around, len(edits)-1); near++ {
			shown[near] = true
		}
	}
	var out strings.Builder
	for from, to := 0, 0; from < len(edits); from = to + 1 {
		for to = from; to < len(edits) && shown[to]; {
			to++
		}
		if to == from {
			continue
		}
		if out.Len() == 0 {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
		}
		hunk(&out, edits[from:to])
	}
	return out.String()
}

func linesOf(text []byte) []string { return slices.Collect(strings.Lines(string(text))) }

func hunk(out *strings.Builder, edits []manifest.Line) {
	inA, inB := 0, 0
	for _, e := range edits {
		if e.Mark != '+' {
			inA++
		}
		if e.Mark != '-' {
			inB++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(edits[0].A, inA), span(edits[0].B, inB))
	for _, e := range edits {
		out.WriteByte(e.Mark)
		out.WriteString(e.Text)
		if !strings.HasSuffix(e.Text, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

func span(at, n int) string {
	if n > 0 {
		at++
	}
	if n == 1 {
		return fmt.Sprint(at)
	}
	return fmt.Sprintf("%d,%d", at, n)
}
