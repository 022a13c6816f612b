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

// compare finds a shortest way from a to b, by Myers' greedy algorithm (1986). The
// lines that both begin and end with are set aside first, so its table stays as small
// as what has changed.
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
	edits = append(edits, shortest(a[head:len(a)-tail], b[head:len(b)-tail], head)...)
	for i := range tail {
		at, bt := len(a)-tail+i, len(b)-tail+i
		edits = append(edits, line{' ', a[at], at, bt})
	}
	return edits
}

func shortest(a, b []string, offset int) []line {
	most := len(a) + len(b)
	reach := make([]int, 2*most+2) // the furthest in a on each diagonal
	var history [][]int
	for d := 0; d <= most; d++ {
		history = append(history, slices.Clone(reach))
		for k := -d; k <= d; k += 2 {
			x := 0
			if k == -d || k != d && reach[most+k-1] < reach[most+k+1] {
				x = reach[most+k+1]
			} else {
				x = reach[most+k-1] + 1
			}
			for x < len(a) && x-k < len(b) && a[x] == b[x-k] {
				x++
			}
			reach[most+k] = x
			if x >= len(a) && x-k >= len(b) {
				return walkBack(a, b, history, offset)
			}
		}
	}
	return nil
}

// walkBack follows the furthest reaching ways from the end to the beginning.
func walkBack(a, b []string, history [][]int, offset int) []line {
	most := len(a) + len(b)
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
			edits = append(edits, line{' ', a[x], x + offset, y + offset})
		}
		switch {
		case d == 0:
		case from == k+1:
			y--
			edits = append(edits, line{'+', b[y], x + offset, y + offset})
		default:
			x--
			edits = append(edits, line{'-', a[x], x + offset, y + offset})
		}
	}
	slices.Reverse(edits)
	return edits
}
