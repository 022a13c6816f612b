package main

import (
	"fmt"
	"slices"
	"strings"
)

// around is how many lines that are the same are shown on each side of a difference.
const around = 3

// unified writes the difference of two texts as diff -u does; "" for none.
func unified(name string, before, after []byte) string {
	a, b := linesOf(before), linesOf(after)
	edits := compare(a, b)
	var out strings.Builder
	for i := 0; i < len(edits); {
		if edits[i].mark == ' ' {
			i++
			continue
		}
		from, to := max(0, i-around), i
		for same := 0; to < len(edits) && same <= 2*around; to++ {
			if same++; edits[to].mark != ' ' {
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

func tailOfSame(edits []line) int {
	n := 0
	for n < len(edits) && edits[len(edits)-1-n].mark == ' ' {
		n++
	}
	return n
}

// A line of a difference: ' ' is in both texts, '-' in the first, '+' in the second. a
// and b are where it is in each, counted from 0.
type line struct {
	mark byte
	text string
	a, b int
}

func hunk(out *strings.Builder, edits []line) {
	inA, inB := 0, 0
	for _, e := range edits {
		if e.mark != '+' {
			inA++
		}
		if e.mark != '-' {
			inB++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(edits[0].a, inA), span(edits[0].b, inB))
	for _, e := range edits {
		out.WriteByte(e.mark)
		out.WriteString(e.text)
		if !strings.HasSuffix(e.text, "\n") {
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

// mostEdits bounds the table of shortest, which grows with the square of the edits.
const mostEdits = 1000

// compare finds a way from a to b, by Myers' greedy algorithm (1986): a shortest one up
// to mostEdits edits, and shortest pieces of so many beyond them. The lines that both
// begin and end with are set aside first, so its table stays as small as what has changed.
func compare(a, b []string) []line {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var edits []line
	for i := range head {
		edits = append(edits, line{' ', a[i], i, i})
	}
	for x, y := head, head; x < len(a)-tail || y < len(b)-tail; {
		piece := shortest(a[x:len(a)-tail], b[y:len(b)-tail])
		for _, e := range piece {
			edits = append(edits, line{e.mark, e.text, e.a + x, e.b + y})
		}
		last := piece[len(piece)-1]
		x, y = x+last.a, y+last.b
		if last.mark != '+' {
			x++
		}
		if last.mark != '-' {
			y++
		}
	}
	for i := range tail {
		at, bt := len(a)-tail+i, len(b)-tail+i
		edits = append(edits, line{' ', a[at], at, bt})
	}
	return edits
}

// shortest is a shortest way from a to b, one of which has lines, or its first piece:
// that which comes furthest with mostEdits edits.
func shortest(a, b []string) []line {
	most := min(len(a)+len(b), mostEdits)
	reach := make([]int, 2*most+2) // the furthest in a on each diagonal
	var history [][]int
	far, x, y, steps := 0, 0, 0, 0 // in both together, in each, and how much of the history led there
	for d := 0; d <= most && far < len(a)+len(b); d++ {
		history = append(history, slices.Clone(reach))
		for k := -d; k <= d; k += 2 {
			i := 0
			if k == -d || k != d && reach[most+k-1] < reach[most+k+1] {
				i = reach[most+k+1]
			} else {
				i = reach[most+k-1] + 1
			}
			for i < len(a) && i-k < len(b) && a[i] == b[i-k] {
				i++
			}
			reach[most+k] = i
			if j := i - k; i <= len(a) && j <= len(b) && i+j > far {
				far, x, y, steps = i+j, i, j, d+1
			}
		}
	}
	return walkBack(a[:x], b[:y], history[:steps], most)
}

// walkBack follows the furthest reaching ways from the end to the beginning.
func walkBack(a, b []string, history [][]int, most int) []line {
	x, y := len(a), len(b)
	var edits []line
	for d := len(history) - 1; d >= 0; d-- {
		reach := history[d]
		k := x - y
		from := k - 1
		if k == -d || k != d && reach[most+k-1] < reach[most+k+1] {
			from = k + 1
		}
		fromX := reach[most+from]
		fromY := fromX - from
		if d == 0 {
			fromX, fromY = 0, 0
		}
		for x > fromX && y > fromY {
			x, y = x-1, y-1
			edits = append(edits, line{' ', a[x], x, y})
		}
		switch {
		case d == 0:
		case from == k+1:
			y--
			edits = append(edits, line{'+', b[y], x, y})
		default:
			x--
			edits = append(edits, line{'-', a[x], x, y})
		}
	}
	slices.Reverse(edits)
	return edits
}
