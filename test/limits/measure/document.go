package main

import (
	"fmt"
	"os"
	"strings"
)

// A table is a table of the document. The lines are measured in order.
type table struct {
	title, intro, header string
	lines                []line
}

// A line is a row of a table.
type line struct {
	name    string                 // matched by -run
	cell    string                 // the first cell, which identifies the line in its table
	measure func() (string, error) // returns the other cells
}

// A document is a Markdown file that contains the tables between beginMark and endMark.
type document struct {
	page     string // path; if empty, the tables are only printed
	tables   []table
	measured map[string]string // complete lines; the key is the title of the table and the first cell
}

// Marks of the part of the document that is written.
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
		} else if cell, _, ok := strings.Cut(strings.TrimPrefix(text, "| "), " | "); ok {
			d.measured[title+cell] = text
		}
	}
	return d, err
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
		return "", "", "", fmt.Errorf("%s: the markers of make limits were not found", d.page)
	}
	return before, tables, after, nil
}

// set stores a measured line and writes the document.
func (d *document) set(t *table, l *line, cells string) error {
	text := "| " + l.cell + " | " + cells + " |\n"
	fmt.Print(text)
	d.measured[t.title+l.cell] = text
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
		if t.intro != "" {
			b.WriteString(t.intro + "\n\n")
		}
		b.WriteString(t.header + "\n|" + strings.Repeat("---|", strings.Count(t.header, " | ")+1) + "\n")
		for _, l := range t.lines {
			b.WriteString(d.measured[t.title+l.cell])
		}
	}
	return b.String() + "\n"
}
