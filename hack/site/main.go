// Command site checks the documentation site that Hugo wrote into a directory. It reports links
// to missing files, anchors and images. It also reports scripts, styles and images that are loaded
// from other servers.
//
// Usage:
//
//	go run ./hack/site DIRECTORY
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run checks the site in the directory that args contains, and writes a summary to out.
func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: site DIRECTORY")
	}
	s, err := read(os.DirFS(args[0]))
	if err != nil {
		return err
	}
	if problems := s.problems(); len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	pages := len(s.pages) - 1 // without the search index
	_, err = fmt.Fprintf(out, "%s: %d pages and %d links are valid\n", args[0], pages, s.links())
	return err
}

// searchIndex is the script with the search index. Its entries contain links.
const searchIndex = "search-index.js"

// A site is the content of the directory.
type site struct {
	files map[string]bool
	pages map[string]*page // HTML files by path
}

// A page holds the anchors and the links of an HTML file.
type page struct {
	anchors map[string]bool
	links   []link
}

// A link is a reference to a page, or to a file that the page loads.
type link struct {
	target string
	loads  bool // the target is a script, a style or an image that the page loads
}

var (
	comment   = regexp.MustCompile(`(?s)<!--.*?-->`)
	anchor    = regexp.MustCompile(`<[a-z][^>]*\sid="([^"]*)"`)
	reference = regexp.MustCompile(`<([a-z]+)\s[^>]*?\b(href|src)="([^"]*)"`)
)

// read reads all files of a site. The search index is represented as a page.
func read(dir fs.FS) (*site, error) {
	s := &site{files: map[string]bool{}, pages: map[string]*page{}}
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		s.files[name] = true
		if path.Ext(name) != ".html" && name != searchIndex {
			return nil
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		if name != searchIndex {
			s.pages[name] = parse(string(text))
			return nil
		}
		s.pages[name], err = parseIndex(text)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"index.html", searchIndex} {
		if s.pages[name] == nil {
			return nil, fmt.Errorf("%s: missing", name)
		}
	}
	return s, nil
}

// parse returns the anchors and the links of an HTML file.
func parse(text string) *page {
	text = comment.ReplaceAllString(text, "")
	p := &page{anchors: map[string]bool{}}
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		p.anchors[html.UnescapeString(m[1])] = true
	}
	for _, m := range reference.FindAllStringSubmatch(text, -1) {
		p.links = append(p.links, link{target: html.UnescapeString(m[3]), loads: m[1] != "a"})
	}
	return p
}

// parseIndex returns the links of the search index.
func parseIndex(text []byte) (*page, error) {
	list, found := strings.CutPrefix(strings.TrimRight(string(text), ";\n"), "var searchIndex = ")
	var entries []struct{ URL string }
	if err := json.Unmarshal([]byte(list), &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", searchIndex, err)
	}
	if !found || len(entries) == 0 {
		return nil, fmt.Errorf("%s: no entries", searchIndex)
	}
	p := &page{}
	for _, entry := range entries {
		p.links = append(p.links, link{target: entry.URL})
	}
	return p, nil
}

// links returns the number of links on all pages.
func (s *site) links() int {
	n := 0
	for _, p := range s.pages {
		n += len(p.links)
	}
	return n
}

// problems returns a line for each broken link, in the order of the pages.
func (s *site) problems() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.pages)) {
		for _, l := range s.pages[name].links {
			if problem := s.problem(name, l); problem != "" {
				all = append(all, fmt.Sprintf("%s: %s: %s", name, l.target, problem))
			}
		}
	}
	return all
}

// problem describes the problem of a link on the named page. It returns an empty string for a
// link to another server, because its target is not checked.
func (s *site) problem(name string, l link) string {
	u, err := url.Parse(l.target)
	switch {
	case err != nil:
		return err.Error()
	case u.IsAbs() || u.Host != "":
		if l.loads {
			return "file of another server"
		}
		return ""
	}
	target := name
	if u.Path != "" {
		target = path.Join(path.Dir(name), u.Path)
	}
	switch {
	case !s.files[target]:
		return "missing file"
	case u.Fragment != "" && (s.pages[target] == nil || !s.pages[target].anchors[u.Fragment]):
		return "missing anchor"
	}
	return ""
}
