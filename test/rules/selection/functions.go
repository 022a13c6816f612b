package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// kinds maps the name of a go test flag to the prefixes of the functions that the flag selects.
var kinds = map[string][]string{
	"run":   {"Test", "Fuzz", "Example"},
	"skip":  {"Test", "Fuzz", "Example"},
	"fuzz":  {"Fuzz"},
	"bench": {"Benchmark"},
}

// ofKind returns the functions that the go test flag named kind can select.
func ofKind(functions []string, kind string) []string {
	var selected []string
	for _, name := range functions {
		if slices.ContainsFunc(kinds[kind], func(prefix string) bool { return hasPrefix(name, prefix) }) {
			selected = append(selected, name)
		}
	}
	return selected
}

// hasPrefix reports whether a name begins with the prefix and the next character is not a lower case letter. For
// example, Testify does not have the prefix Test.
func hasPrefix(name, prefix string) bool {
	rest, found := strings.CutPrefix(name, prefix)
	return found && (rest == "" || !unicode.IsLower([]rune(rest)[0]))
}

// testFunctions returns the names of the functions in the test files of the packages, except TestMain. The tags select
// the files. The packages are relative to dir and may end in "/...". If there are no packages, the package in dir is
// used. A package without test files is an error.
func testFunctions(dir string, packages, tags []string) ([]string, error) {
	if len(packages) == 0 {
		packages = []string{"."}
	}
	with := build.Default
	with.BuildTags = tags
	var all []string
	for _, name := range packages {
		folders, err := packageFolders(dir, name)
		if err != nil {
			return nil, err
		}
		files := 0
		for _, folder := range folders {
			functions, n, err := folderFunctions(&with, folder)
			if err != nil {
				return nil, err
			}
			all, files = append(all, functions...), files+n
		}
		if files == 0 {
			return nil, fmt.Errorf("package %s has no test files with the tags %q", name, tags)
		}
	}
	return all, nil
}

// folderFunctions returns the functions of one directory, and the number of its test files.
func folderFunctions(with *build.Context, folder string) (functions []string, files int, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		match, err := with.MatchFile(folder, filepath.Base(name))
		if err != nil {
			return nil, 0, err
		}
		if !match {
			continue
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, 0, err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name != "TestMain" {
				functions = append(functions, f.Name.Name)
			}
		}
	}
	return functions, files, nil
}

// packageFolders returns the directory of a package. For a path that ends in "/...", it also returns all directories
// below.
func packageFolders(dir, name string) ([]string, error) {
	top, every := strings.CutSuffix(name, "...")
	top = filepath.Join(dir, top)
	if !every {
		return []string{top}, nil
	}
	var folders []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		_, module := os.Stat(filepath.Join(path, "go.mod"))
		if path != top && (d.Name() == "testdata" || strings.ContainsAny(d.Name()[:1], "._") || module == nil) {
			return filepath.SkipDir
		}
		folders = append(folders, path)
		return nil
	})
	return folders, err
}
