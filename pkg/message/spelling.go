// File spelling.go suggests known words that are similar to an unknown word.

package message

import (
	"fmt"
	"strings"
)

// Unknown is the error of a word that is not one of those known: "unknown flag "-f": did
// you mean "-h"?". The nearest is named, the first of equals, if so many edits as
// tolerance returns for it are enough to make it of the word, whose case does not count.
// what says what both are.
func Unknown(what, word string, known []string, tolerance func(known string) int) error {
	meant, least := "", len(word)
	for _, k := range known {
		most := tolerance(k)
		if d := Distance(strings.ToLower(word), strings.ToLower(k), most); d <= most && d < least {
			meant, least = k, d
		}
	}
	if meant == "" {
		return fmt.Errorf("unknown %s %q", what, word)
	}
	return fmt.Errorf("unknown %s %q: did you mean %q?", what, word, meant)
}

// UnknownWord is [Unknown] for short words, as commands and flags are: in three letters, one
// may be wrong, and no more than two in all.
func UnknownWord(what, word string, known []string) error {
	return Unknown(what, word, known, func(k string) int { return min(2, len(k)/3) })
}

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
