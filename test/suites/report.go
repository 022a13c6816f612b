//go:build linux

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// passed returns the number of cases that passed.
func (r *result) passed() int { return max(0, r.cases-len(r.failed)) }

// failedNames returns the names of the failed cases in alphabetical order.
func (r *result) failedNames() []string { return slices.Sorted(maps.Keys(r.failed)) }

// A line contains the results of one suite.
type line struct {
	name    string
	results map[variant]*result
}

// broken returns the cases that pass without a proxy and fail with the sidecar.
func (l *line) broken() []string {
	var names []string
	alone := l.results[direct]
	for _, v := range []variant{sidecar, limited} {
		r := l.results[v]
		if r == nil {
			continue
		}
		for _, name := range r.failedNames() {
			if _, fails := alone.failed[name]; !fails {
				names = append(names, fmt.Sprintf("%s, %s: %s", l.name, v, name))
			}
		}
		if r.cases < alone.cases {
			names = append(names, fmt.Sprintf("%s, %s: %d cases did not run", l.name, v, alone.cases-r.cases))
		}
	}
	return names
}

// A report contains the results of all suites that ran.
type report struct{ lines []*line }

// broken returns the cases in all suites that fail because of the sidecar.
func (r *report) broken() []string {
	var names []string
	for _, l := range r.lines {
		names = append(names, l.broken()...)
	}
	return names
}

// table returns the table in Markdown.
func (r *report) table() string {
	var b strings.Builder
	variants := []variant{direct, sidecar, limited, haproxy}
	b.WriteString("| suite | cases |")
	for _, v := range variants {
		fmt.Fprintf(&b, " %s |", v)
	}
	b.WriteString("\n|" + strings.Repeat("---|", 2+len(variants)) + "\n")
	for _, l := range r.lines {
		fmt.Fprintf(&b, "| %s | %d |", l.name, l.results[direct].cases)
		for _, v := range variants {
			if out := l.results[v]; out != nil {
				fmt.Fprintf(&b, " %d |", out.passed())
			} else {
				b.WriteString(" - |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n%d suites: **%d cases failed only with the sidecar**\n", len(r.lines), len(r.broken()))
	return b.String()
}

// verdict returns an error with the cases that fail because of the sidecar.
func (r *report) verdict() error {
	names := r.broken()
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%d cases pass without a proxy and fail with the sidecar:\n  %s", len(names), strings.Join(names, "\n  "))
}

// The markers of the table in the document.
const (
	beginMarker = "<!-- suites -->"
	endMarker   = "<!-- /suites -->"
)

// writeTo replaces the text between the markers of a document with the table.
func (r *report) writeTo(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("document: %w", err)
	}
	before, rest, found := strings.Cut(string(text), beginMarker)
	_, after, closed := strings.Cut(rest, endMarker)
	if !found || !closed {
		return fmt.Errorf("document: %s: marker %s not found", page, beginMarker)
	}
	return os.WriteFile(page, []byte(before+beginMarker+"\n\n"+r.table()+"\n"+endMarker+after), 0o644)
}
