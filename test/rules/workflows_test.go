package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// uses matches a step with an action. The group is the action.
	uses = regexp.MustCompile(`(?m)^\s*(?:- )?uses:\s*(\S+)`)
	// pinned matches an action with a full commit hash.
	pinned = regexp.MustCompile(`^[\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40}$`)
)

func TestWorkflowActionsHaveCommitHash(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(text), -1) {
			seen++
			if strings.HasPrefix(m[1], "./") {
				continue // the workflow belongs to the same commit
			}
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s: action %s has no full commit hash, but tags can change", name, m[1])
			}
		}
	}
	if seen == 0 {
		t.Fatal("no actions found in .github/workflows")
	}
}
