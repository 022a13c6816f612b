package harness

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// ReadSection splits a file at the markers <!-- name --> and <!-- /name -->. The markers are part of
// before and after.
func ReadSection(file, name string) (before, section, after string, err error) {
	begin, end := "<!-- "+name+" -->", "<!-- /"+name+" -->"
	text, err := os.ReadFile(file)
	if err != nil {
		return "", "", "", err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	section, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", "", "", fmt.Errorf("%s: markers %s and %s not found", file, begin, end)
	}
	return before + begin, section, end + after, nil
}

// WriteSection replaces the text between the markers <!-- name --> and <!-- /name --> in a file. The
// markers are on separate lines.
func WriteSection(file, name, text string) error {
	before, _, after, err := ReadSection(file, name)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(before+"\n"+text+after), 0o644)
}

// Document reports an error if the text between the lines <!-- name --> and <!-- /name --> of a file
// differs from want. If update is true, it replaces the text instead.
func Document(t testing.TB, file, name, want string, update bool) {
	t.Helper()
	if update {
		NoError(t, WriteSection(file, name, want))
		return
	}
	_, got, _, err := ReadSection(file, name)
	NoError(t, err)
	got = strings.TrimPrefix(got, "\n")
	same := 0
	for same < min(len(got), len(want)) && got[same] == want[same] {
		same++
	}
	if got != want {
		line := strings.LastIndexByte(got[:same], '\n') + 1
		t.Errorf("%s, %s: out of date; run go test -update; got line\n%.500s\nwant\n%.500s", file, name, got[line:], want[line:])
	}
}
