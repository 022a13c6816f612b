// Package walls holds the plan of the house: which package may import which,
// through which door an outside module comes in, what the sidecar must not
// link, and that no package remembers anything. The plan stands in
// plan_test.go; the words for it in ARCHITECTURE.md.
package walls

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

func TestOutsideModulesComeInByTheirDoor(t *testing.T) {
	report(t, wrongDoors(readTree(t)))
}

func TestTheSidecarLinksNothingHeavy(t *testing.T) {
	tr := readTree(t)
	var rooms []string
	for _, r := range sidecarRooms() {
		if slices.ContainsFunc(tr.sources, func(s source) bool { return s.room() == r && !s.isTest() }) {
			rooms = append(rooms, r)
		}
	}
	if len(rooms) == 0 {
		t.Fatal("got no room of the sidecar's, want at least one; has the plan moved?")
	}
	report(t, heavyLinks(tr, rooms, dependencies(t, rooms)))
}

func TestTheSidecarUsesWhatItWasAskedTo(t *testing.T) {
	tr, rooms := readTree(t), sidecarRooms()
	for _, module := range wished {
		uses := func(s source) bool {
			return !s.isTest() && slices.Contains(rooms, s.room()) &&
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
		i := slices.IndexFunc(outside, func(top string) bool { return within(s.room(), top) })
		if i >= 0 {
			for _, imported := range s.imports() {
				if got, ok := tr.ours(imported); ok && !within(got, "test") {
					complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want nothing of pkg or cmd: %s meets the programs from outside",
						s.path, got, outside[i]))
				}
			}
			continue
		}
		r, known := roomAt(s.room())
		if !known {
			if !unknown[s.room()] {
				unknown[s.room()] = true
				complaints = append(complaints, fmt.Sprintf("%s: this package is not in the plan; add it, with what it may import, to test/walls/plan_test.go, ARCHITECTURE.md and .golangci.yml",
					s.room()))
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

func roomAt(path string) (room, bool) {
	for _, r := range plan {
		if r.path == path {
			return r, true
		}
	}
	return room{}, false
}

// wrongDoors returns a sentence for every outside module that production code
// imports in a room to which it has no door.
func wrongDoors(tr tree) []string {
	var complaints []string
	for _, s := range tr.sources {
		if s.isTest() || within(s.room(), "test") {
			continue
		}
		for _, imported := range s.imports() {
			if _, ok := tr.ours(imported); ok || isStandard(imported) {
				continue
			}
			i := slices.IndexFunc(doors, func(d door) bool { return strings.HasPrefix(imported, d.prefix) })
			switch {
			case i < 0:
				complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want none: it has no door in test/walls/plan_test.go", s.path, imported))
			case !slices.Contains(doors[i].rooms, s.room()):
				complaints = append(complaints, fmt.Sprintf("%s: got an import of %s, want it in %q only", s.path, imported, doors[i].rooms))
			}
		}
	}
	return complaints
}

// sidecarRooms returns the rooms that are linked into the sidecar when they
// exist: its command and everything below it.
func sidecarRooms() []string {
	rooms := []string{"cmd/queue-proxy"}
	for i := 0; i < len(rooms); i++ {
		r, _ := roomAt(rooms[i])
		for _, below := range r.may {
			if !slices.Contains(rooms, below) {
				rooms = append(rooms, below)
			}
		}
	}
	return rooms
}

// heavyLinks returns a sentence for every heavy package that one of the rooms
// links, with the way that it came in. imports is what each package imports.
func heavyLinks(tr tree, rooms []string, imports map[string][]string) []string {
	from := map[string]string{} // package to the package that was seen first to import it
	var reached []string
	for _, r := range rooms {
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

// dependencies asks the go command what each package below the rooms imports,
// built as the image is: for linux, without cgo. A package that does not
// compile still tells what it imports.
func dependencies(t *testing.T, rooms []string) map[string][]string {
	t.Helper()
	args := []string{"list", "-e", "-deps", "-json=ImportPath,Imports"}
	for _, r := range rooms {
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
