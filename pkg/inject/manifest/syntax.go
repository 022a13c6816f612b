package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// errNoMark is the error for a second value in a document.
var errNoMark = errors.New("missing --- line before the second value")

// A syntaxError describes an error from the YAML library, which does not define error types.
type syntaxError struct {
	words []string // the text of the error contains one of these strings
	text  string

	// search is set if the library does not return the number of the line that contains the error.
	// It may return no number, or the number of the line before the list or the map. In this case,
	// lineOf searches for the line.
	search bool
}

// syntaxErrors returns the descriptions of the syntax errors. The first one that matches is used.
func syntaxErrors() []syntaxError {
	const (
		directive = "only the directive %YAML 1.1 is supported; remove the line"
		escape    = "a string in double quotes contains an invalid escape sequence; write \\\\ for a backslash, or use single quotes"
		tag       = "the tag is invalid; if a value starts with !, put it in quotes"
		utf8      = "the document is not valid UTF-8"
	)
	return []syntaxError{
		{words: []string{"mapping values are not allowed"}, text: `the line contains an unexpected ": "; check the indentation, and put a string that contains ": " in quotes`},
		{words: []string{"did not find expected key"}, search: true, text: "a key of the map is expected; check the indentation and the quotes"},
		{words: []string{"did not find expected '-' indicator"}, search: true, text: "an item of the list (-) is expected; check the indentation"},
		{words: []string{"did not find expected ',' or ']'"}, search: true, text: "invalid list in brackets; check the commas, the quotes and the closing ]"},
		{words: []string{"did not find expected ',' or '}'"}, search: true, text: "invalid map in braces; check the commas, the quotes and the closing }"},
		{words: []string{"did not find expected node content"}, search: true, text: "a value is missing"},
		{words: []string{"could not find expected ':'"}, text: "missing colon after a key"},
		{words: []string{"found unexpected end of stream", "found unexpected document indicator"}, text: "the closing quote of a string is missing"},
		{words: []string{"cannot start any token"}, text: "a value starts with a reserved character, such as @, % or `; put the value in quotes"},
		{words: []string{"unknown escape character", "hexdecimal number", "Unicode character escape code"}, text: escape},
		{words: []string{"expected alphabetic or numeric character", "found unexpected non-alphabetical character"}, text: "an anchor (&) or an alias (*) has no name; if a string starts with & or *, put it in quotes"},
		{words: []string{"block sequence entries are not allowed"}, text: "a list item is not allowed here; begin the list on a separate line"},
		{words: []string{"mapping keys are not allowed"}, text: "a key with ? is not allowed here"},
		{words: []string{"incompatible YAML document"}, search: true, text: directive},
		{words: []string{"version number", "expected digit or '.'"}, text: directive},
		{words: []string{"duplicate %YAML directive", "duplicate %TAG directive"}, search: true, text: "the directive is repeated; remove the line"},
		{words: []string{"directive name"}, text: "the directive is unknown; if a string starts with %, put it in quotes"},
		{words: []string{"undefined tag handle"}, search: true, text: tag},
		{words: []string{"expected whitespace", "tag URI", "URI escaped octet", "expected '>'", "expected '!'", "UTF-8 octet in", "incorrect leading UTF-8", "incorrect trailing UTF-8"}, text: tag},
		{words: []string{"expected comment or line break", "indentation indicator equal to 0"}, text: "the line of a block string (| or >) is invalid; begin the string on the next line"},
		{words: []string{"control characters are not allowed"}, search: true, text: "the document contains a control character"},
		{words: []string{"UTF-8", "invalid Unicode character"}, search: true, text: utf8},
		{words: []string{"exceeded max depth"}, text: errTooLarge.Error()},
	}
}

// position returns the line in the file and the text of an error. The line numbers in errors are
// relative to the document.
func (d *document) position(err error) (line int, text string) {
	const mark = "line "
	n := 1
	text, fromLibrary := strings.CutPrefix(err.Error(), "yaml: ")
	if at, rest, _ := strings.Cut(text, ": "); strings.HasPrefix(at, mark) {
		if number, invalid := strconv.Atoi(strings.TrimPrefix(at, mark)); invalid == nil {
			n, text = number, rest
		}
	}
	if errors.Is(err, errHelmTemplate) {
		before, _, _ := bytes.Cut(d.text, []byte("{{"))
		return d.line + bytes.Count(before, []byte("\n")), text
	}
	if errors.Is(err, errNoMark) {
		return d.line + d.lineOf(err, n) - 1, text
	}
	if fromLibrary {
		n, text = d.describe(err, n, text)
	}
	return d.line + n - 1, text
}

// describe returns the line number in the document and the description of an error from the YAML
// library. n is the line number that the error contains, or 1.
func (d *document) describe(err error, n int, text string) (line int, description string) {
	if line := d.conflict(); line > 0 {
		return line, "the line is a conflict marker of git; resolve the merge conflict"
	}
	if d.isIncompleteJSON() {
		return len(linesOf(d.text)), "the JSON ends before the last closing brace; the file may be incomplete"
	}
	var found syntaxError
	for _, e := range syntaxErrors() {
		if slices.ContainsFunc(e.words, func(word string) bool { return strings.Contains(text, word) }) {
			found = e
			break
		}
	}
	if found.search {
		n = d.lineOf(err, n)
	}
	tab := 0
	if strings.Contains(text, "tab character") {
		tab = d.tabIn(n-1, n+1)
	} else if strings.Contains(text, "cannot start any token") {
		tab = d.tabIn(n, n)
	}
	if tab > 0 {
		return tab, "the line is indented with a tab, but YAML requires spaces; replace the tabs with spaces"
	}
	if lines := len(linesOf(d.text)); n > lines { // a string that begins in the first line has no closing quote
		n = 1
	}
	if name := unknownAnchor(text); name != "" {
		return d.lineOf(err, n), fmt.Sprintf("the alias *%s refers to an anchor that does not exist in the document; if it is a string, put it in quotes", name)
	}
	if line := d.directive(); line > 0 && !bytes.Contains(d.text, []byte("\n---")) {
		return line, "the --- line after the directive is missing"
	}
	if found.text == "" {
		return n, "the YAML syntax is invalid: " + text
	}
	return n, found.text
}

// isIncompleteJSON reports whether the document is the beginning of a JSON object.
func (d *document) isIncompleteJSON() bool {
	var value json.RawMessage
	return startsObject(d.text) && errors.Is(json.NewDecoder(bytes.NewReader(d.text)).Decode(&value), io.ErrUnexpectedEOF)
}

// conflict returns the number of the first line that begins with a conflict marker of git, or 0.
func (d *document) conflict() int {
	i := 0
	for line := range bytes.Lines(d.text) {
		i++
		for _, marker := range []string{"<<<<<<< ", "=======\n", ">>>>>>> "} {
			if bytes.HasPrefix(line, []byte(marker)) {
				return i
			}
		}
	}
	return 0
}

// unknownAnchor returns the name of the anchor in an error about an unknown anchor, or "".
func unknownAnchor(text string) string {
	_, name, _ := strings.Cut(text, "unknown anchor '")
	return strings.TrimSuffix(name, "' referenced")
}

// directive returns the number of the first line that contains a directive before the content, or 0.
func (d *document) directive() int {
	i := 0
	for line := range bytes.Lines(d.text) {
		i++
		switch {
		case line[0] == '%':
			return i
		case line[0] != '#' && !isBlank(line):
			return 0
		}
	}
	return 0
}

// maxSearched is the maximum length in bytes of a document in which lineOf searches.
const maxSearched = 64 << 10

// lineOf returns the number of the line that causes the error err. It is the last line of the
// shortest prefix of the document that has the same error. lineOf returns n if the document is
// longer than maxSearched.
func (d *document) lineOf(err error, n int) int {
	if len(d.text) > maxSearched {
		return n
	}
	lines := linesOf(d.text)
	return 1 + sort.Search(len(lines)-1, func(i int) bool {
		_, found := parse([]byte(strings.Join(lines[:i+1], "")))
		return found != nil && found.Error() == err.Error()
	})
}

// tabIn returns the number of the first line between first and last that is indented with a tab. If
// there is no such line, it returns 0.
func (d *document) tabIn(first, last int) int {
	i := 0
	for line := range bytes.Lines(d.text) {
		if i++; i < first {
			continue
		}
		if i > last {
			break
		}
		indentation := line[:len(line)-len(bytes.TrimLeft(line, " \t-"))]
		if bytes.ContainsRune(indentation, '\t') && !isBlank(line) {
			return i
		}
	}
	return 0
}
