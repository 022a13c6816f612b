package wire_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A vector is one line of a file in testdata: an input and the expected result.
type vector struct{ verdict, name, bytes string }

func vectors(t testing.TB, file string) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	harness.NoError(t, err)
	var vv []vector
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		columns := strings.SplitN(line, "|", 3)
		if len(columns) != 3 {
			t.Fatalf("%s:%d: got %d columns, want 3", file, i+1, len(columns))
		}
		vv = append(vv, vector{
			verdict: strings.TrimSpace(columns[0]),
			name:    strings.TrimSpace(columns[1]),
			bytes:   unescape(t, strings.TrimPrefix(columns[2], " ")),
		})
	}
	if len(vv) == 0 {
		t.Fatalf("%s: no vectors", file)
	}
	return vv
}

func unescape(t testing.TB, s string) string {
	t.Helper()
	u, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
	harness.NoError(t, err, s)
	return u
}
