package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the text of each Markdown file in the module, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		docs[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) == 0 {
		t.Fatal("no Markdown files found")
	}
	return docs
}

// link matches a Markdown link to a file of the repository or to a heading. The groups are the
// path and the fragment.
var link = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)

func TestLinksInDocumentsAreValid(t *testing.T) {
	docs := documents(t)
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := name
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(name), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to the missing file %s", name, m[1])
			} else if page, ok := docs[target]; ok && m[2] != "" && !slices.Contains(places(page), m[2]) {
				t.Errorf("%s: link to %s#%s, want one of the headings %q", name, m[1], m[2], places(page))
			}
		}
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	// unplaced matches the characters that GitHub removes from the fragment of a heading.
	unplaced = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// places returns the URL fragments that GitHub creates for the headings of a page.
func places(page string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all = append(all, strings.ReplaceAll(unplaced.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// filePath matches a path of the repository in code or in a command. It starts with a top-level
// directory of the repository.
var filePath = regexp.MustCompile("(?:`|[ =])((?:cmd|config|deploy|docs|hack|pkg|test)/[\\w./-]*[\\w-])/?(?:[`: ,)]|$)")

func TestPathsInDocumentsExist(t *testing.T) {
	found := 0
	for name, text := range documents(t) {
		if base := filepath.Base(name); base == "CHANGELOG.md" || base == "comparison.md" {
			continue // skip this page, because its paths can belong to earlier versions or to other repositories
		}
		for i, line := range strings.Split(text, "\n") {
			for _, m := range filePath.FindAllStringSubmatch(line, -1) {
				found++
				// The path is relative to the page or to the root.
				_, fromRoot := os.Stat(filepath.Join(root, m[1]))
				if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); fromRoot != nil && err != nil {
					t.Errorf("%s:%d: path %s does not exist", name, i+1, m[1])
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("got %d paths, want at least 100", found)
	}
}

func TestIndexContainsEachDocumentOnce(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root, "docs/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range documents(t) {
		if base := filepath.Base(name); filepath.Dir(name) == filepath.Join(root, "docs") && base != "README.md" {
			if n := strings.Count(string(index), "]("+base+")"); n != 1 {
				t.Errorf("docs/README.md: got %d links to %s, want 1", n, base)
			}
		}
	}
}

var (
	// asked matches a make target in code or in an indented line. target matches the rule of a
	// target.
	asked  = regexp.MustCompile("(?m)(?:`|^    +|^\\$ )make ([a-z0-9-]+)(?:`| |$)")
	target = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

func TestMakeTargetsInDocumentsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(string(makefile), -1) {
		have[m[1]] = true
	}
	for name, text := range documents(t) {
		for _, m := range asked.FindAllStringSubmatch(text, -1) {
			if !have[m[1]] {
				t.Errorf("%s: the Makefile has no target for `make %s`", name, m[1])
			}
		}
	}
}

// proof matches a reference to a test or fuzz test, in the form `path_test.go:TestName`.
var proof = regexp.MustCompile("`([\\w./-]+_test\\.go):((?:Test|Fuzz)\\w+)`")

func TestTestsInDocumentsExist(t *testing.T) {
	named := 0
	for name, text := range documents(t) {
		for _, m := range proof.FindAllStringSubmatch(text, -1) {
			named++
			code, err := os.ReadFile(filepath.Join(root, m[1]))
			if err != nil || !strings.Contains(string(code), "\nfunc "+m[2]+"(") {
				t.Errorf("%s: test %s in %s does not exist", name, m[2], m[1])
			}
		}
	}
	if named == 0 {
		t.Error("no references to tests found")
	}
}

// vulnerability matches a row of a table in cvesFile. The group is the first cell.
var vulnerability = regexp.MustCompile(`(?m)^\| (.*?) \| .*\|$`)

// cvesFile is the list of vulnerabilities of similar proxies.
const cvesFile = "test/rules/cves.md"

// TestVulnerabilitiesHaveTests checks that each row names a test. TestTestsInDocumentsExist checks
// that the test exists.
func TestVulnerabilitiesHaveTests(t *testing.T) {
	rows := 0
	for _, m := range vulnerability.FindAllStringSubmatch(documents(t)[filepath.Join(root, cvesFile)], -1) {
		if strings.HasSuffix(m[0], "| test |") { // skip the header of a table
			continue
		}
		rows++
		if !proof.MatchString(m[0]) {
			t.Errorf("%s: row %q has no test", cvesFile, m[1])
		}
	}
	if rows == 0 {
		t.Errorf("%s: no rows found", cvesFile)
	}
}

// maxLine is the maximum length of a line in a document, in characters. It does not apply to tables
// and code.
const maxLine = 120

// generated matches a part that a program writes.
var generated = regexp.MustCompile(`(?s)<!-- ([a-z-]+)\b.*?<!-- /`)

func TestLinesOfDocumentsAreShort(t *testing.T) {
	for name, text := range documents(t) {
		text = generated.ReplaceAllStringFunc(text, func(part string) string { return strings.Repeat("\n", strings.Count(part, "\n")) })
		for i, line := range strings.Split(text, "\n") {
			if n := len([]rune(line)); n > maxLine && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") {
				t.Errorf("%s:%d: the line has %d characters, want at most %d", name, i+1, n, maxLine)
			}
		}
	}
}
