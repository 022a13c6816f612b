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
	a, b := linesOf(before), linesOf(after)
	edits := manifest.Compare(a, b)
	var out strings.Builder
	for i := 0; i < len(edits); {
		if edits[i].Mark == ' ' {
			i++
			continue
		}
		from, to := max(0, i-around), i
		for same := 0; to < len(edits) && same <= 2*around; to++ {
			if same++; edits[to].Mark != ' ' {
				same = 0
			}
		}
		for to > 0 && to-i > 0 && tailOfSame(edits[i:to]) > around {
			to--
		}
		if out.Len() == 0 {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
		}
		hunk(&out, edits[from:to])
		i = to
	}
	return out.String()
}

func linesOf(text []byte) []string { return slices.Collect(strings.Lines(string(text))) }

func tailOfSame(edits []manifest.Line) int {
	n := 0
	for n < len(edits) && edits[len(edits)-1-n].Mark == ' ' {
		n++
	}
	return n
}

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
