package main

import (
	"fmt"
	"os"
	"strings"
)

// A table contains the lines of a table in the document, in the order in which they are
// measured.
type table struct {
	title, header string
	lines         []line
}

// A line is a row of a table.
type line struct {
	name    string                 // name of the line, which -run matches
	cell    string                 // the first cell, which begins with the name
	measure func() (string, error) // returns the other cells
}

// A document is a Markdown file that contains the tables between beginMark and endMark.
type document struct {
	page     string // path of the file; if empty, the tables are only printed
	tables   []table
	measured map[string]string // all cells of a line except the first, by lineKey
}

// Marks around the part of the document that the program writes.
const (
	beginMark = "<!-- begin: make limits -->\n"
	endMark   = "<!-- end: make limits -->\n"
)

// newDocument returns a document that contains the lines of earlier runs.
func newDocument(page string, tables []table) (*document, error) {
	d := &document{page: page, tables: tables, measured: map[string]string{}}
	if page == "" {
		return d, nil
	}
	_, lines, _, err := d.split()
	title := ""
	for text := range strings.Lines(lines) {
		if heading, ok := strings.CutPrefix(text, "#### "); ok {
			title = strings.TrimSpace(heading)
		} else if cell, cells, ok := strings.Cut(strings.TrimPrefix(text, "| "), " | "); ok {
			d.measured[lineKey(title, cell)] = cells
		}
	}
	return d, err
}

// lineKey returns the key of a line. A line with a new description keeps its results, because only the name in the
// first cell identifies the line in its table.
func lineKey(title, cell string) string {
	name, _, _ := strings.Cut(cell, ": ")
	return title + name
}

// split returns the text before beginMark, the text between the marks, and the rest.
func (d *document) split() (before, tables, after string, err error) {
	text, err := os.ReadFile(d.page)
	if err != nil {
		return "", "", "", err
	}
	before, rest, ok := strings.Cut(string(text), beginMark)
	tables, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return "", "", "", fmt.Errorf("%s: the markers of the generated tables were not found", d.page)
	}
	return before, tables, after, nil
}

// set stores a measured line and writes the document.
func (d *document) set(t *table, l *line, cells string) error {
	cells += " |\n"
	fmt.Print("| " + l.cell + " | " + cells)
	d.measured[lineKey(t.title, l.cell)] = cells
	return d.write()
}

// write writes the tables into the document, if there is one.
func (d *document) write() error {
	if d.page == "" {
		return nil
	}
	before, _, after, err := d.split()
	if err != nil {
		return err
	}
	return os.WriteFile(d.page, []byte(before+beginMark+d.text()+endMark+after), 0o644)
}

// text returns the tables with all measured lines, in the order of the rows.
func (d *document) text() string {
	var b strings.Builder
	for _, t := range d.tables {
		fmt.Fprintf(&b, "\n#### %s\n\n", t.title)
		b.WriteString(t.header + "\n|" + strings.Repeat("---|", strings.Count(t.header, " | ")+1) + "\n")
		for _, l := range t.lines {
			if cells, ok := d.measured[lineKey(t.title, l.cell)]; ok {
				b.WriteString("| " + l.cell + " | " + cells)
			}
		}
	}
	return b.String() + "\n"
}
