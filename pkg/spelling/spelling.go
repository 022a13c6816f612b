// Package spelling tells how far one name is from another, for hints about
// misspelt ones.
package spelling

// Distance is how many letters must be put in, taken out, changed, or swapped
// with their neighbour to make b of a, or most+1 if they are more than most. No
// part of a takes part in two changes (the optimal string alignment distance).
//
// Letters are bytes. most is 0 or more. The time that it takes grows with most
// times the length of the shorter name.
func Distance(a, b string, most int) int {
	if d := len(a) - len(b); d > most || -d > most {
		return most + 1
	}
	// Three rows of the usual table, of which only the cells at most so far from
	// the diagonal can hold a distance that counts.
	const usual = 64
	var stack [3 * (usual + 1)]int
	cells, width := stack[:], len(b)+1
	if width > usual+1 {
		cells = make([]int, 3*width)
	}
	before, above, row := cells[:width], cells[width:2*width], cells[2*width:3*width]
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		low, high := max(1, i-most), min(len(b), i+most)
		row[low-1] = most + 1 // beside the band
		if low == 1 {
			row[0] = i
		}
		least := row[low-1]
		for j := low; j <= high; j++ {
			d := above[j-1]
			if a[i-1] != b[j-1] {
				d++
			}
			d = min(d, row[j-1]+1)
			if j < i+most { // above[j] is in the band
				d = min(d, above[j]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			row[j] = d
			least = min(least, d)
		}
		// A swap reaches back two rows, but what it saves it has cost in the row between.
		if least > most {
			return most + 1
		}
		before, above, row = above, row, before
	}
	return min(above[len(b)], most+1)
}
