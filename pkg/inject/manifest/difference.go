package manifest

import "slices"

// A Line is a line of a difference. Mark is ' ' for a line in both texts, '-' for a line only in
// the first text, and '+' for a line only in the second text. A and B are the indexes of the line
// in the two texts.
type Line struct {
	Mark byte
	Text string
	A, B int
}

// maxEdits limits the table in shortest, which is quadratic in the number of edits.
const maxEdits = 1000

// Compare returns the difference between a and b (Myers, An O(ND) Difference Algorithm, 1986). The
// difference is minimal if it consists of at most maxEdits edits. Otherwise, it is a sequence of
// minimal parts with this number of edits. The common lines at the beginning and at the end are
// removed first, so that the cost depends only on the size of the changed part.
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

// shortest returns the minimal difference between a and b, which must not both be empty. If the
// difference exceeds maxEdits edits, shortest returns the part that covers the most lines. x and y
// are the numbers of lines of a and b that are covered.
func shortest(a, b []string) (way []Line, x, y int) {
	most := min(len(a)+len(b), maxEdits)
	reach := make([]int, 2*most+3) // maximum index in a for each diagonal; index most+1 is diagonal 0
	var history [][]int
	far, steps := 0, 0 // lines covered in both texts, and the length of the history up to there
	for d := 0; d <= most && far < len(a)+len(b); d++ {
		history = append(history, slices.Clone(reach[most-d:most+d+3])) // the part that this step reads
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

// walkBack reconstructs the edits from the history, in reverse.
func walkBack(a, b []string, history [][]int) []Line {
	x, y := len(a), len(b)
	var edits []Line
	for d := len(history) - 1; d >= 0; d-- {
		reach := history[d] // index d+1 is diagonal 0
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
