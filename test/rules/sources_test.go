package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// parse parses the Go files of a directory, for all operating systems and build tags. If the path
// ends in "/...", it also parses the directories below, without testdata and other modules.
func parse(t *testing.T, set *token.FileSet, path string) map[string]*ast.File {
	t.Helper()
	path, recursive := strings.CutSuffix(path, "/...")
	top := filepath.Join(root, path)
	files := map[string]*ast.File{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == top:
			return err
		case d.IsDir():
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if err == nil || !recursive || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go"):
			return nil
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files[relative], err = parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// productionFiles returns the files of pkg and cmd that are not tests.
func productionFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, path := range []string{"pkg/...", "cmd/..."} {
		for name, file := range parse(t, token.NewFileSet(), path) {
			if !strings.HasSuffix(name, "_test.go") {
				files[name] = file
			}
		}
	}
	return files
}
