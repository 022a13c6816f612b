package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// A word is one that documents and code do not use, because a reader who knows
// HTTP, Go and Kubernetes stumbles over it.
type word struct {
	forms   []string // in lower case; two words have a blank between them
	instead string

	// except matches lines that may have it.
	except *regexp.Regexp
}

var words = []word{
	{forms: []string{"hear", "hears", "overhear", "overhears"}, instead: "gets, receives, is notified"},
	{forms: []string{"story", "stories"}, instead: "request lifecycle; handles, serves"},
	{forms: []string{"lane", "lanes", "guest", "guests", "lend", "lent"}, instead: "engine"},
	{forms: []string{"crowd", "crowds", "visitor", "visitors", "stranger", "strangers"}, instead: "connections, clients", except: regexp.MustCompile(`Faults: .* crowd \d`)},
	{forms: []string{"whys"}, instead: "reasons"},
	{forms: []string{"judge", "judged", "judges", "judging"}, instead: "classify, validate, decide"},
	{forms: []string{"wish", "wishes"}, instead: "configured, options"},
	{forms: []string{"house", "houses", "door", "doors", "wall", "walls"}, instead: "package, importer, rules", except: regexp.MustCompile(`(?i)wall[- ](time|clock)|clock on the wall|unix\.WALL`)},
	{forms: []string{"mended"}, instead: "fixed"},
	{forms: []string{"let go", "lets go"}, instead: "release, close"},
}

// partsWords reports whether a letter stands between two words.
func partsWords(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

func TestNobodyHasToLearnWordsOfOurOwn(t *testing.T) {
	ours := map[string]word{}
	for _, w := range words {
		for _, form := range w.forms {
			ours[form] = w
		}
	}
	lines := func(name, text string) {
		for i, line := range strings.Split(text, "\n") {
			before := ""
			for _, one := range strings.FieldsFunc(strings.ToLower(line), partsWords) {
				for _, form := range []string{one, before + " " + one} {
					if w, found := ours[form]; found && (w.except == nil || !w.except.MatchString(line)) {
						t.Errorf("%s:%d: got %q, want other words: %s", name, i+1, form, w.instead)
					}
				}
				before = one
			}
		}
	}
	for name, text := range documents(t) {
		lines(name, text)
	}
	page := filepath.Join(root, "pkg/status/page.html")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	lines(page, string(text))
	for _, s := range readTree(t).sources {
		if s.path == "test/rules/words_test.go" {
			continue // it lists them
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
