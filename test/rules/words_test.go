package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A word is one that documents and production code do not use, because a reader who knows
// HTTP, Go and Kubernetes stumbles over it.
type word struct {
	pattern *regexp.Regexp
	instead string

	// except matches lines that may have it.
	except *regexp.Regexp
}

var words = []word{
	{pattern: forms(`hears?|overhears?`), instead: "gets, receives, is notified"},
	{pattern: forms(`stor(y|ies)`), instead: "request lifecycle; handles, serves"},
	{pattern: forms(`lanes?|guests?|lend|lent`), instead: "engine"},
	{pattern: forms(`crowds?|visitors?|strangers?`), instead: "connections, clients", except: regexp.MustCompile(`Faults: .* crowd \d`)},
	{pattern: forms(`whys`), instead: "reasons"},
	{pattern: forms(`judged?|judges|judging`), instead: "classify, validate, decide"},
	{pattern: forms(`wish(es)?`), instead: "configured, options"},
	{pattern: forms(`houses?|doors?|walls?`), instead: "package, importer, rules", except: regexp.MustCompile(`(?i)wall[- ](time|clock)|clock on the wall|unix\.WALL`)},
	{pattern: forms(`mended`), instead: "fixed"},
	{pattern: forms(`lets? go`), instead: "release, close"},
}

func forms(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b(` + pattern + `)\b`) }

func TestNobodyHasToLearnWordsOfOurOwn(t *testing.T) {
	lines := func(name, text string) {
		for i, line := range strings.Split(text, "\n") {
			for _, w := range words {
				if got := w.pattern.FindString(line); got != "" && (w.except == nil || !w.except.MatchString(line)) {
					t.Errorf("%s:%d: got %q, want other words: %s", name, i+1, got, w.instead)
				}
			}
		}
	}
	for name, text := range documents(t) {
		lines(name, text)
	}
	for _, s := range readTree(t).sources {
		if s.isTest() || within(s.folder(), "test") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, s.path))
		if err != nil {
			t.Fatal(err)
		}
		lines(s.path, string(text))
	}
}

// maxLine is the length of a line in a document, in characters. Tables and what is set in
// as code have what lengths they need, and so has what programs write between comments.
const maxLine = 120

var generated = regexp.MustCompile(`(?s)<!-- ([a-z-]+)\b.*?<!-- /`)

func TestLinesOfDocumentsAreShort(t *testing.T) {
	for name, text := range documents(t) {
		blank := func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) }
		text = generated.ReplaceAllStringFunc(text, blank)
		for i, line := range strings.Split(text, "\n") {
			if len([]rune(line)) > maxLine && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") {
				t.Errorf("%s:%d: got a line of %d characters, want %d at most", name, i+1, len([]rune(line)), maxLine)
			}
		}
	}
}
