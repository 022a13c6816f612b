package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's folder, seen from this package's, where its tests run.
const root = "../.."

// A source is one Go file of the module.
type source struct {
	path   string // relative to the module, with slashes
	parsed *ast.File
}

func (s source) folder() string { return path.Dir(s.path) }

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// imports returns the import paths of the file.
func (s source) imports() []string {
	var all []string
	for _, i := range s.parsed.Imports {
		all = append(all, strings.Trim(i.Path.Value, "`\""))
	}
	return all
}

// A tree is the Go code of one module, as text: files of every operating
// system and every build tag, whether they compile or not.
type tree struct {
	module  string
	fset    *token.FileSet
	sources []source
}

// readTree parses the module's own Go files: no testdata, no hidden folder and
// no module within the module.
func readTree(t *testing.T) tree {
	t.Helper()
	tr := tree{module: moduleName(t), fset: token.NewFileSet()}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && skipFolder(name, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(tr.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		tr.sources = append(tr.sources, source{path: filepath.ToSlash(rel), parsed: f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.sources) == 0 {
		t.Fatal("the module has no Go files; has this test moved?")
	}
	return tr
}

func skipFolder(name, base string) bool {
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

func moduleName(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name)
		}
	}
	t.Fatal("go.mod has no module line")
	return ""
}

// ours cuts the module's name from an import path: "pkg/queue", true.
func (tr tree) ours(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, tr.module+"/")
}

// isStandard reports whether an import path is the standard library's: its
// first element has no dot.
func isStandard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// within reports whether folder is top or lies below it.
func within(folder, top string) bool {
	return folder == top || strings.HasPrefix(folder, top+"/")
}
