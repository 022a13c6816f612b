package message

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestDistanceCountsSwapAsOneEdit(t *testing.T) {
	for _, test := range []struct {
		a, b        string
		limit, want int
	}{
		{"", "", 0, 0},
		{"a", "a", 0, 0},
		{"a", "b", 0, 1},
		{"", "ab", 2, 2},
		{"", "abc", 2, 3},
		{"CONTAINER_CONCURENCY", "CONTAINER_CONCURRENCY", 2, 1},
		{"CONTAIENR_CONCURENCY", "CONTAINER_CONCURRENCY", 2, 2},
		{"QUEUE_DETPH", "QUEUE_DEPTH", 2, 1},
		{"wyh", "why", 1, 1},
		{"ca", "abc", 3, 3}, // the swapped bytes are not edited again
		{"kitten", "sitting", 3, 3},
		{"kitten", "sitting", 2, 3},
		{strings.Repeat("a", 100), strings.Repeat("a", 99) + "b", 2, 1},
		{strings.Repeat("ab", 1000), strings.Repeat("ba", 1000), 2, 2},
	} {
		harness.Equal(t, Distance(test.a, test.b, test.limit), test.want, test.a, test.b, "limit", test.limit)
	}
}

// unlimitedDistance computes the distance with the full table, without a limit.
func unlimitedDistance(a, b string) int {
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
		for j := range table[i] {
			switch {
			case i == 0 || j == 0:
				table[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				table[i][j] = table[i-1][j-1]
			default:
				table[i][j] = 1 + min(table[i-1][j-1], table[i-1][j], table[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				table[i][j] = min(table[i][j], 1+table[i-2][j-2])
			}
		}
	}
	return table[len(a)][len(b)]
}

func TestDistanceWithLimitMatchesFullTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, r.IntN(9))
		for i := range b {
			b[i] = "abc"[r.IntN(3)]
		}
		return string(b)
	}
	for range 200_000 {
		a, b, limit := word(), word(), r.IntN(5)
		if got, want := Distance(a, b, limit), min(unlimitedDistance(a, b), limit+1); got != want {
			t.Fatalf("Distance(%q, %q, %d) = %d, want %d", a, b, limit, got, want)
		}
	}
}
