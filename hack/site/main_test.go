package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// directory returns a site with a start page, a page and an image. The named files are added or
// replaced.
func directory(files map[string]string) fs.FS {
	dir := fstest.MapFS{
		"index.html":         {Data: []byte(`<a href="docs/limits.html#usage">limits</a> <img alt="x" src="docs/status.png">`)},
		"docs/limits.html":   {Data: []byte(`<h2 class="x" id="usage">Usage</h2> <a href="../index.html">start</a> <a href="#usage">usage</a>`)},
		"docs/status.png":    {},
		"search-index.js":    {Data: []byte("var searchIndex = [{\"url\":\"docs/limits.html#usage\"}];\n")},
		"docs/unlinked.html": {Data: []byte(`<a href="https://go.dev/doc#x">Go</a> <!-- <a href="old.html">old</a> -->`)},
	}
	for name, text := range files {
		dir[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return dir
}

func TestProblemsOfLinksAreReported(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"valid site": {},
		"missing page": {
			map[string]string{"docs/x.html": `<a href="limit.html">x</a>`},
			[]string{"docs/x.html: limit.html: missing file"},
		},
		"missing page above the root": {
			map[string]string{"docs/x.html": `<a href="../../index.html">x</a>`},
			[]string{"docs/x.html: ../../index.html: missing file"},
		},
		"directory": {
			map[string]string{"x.html": `<a href="docs/">x</a>`},
			[]string{"x.html: docs/: missing file"},
		},
		"missing anchor of another page": {
			map[string]string{"x.html": `<a class="y" href="docs/limits.html#use">x</a>`},
			[]string{"x.html: docs/limits.html#use: missing anchor"},
		},
		"missing anchor of the same page": {
			map[string]string{"x.html": `<p id="a">text</p><a href="#b">x</a>`},
			[]string{"x.html: #b: missing anchor"},
		},
		"missing image": {
			map[string]string{"x.html": `<img src="docs/x.svg">`},
			[]string{"x.html: docs/x.svg: missing file"},
		},
		"script of another server": {
			map[string]string{"x.html": `<script src="https://cdn.example/x.js"></script><script src="//cdn.example/y.js"></script>`},
			[]string{"x.html: https://cdn.example/x.js: file of another server", "x.html: //cdn.example/y.js: file of another server"},
		},
		"missing anchor in the search index": {
			map[string]string{"search-index.js": `var searchIndex = [{"url":"docs/limits.html#x"}];`},
			[]string{"search-index.js: docs/limits.html#x: missing anchor"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := read(directory(test.files))
			if err != nil {
				t.Fatal(err)
			}
			if got := s.problems(); !slices.Equal(got, test.want) {
				t.Errorf("got problems %q, want %q", got, test.want)
			}
		})
	}
}

func TestIncompleteSiteReturnsError(t *testing.T) {
	for name, dir := range map[string]fs.FS{
		"empty":                fstest.MapFS{},
		"without search index": fstest.MapFS{"index.html": {}},
		"empty search index":   directory(map[string]string{"search-index.js": "var searchIndex = [];"}),
		"invalid search index": directory(map[string]string{"search-index.js": "[{}]"}),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read(dir); err == nil {
				t.Error("got no error, want an error")
			}
		})
	}
}

func TestConfigurationContainsAllDocuments(t *testing.T) {
	const root = "../.."
	config, err := os.ReadFile("hugo.toml")
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(root + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root+"/deploy", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		source, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("source = %q", filepath.ToSlash(source)); !strings.Contains(string(config), want) {
			t.Errorf("hugo.toml: got no mount with %s, want one", want)
		}
	}
}
