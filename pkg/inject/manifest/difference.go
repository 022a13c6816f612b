package manifest

import "slices"

// A Line of a difference: Mark is ' ' for one that is in both texts, '-' in the first, '+' in
// the second. A and B are where it is in each, counted from 0.
type Line struct {
	Mark byte
	Text string
	A, B int
}

// mostEdits bounds the table of shortest, which grows with the square of the edits.
const mostEdits = 1000

// Compare finds a way from a to b, by Myers' greedy algorithm (1986): a shortest one up
// to mostEdits edits, and shortest pieces of so many beyond them. The lines that both
// begin and end with are set aside first, so its table stays as small as what has changed.
func Compare(a, b []string) []Line {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var edits []Line
	for i := range head {
		edits = append(edits, Line{' ', a[i], i, i})
	}
	for x, y := head, head; x < len(a)-tail || y < len(b)-tail; {
		piece, dx, dy := shortest(a[x:len(a)-tail], b[y:len(b)-tail])
		for _, e := range piece {
			edits = append(edits, Line{e.Mark, e.Text, e.A + x, e.B + y})
		}
		x, y = x+dx, y+dy
	}
	for i := range tail {
		at, bt := len(a)-tail+i, len(b)-tail+i
		edits = append(edits, Line{' ', a[at], at, bt})
	}
	return edits
}

// shortest is a shortest way from a to b, one of which has lines, or its first piece:
// that which comes furthest with mostEdits edits; and how many lines of each it takes.
func shortest(a, b []string) (way []Line, x, y int) {
	most := min(len(a)+len(b), mostEdits)
	reach := make([]int, 2*most+3) // the furthest in a on each diagonal, of which most+1 is the middle one
	var history [][]int
	far, steps := 0, 0 // in both together, and how much of the history led there
	for d := 0; d <= most && far < len(a)+len(b); d++ {
		history = append(history, slices.Clone(reach[most-d:most+d+3])) // what this step looks at
		for k := -d; k <= d; k += 2 {
			i := 0
			if k == -d || k != d && reach[most+k] < reach[most+k+2] {
				i = reach[most+k+2]
			} else {
				i = reach[most+k] + 1
			}
			for i < len(a) && i-k < len(b) && a[i] == b[i-k] {
				i++
			}
			reach[most+1+k] = i
			if j := i - k; i <= len(a) && j <= len(b) && i+j > far {
				far, x, y, steps = i+j, i, j, d+1
			}
		}
	}
	return walkBack(a[:x], b[:y], history[:steps]), x, y
}

// walkBack follows the furthest reaching ways from the end to the beginning.
func walkBack(a, b []string, history [][]int) []Line {
	x, y := len(a), len(b)
	var edits []Line
	for d := len(history) - 1; d >= 0; d-- {
		reach := history[d] // of which d+1 is the middle one
		k := x - y
		from := k - 1
		if k == -d || k != d && reach[d+k] < reach[d+k+2] {
			from = k + 1
		}
		fromX := reach[d+1+from]
		fromY := fromX - from
		if d == 0 {
			fromX, fromY = 0, 0
		}
		for x > fromX && y > fromY {
			x, y = x-1, y-1
			edits = append(edits, Line{' ', a[x], x, y})
		}
		switch {
		case d == 0:
		case from == k+1:
			y--
			edits = append(edits, Line{'+', b[y], x, y})
		default:
			x--
			edits = append(edits, Line{'-', a[x], x, y})
		}
	}
	slices.Reverse(edits)
	return edits
}
