package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// helperTests are the tests in test/conformance that verify no promise.
var helperTests = []string{
	"TestCheckWithoutResultFailed", "TestMain", "TestMutationIsDeterministic", "TestProgramRejectsInvalidOptions", "TestProgramReportsFailedChecks",
	"TestProgramRunsURLChecksOnly", "TestResultsAreParsed", "TestUnescapeVectorText", "TestWriteDocumentKeepsOtherResults",
}

// conformanceChecks returns the promises of each check in test/conformance/testdata/checks.txt.
func conformanceChecks(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "test/conformance/testdata/checks.txt"))
	if err != nil {
		t.Fatal(err)
	}
	checks := map[string][]string{}
	section := ""
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "==":
			section = words[1]
		case checks[words[0]] != nil:
			t.Errorf("got %s twice, want it once", words[0])
		default:
			checks[words[0]] = append([]string{section}, slices.DeleteFunc(words[1:], func(w string) bool { return w == "url" })...)
		}
	}
	return checks
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

func TestConformanceChecksListAllTests(t *testing.T) {
	checks := conformanceChecks(t)
	files, err := filepath.Glob(filepath.Join(root, "test/conformance/*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got files %v, %v, want tests", files, err)
	}
	tests := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunction.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
			if checks[m[1]] == nil && !slices.Contains(helperTests, m[1]) {
				t.Errorf("%s: got no line for %s in testdata/checks.txt, want the promises that it verifies", filepath.Base(file), m[1])
			}
		}
	}
	for name := range checks {
		if !tests[name] {
			t.Errorf("checks.txt: got %s, want only existing tests", name)
		}
	}
}

func TestPromisesOfConformanceChecksExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/promises.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, promises := range conformanceChecks(t) {
		for _, number := range promises {
			if !regexp.MustCompile(`(?m)^##+ ` + regexp.QuoteMeta(number) + `\.? `).Match(text) {
				t.Errorf("%s: got promise %q, want the number of a section of docs/promises.md", name, number)
			}
		}
	}
}

// The command make conformance-table writes the results. The test checks that no result
// is missing.
func TestConformanceResultsAreComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "test/conformance/results.txt"))
	if err != nil {
		t.Fatal(err)
	}
	checks := conformanceChecks(t)
	for name, promises := range checks {
		if row := "\n| `" + name + "` | " + strings.Join(promises, ", ") + " | "; !strings.Contains(string(text), row) {
			t.Errorf("got no row %q, want the results of each check", strings.TrimSpace(row))
		}
	}
	if got := strings.Count(string(text), "\n| `Test"); got != len(checks) {
		t.Errorf("got %d rows, want %d", got, len(checks))
	}
	_, tables, _ := strings.Cut(string(text), "<!-- checks -->\n")
	summary, _, _ := strings.Cut(tables, "| check |")
	harness.Document(t, filepath.Join(root, "docs/conformance.md"), "checks", summary, false)
}
