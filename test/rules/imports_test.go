// Package rules checks the rules of the tree: which package may import which,
// which may import an outside module, what the sidecar must not link, that no
// package remembers anything, and how documents and names are written. The plan
// of imports stands in plan_test.go; ARCHITECTURE.md draws it.
package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestImportsRunDownwardsOnly(t *testing.T) {
	report(t, wrongImports(readTree(t)))
}

func TestOutsideModulesHaveTheirImporters(t *testing.T) {
	report(t, wrongImporters(readTree(t)))
}

func TestTheSidecarLinksNothingHeavy(t *testing.T) {
	tr := readTree(t)
	var folders []string
	for _, r := range sidecarFolders() {
		if slices.ContainsFunc(tr.sources, func(s source) bool { return s.folder() == r && !s.isTest() }) {
			folders = append(folders, r)
		}
	}
	if len(folders) == 0 {
		t.Fatal("got no folder of the sidecar's, want at least one; has the plan moved?")
	}
	report(t, heavyLinks(tr, folders, dependencies(t, folders)))
}

func TestTheSidecarUsesWhatItWasAskedTo(t *testing.T) {
	tr, folders := readTree(t), sidecarFolders()
	for _, module := range required {
		uses := func(s source) bool {
			return !s.isTest() && slices.Contains(folders, s.folder()) &&
				slices.ContainsFunc(s.imports(), func(path string) bool { return within(path, module) })
		}
		if !slices.ContainsFunc(tr.sources, uses) {
			t.Errorf("got no import of %s in the sidecar, want one: it is part of what was asked for", module)
		}
	}
}

func report(t *testing.T, complaints []string) {
	t.Helper()
	for _, c := range complaints {
		t.Error(c)
	}
}

// wrongImports returns a sentence for every import of ours that the plan does
// not allow, and for every package that the plan does not know.
func wrongImports(tr tree) []string {
	var complaints []string
	unknown := map[string]bool{}
	for _, s := range tr.sources {
		i := slices.IndexFunc(outside, func(top string) bool { return within(s.folder(), top) })
		if i >= 0 {
			for _, imported := range s.imports() {
				if got, ok := tr.ours(imported); ok && !within(got, "test") {
					complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want nothing of pkg or cmd: %s meets the programs from outside",
						s.path, got, outside[i]))
				}
			}
			continue
		}
		r, known := folderAt(s.folder())
		if !known {
			if !unknown[s.folder()] {
				unknown[s.folder()] = true
				complaints = append(complaints, fmt.Sprintf("%s: this package is not in the plan; add it, with what it may import, to test/rules/plan_test.go, ARCHITECTURE.md and .golangci.yml",
					s.folder()))
			}
			continue
		}
		if s.isTest() {
			continue
		}
		for _, imported := range s.imports() {
			if got, ok := tr.ours(imported); ok && !slices.Contains(r.may, got) {
				complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want only of %q", s.path, got, r.may))
			}
		}
	}
	return complaints
}

func folderAt(path string) (folder, bool) {
	for _, r := range plan {
		if r.path == path {
			return r, true
		}
	}
	return folder{}, false
}

// wrongImporters returns a sentence for every outside module that production code
// imports in a folder that is not among its importers.
func wrongImporters(tr tree) []string {
	var complaints []string
	for _, s := range tr.sources {
		if s.isTest() || within(s.folder(), "test") {
			continue
		}
		for _, imported := range s.imports() {
			if _, ok := tr.ours(imported); ok || isStandard(imported) {
				continue
			}
			i := slices.IndexFunc(importers, func(d importer) bool { return strings.HasPrefix(imported, d.prefix) })
			switch {
			case i < 0:
				complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want none: it has no importer in test/rules/plan_test.go", s.path, imported))
			case !slices.Contains(importers[i].folders, s.folder()):
				complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want it in %q only", s.path, imported, importers[i].folders))
			}
		}
	}
	return complaints
}

// sidecarFolders returns the folders that are linked into the sidecar when they
// exist: its command and everything below it.
func sidecarFolders() []string {
	folders := []string{"cmd/queue-proxy"}
	for i := 0; i < len(folders); i++ {
		r, _ := folderAt(folders[i])
		for _, below := range r.may {
			if !slices.Contains(folders, below) {
				folders = append(folders, below)
			}
		}
	}
	return folders
}

// heavyLinks returns a sentence for every heavy package that one of the folders
// links, with the way that it came in. imports is what each package imports.
func heavyLinks(tr tree, folders []string, imports map[string][]string) []string {
	from := map[string]string{} // package to the package that was seen first to import it
	var reached []string
	for _, r := range folders {
		p := tr.module + "/" + r
		from[p] = ""
		reached = append(reached, p)
	}
	var complaints []string
	for i := 0; i < len(reached); i++ {
		p := reached[i]
		if slices.ContainsFunc(heavy, func(prefix string) bool { return strings.HasPrefix(p, prefix) }) {
			way := p
			for at := from[p]; at != ""; at = from[at] {
				way = at + " -> " + way
			}
			complaints = append(complaints, fmt.Sprintf("got %s linked into the sidecar (%s), want nothing under %q", p, way, heavy))
			continue // what lies behind it came in with it
		}
		for _, imported := range imports[p] {
			if _, seen := from[imported]; !seen {
				from[imported] = p
				reached = append(reached, imported)
			}
		}
	}
	return complaints
}

// dependencies asks the go command what each package below the folders imports,
// built as the image is: for linux, without cgo. A package that does not
// compile still tells what it imports.
func dependencies(t *testing.T, folders []string) map[string][]string {
	t.Helper()
	args := []string{"list", "-e", "-deps", "-json=ImportPath,Imports"}
	for _, r := range folders {
		args = append(args, "./"+r)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	imports := map[string][]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return imports
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		imports[p.ImportPath] = p.Imports
	}
}
