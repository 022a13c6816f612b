package rules

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// explained matches a row of a table whose first cell is a module.
var explained = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

func TestEveryDirectDependencyIsExplained(t *testing.T) {
	const page = "docs/dependencies.md"
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	_, after, begins := strings.Cut(string(text), "<!-- direct -->")
	table, _, ends := strings.Cut(after, "<!-- /direct -->")
	if !begins || !ends {
		t.Fatalf("%s: got no table between <!-- direct --> and <!-- /direct -->, want one", page)
	}
	rows := map[string]bool{}
	for _, m := range explained.FindAllStringSubmatch(table, -1) {
		if rows[m[1]] {
			t.Errorf("%s: got two rows for %s, want one", page, m[1])
		}
		rows[m[1]] = true
	}
	required := directRequirements(t)
	for module := range required {
		if !rows[module] {
			t.Errorf("%s: got no row for %s, which go.mod requires directly; want its purpose, importer, licence, size, keepers and what would replace it", page, module)
		}
	}
	for module := range rows {
		if !required[module] {
			t.Errorf("%s: got a row for %s, which go.mod does not require directly; want none", page, module)
		}
	}
}

// directRequirements returns the modules that go.mod requires without the
// comment "indirect".
func directRequirements(t *testing.T) map[string]bool {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit -json: %v", err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatalf("go mod edit -json: %v", err)
	}
	direct := map[string]bool{}
	for _, r := range file.Require {
		if !r.Indirect {
			direct[r.Path] = true
		}
	}
	if len(direct) == 0 {
		t.Fatal("got no direct requirement in go.mod, want some")
	}
	return direct
}
