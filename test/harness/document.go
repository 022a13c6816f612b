package harness

import (
	"os"
	"strings"
	"testing"
)

// Document reports an error if the text of a file between the lines <!-- name --> and <!--
// /name --> differs from want. If update is true, it replaces the text instead.
func Document(t testing.TB, file, name, want string, update bool) {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	text, err := os.ReadFile(file)
	NoError(t, err)
	head, rest, ok := strings.Cut(string(text), begin)
	got, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: %q and %q not found", file, begin, end)
	}
	if update {
		NoError(t, os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644))
		return
	}
	same := 0
	for same < min(len(got), len(want)) && got[same] == want[same] {
		same++
	}
	if got != want {
		line := strings.LastIndexByte(got[:same], '\n') + 1
		t.Errorf("%s, %s: out of date; run go test -update; got line\n%.500s\nwant\n%.500s", file, name, got[line:], want[line:])
	}
}
