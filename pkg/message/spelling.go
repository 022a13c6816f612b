// This file suggests known words that are similar to an unknown word.

package message

import (
	"fmt"
	"strings"
)

// Unknown returns an error for an unknown word, for example: unknown flag "-f": did you mean "-h"? The
// argument what describes the word, for example "flag". The error suggests the known word with the
// lowest distance from the unknown word. If several words have this distance, it suggests the first of
// them. A known word is suggested only if the distance is at most tolerance(known) and less than the
// length of the unknown word. Case is ignored.
func Unknown(what, word string, known []string, tolerance func(known string) int) error {
	suggestion, lowest := "", len(word)
	for _, k := range known {
		limit := tolerance(k)
		if d := Distance(strings.ToLower(word), strings.ToLower(k), limit); d <= limit && d < lowest {
			suggestion, lowest = k, d
		}
	}
	if suggestion == "" {
		return fmt.Errorf("unknown %s %q", what, word)
	}
	return fmt.Errorf("unknown %s %q: did you mean %q?", what, word, suggestion)
}

// UnknownWord is like [Unknown] for words such as commands and flags. It allows one edit for every three
// bytes of the known word, and at most two edits.
func UnknownWord(what, word string, known []string) error {
	return Unknown(what, word, known, func(k string) int { return min(2, len(k)/3) })
}

// Distance returns the minimum number of edits that change a to b, or limit+1 if this number is greater
// than limit. An edit inserts, deletes or replaces a byte, or swaps two adjacent bytes. No substring is
// edited more than once (optimal string alignment distance).
//
// The limit must not be negative. The running time is proportional to limit times the length of the
// shorter string.
func Distance(a, b string, limit int) int {
	if d := len(a) - len(b); d > limit || -d > limit {
		return limit + 1
	}
	// The table of distances has a row for each byte of a. Only three rows are kept, and only the cells
	// within limit of the diagonal are computed, because all other cells exceed the limit.
	const stackLen = 64 // longest b for which the rows do not escape to the heap
	var stack [3 * (stackLen + 1)]int
	cells, width := stack[:], len(b)+1
	if width > stackLen+1 {
		cells = make([]int, 3*width)
	}
	beforePrevious, previous, row := cells[:width], cells[width:2*width], cells[2*width:3*width]
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		low, high := max(1, i-limit), min(len(b), i+limit)
		row[low-1] = limit + 1 // not within limit of the diagonal
		if low == 1 {
			row[0] = i
		}
		lowest := row[low-1]
		for j := low; j <= high; j++ {
			d := previous[j-1]
			if a[i-1] != b[j-1] {
				d++
			}
			d = min(d, row[j-1]+1)
			if j < i+limit { // previous[j] has been computed
				d = min(d, previous[j]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, beforePrevious[j-2]+1)
			}
			row[j] = d
			lowest = min(lowest, d)
		}
		// No distance in a later row is less than the lowest distance in this row. This also holds for a
		// swap in the next row, because it adds 1 to the same distance as a deletion in this row.
		if lowest > limit {
			return limit + 1
		}
		beforePrevious, previous, row = previous, row, beforePrevious
	}
	return min(previous[len(b)], limit+1)
}
