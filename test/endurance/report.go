//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// A line contains the outcomes of one row.
type line struct {
	row      *row
	outcomes map[variant]*outcome
}

// A report contains the outcomes of all selected rows.
type report struct{ lines []line }

// The verdicts of a row.
const (
	passed   = "ok"
	crowded  = "ok, many connections"
	alone    = "ok, not compared" // there is no result with the sidecar, or no result without a proxy
	rejected = "**FAIL**"
)

// A verdict mentions the number of connections if the sidecar uses more than manyConnections
// times as many connections as the other variants. The sidecar should need about as many
// connections as they do, so a higher ratio indicates leaked streams.
const manyConnections = 4

// verdict returns the verdict of the row.
func (l *line) verdict() string {
	if l.failed() {
		return rejected
	}
	if l.outcomes[direct] == nil || l.outcomes[sidecar] == nil {
		return alone
	}
	most := manyConnections // minimum, because a limit derived from a single connection would be too low
	for v, out := range l.outcomes {
		if v != sidecar {
			most = max(most, out.connections)
		}
	}
	if out := l.outcomes[sidecar]; out != nil && out.connections > manyConnections*most {
		return crowded
	}
	return passed
}

// failed reports whether the sidecar has failures that do not occur without a proxy. A kind of
// failure that also occurs without a proxy is allowed up to twice as often.
func (l *line) failed() bool {
	out := l.outcomes[sidecar]
	if out == nil || out.failures() == 0 {
		return false
	}
	without := l.outcomes[direct]
	if without == nil {
		return true
	}
	for kind, n := range out.Failures {
		share := float64(n) / float64(max(1, out.Requests))
		if m := without.Failures[kind]; m == 0 || share > 2*float64(m)/float64(max(1, without.Requests)) {
			return true
		}
	}
	return false
}

// print prints the outcome for a developer, with the failures by kind.
func (out *outcome) print(name string) {
	fmt.Printf("%s: %d requests, %s, %d failures, %d connections to the application\n",
		name, out.Requests, size(out.Bytes), out.failures(), out.connections)
	for _, kind := range kinds(out.Expected) {
		fmt.Printf("  expected %7d  %s\n", out.Expected[kind], kind)
	}
	for _, kind := range kinds(out.Failures) {
		fmt.Printf("  FAILED   %7d  %s\n", out.Failures[kind], kind)
	}
	for _, text := range out.gauges {
		fmt.Printf("  %s\n", text)
	}
	if out.failures() > 0 {
		for _, note := range out.notes {
			fmt.Printf("    %s\n", note)
		}
	}
}

// size formats a number of bytes in KB, MB or GB.
func size(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.0f KB", float64(n)/1e3)
}

// markdown returns the line of the table in Markdown.
func (l *line) markdown() string {
	var requests, failures, connections []string
	for _, v := range []variant{direct, sidecar, haproxy, nginx} {
		out := l.outcomes[v]
		if out == nil && (v == nginx || v == haproxy && l.outcomes[nginx] != nil) {
			continue
		}
		if out == nil {
			requests, failures, connections = append(requests, "-"), append(failures, "-"), append(connections, "-")
			continue
		}
		requests = append(requests, fmt.Sprint(out.Requests))
		failures = append(failures, fmt.Sprint(out.failures()))
		connections = append(connections, fmt.Sprint(out.connections))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", l.row.title(), strings.Join(requests, " / "),
		strings.Join(failures, " / "), strings.Join(connections, " / "), l.verdict())
}

// title returns the name of the row in the table.
func (r *row) title() string {
	if r.nginx {
		return r.name + " (nginx instead of HAProxy)"
	}
	return r.name
}

// table returns the table in Markdown. It contains the rows of r, and all other rows from an earlier table.
func (r *report) table(earlier string) string {
	lines := map[string]string{} // lines of the table by the title of the row
	for text := range strings.Lines(earlier) {
		if cells := strings.Split(text, " | "); len(cells) == 5 {
			lines[strings.TrimPrefix(cells[0], "| ")] = strings.TrimSpace(text)
		}
	}
	all := rows()
	for _, l := range r.lines {
		lines[l.row.title()] = l.markdown()
		if !slices.ContainsFunc(all, func(o row) bool { return o.name == l.row.name }) {
			all = append(all, *l.row)
		}
	}
	var b strings.Builder
	b.WriteString("| load | requests: direct / sidecar / HAProxy | failures: direct / sidecar / HAProxy |" +
		" connections to the application | verdict |\n|---|---|---|---|---|\n")
	count, failed := 0, 0
	for i := range all {
		text, ok := lines[all[i].title()]
		if !ok {
			continue
		}
		count++
		if strings.Contains(text, rejected) {
			failed++
		}
		b.WriteString(text + "\n")
	}
	fmt.Fprintf(&b, "| **all: %d rows** | | | | **%d failed** |\n", count, failed)
	return b.String()
}

// verdict returns an error if a row failed.
func (r *report) verdict() error {
	var failed []string
	for _, l := range r.lines {
		if l.failed() {
			failed = append(failed, l.row.name)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d rows failed: %s", len(failed), len(r.lines), strings.Join(failed, "; "))
	}
	return nil
}

// The markers of the table in the document.
const (
	beginMarker = "<!-- endurance -->"
	endMarker   = "<!-- /endurance -->"
)

// writeTo updates the table between the markers of a document with the lines of r. It keeps the lines of rows without
// new results.
func (r *report) writeTo(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("document: %w", err)
	}
	before, rest, found := strings.Cut(string(text), beginMarker)
	earlier, after, closed := strings.Cut(rest, endMarker)
	if !found || !closed {
		return fmt.Errorf("document: %s: marker %s not found", page, beginMarker)
	}
	return os.WriteFile(page, []byte(before+beginMarker+"\n\n"+r.table(earlier)+"\n"+endMarker+after), 0o644)
}
