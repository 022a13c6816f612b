package rules

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the plan's rules into .golangci.yml")

const (
	rulesBegin = "        # The rules of imports, written by `go test ./test/rules -update` from test/rules/plan_test.go.\n"
	rulesEnd   = "        # End of the rules of imports.\n"
)

func TestTheLinterHoldsTheSamePlan(t *testing.T) {
	name := filepath.Join(root, ".golangci.yml")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), rulesBegin)
	got, after, ok2 := strings.Cut(rest, rulesEnd)
	if !ok || !ok2 {
		t.Fatalf(".golangci.yml: got no rules between the lines %q and %q", rulesBegin, rulesEnd)
	}
	want := linterRules(moduleName(t))
	if got == want {
		return
	}
	if *update {
		if err := os.WriteFile(name, []byte(before+rulesBegin+want+rulesEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf(".golangci.yml: got other rules than the plan's; run `go test ./test/rules -update`. got:\n%s\nwant:\n%s", got, want)
}

// linterRules writes the plan as rules of depguard, one for each folder.
func linterRules(module string) string {
	var b strings.Builder
	rule := func(path, mode string, files ...string) {
		fmt.Fprintf(&b, "        %s:\n          list-mode: %s\n          files:\n", path, mode)
		for _, f := range files {
			fmt.Fprintf(&b, "            - %q\n", f)
		}
	}
	for _, r := range plan {
		rule(r.path, "strict", "**/"+r.path+"/*.go", "!$test")
		b.WriteString("          allow:\n            - $gostd\n")
		for _, p := range r.may {
			// The dollar ends the name: without it a rule is a prefix.
			fmt.Fprintf(&b, "            - %s/%s$\n", module, p)
		}
		for _, d := range importers {
			if slices.Contains(d.folders, r.path) {
				fmt.Fprintf(&b, "            - %s\n", d.prefix)
			}
		}
	}
	for _, path := range outside {
		rule(path, "lax", "**/"+path+"/**")
		fmt.Fprintf(&b, "          allow:\n            - %s/test/\n", module)
		fmt.Fprintf(&b, "          deny:\n            - pkg: %s\n              desc: %s meets the programs from outside\n", module, path)
	}
	return b.String()
}
