package rules

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// moduleRow matches a row of a table whose first cell is a module. The groups are the module and the
// rest of the row.
var moduleRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)$")

// dependenciesPage is the document that explains the dependencies.
const dependenciesPage = "docs/dependencies.md"

// moduleRows returns the rows of the table between two HTML comments in the page.
func moduleRows(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, dependenciesPage))
	if err != nil {
		t.Fatal(err)
	}
	_, after, begins := strings.Cut(string(text), "<!-- "+name+" -->")
	table, _, ends := strings.Cut(after, "<!-- /"+name+" -->")
	if !begins || !ends {
		t.Fatalf("%s: table %q not found", dependenciesPage, name)
	}
	rows := map[string]string{}
	for _, m := range moduleRow.FindAllStringSubmatch(table, -1) {
		if _, found := rows[m[1]]; found {
			t.Errorf("%s: duplicate row for %s", dependenciesPage, m[1])
		}
		rows[m[1]] = m[2]
	}
	return rows
}

func TestDocumentContainsEachDependency(t *testing.T) {
	direct, indirect, linked := moduleRows(t, "direct"), moduleRows(t, "indirect"), map[string]bool{}
	for _, module := range sidecarPackages(t) {
		linked[module] = true
	}
	for module := range linked {
		row, found := direct[module]
		if _, ok := indirect[module]; !ok && !found || strings.Contains(row, "tests only") || found && !strings.Contains(row, "sidecar, ") {
			t.Errorf("%s: got row %q for %s, want the size in the sidecar", dependenciesPage, row, module)
		}
	}
	for module := range indirect {
		if !linked[module] {
			t.Errorf("%s: row for %s, which the sidecar does not link", dependenciesPage, module)
		}
	}
	required := directRequirements(t)
	for module := range required {
		if _, found := direct[module]; !found {
			t.Errorf("%s: no row for %s, which go.mod requires directly", dependenciesPage, module)
		}
	}
	for module := range direct {
		if !required[module] {
			t.Errorf("%s: row for %s, which go.mod does not require directly", dependenciesPage, module)
		}
	}
}

// directRequirements returns the modules that go.mod requires without the comment "indirect".
func directRequirements(t *testing.T) map[string]bool {
	t.Helper()
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(goCommand(t, "mod", "edit", "-json")), &file); err != nil {
		t.Fatalf("go mod edit -json: %v", err)
	}
	direct := map[string]bool{}
	for _, r := range file.Require {
		if !r.Indirect {
			direct[r.Path] = true
		}
	}
	return direct
}
