//go:build linux

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// A section is a table of the report.
type section struct {
	short  string // title in the table of goals
	title  string
	own    string // name of the markers of the section in the document; if empty, the section is part of the results
	peers  []string
	rows   []row
	ratios []ratio // ratios in the last columns
	print  bool    // the section is only in the complete report and not part of the document
}

// A row contains one measure.
type row struct {
	id, title, unit string
	digits          int  // number of digits after the decimal point
	interval        bool // the cell contains the 95 % interval of the median instead of the minimum and the maximum
	print           bool // the row is only in the complete report and not part of the document
}

// A ratio compares the medians of two peers.
type ratio struct{ title, peer, against string }

var (
	proxies   = []string{ours, knative, baseline, haproxy, nginx}
	withAlone = append(slices.Clip(proxies), appAlone)

	usual = []ratio{
		{"÷ " + knative, ours, knative},
		{"÷ " + haproxy, ours, haproxy},
	}
)

// reportLoads contains the loads whose CPU time is only in the complete report.
var reportLoads = []string{"get-1", "tls-1", "tls-post-10k", "h2c-100k-4x4", "grpc-16x4"}

// rowsOf returns a row with the given measure for each load of the groups.
func rowsOf(kind, unit string, digits int, groups ...string) []row {
	var rows []row
	for _, l := range loads {
		if slices.Contains(groups, l.group) {
			rows = append(rows, row{id: kind + "/" + l.id, title: l.title, unit: unit, digits: digits, print: slices.Contains(reportLoads, l.id)})
		}
	}
	return rows
}

// sections contains the sections of the report in order.
var sections = []section{
	{
		short: "CPU", title: "CPU time of the proxy per request, µs: HTTP/1.1", peers: proxies, ratios: usual,
		rows: append(rowsOf("cpu", "µs", 1, "plain"), row{id: "cpu/open", title: "GET 1 KB, 1000 requests/s", unit: "µs", digits: 1}),
	},
	{short: "CPU", title: "CPU time of the proxy per request, µs: HTTP/1.1 over TLS 1.3", peers: proxies, ratios: usual, rows: rowsOf("cpu", "µs", 1, "tls")},
	{short: "CPU", title: "CPU time of the proxy per request, µs: HTTP/2 clients, HTTP/1.1 application", peers: proxies, ratios: usual, rows: rowsOf("cpu", "µs", 1, "h2")},
	{short: "CPU", title: "CPU time of the proxy per call, µs: gRPC over HTTP/2", peers: proxies, ratios: usual, rows: rowsOf("cpu", "µs", 1, "grpc")},
	{short: "CPU", title: "CPU time per request, ratio to HAProxy in paired rounds", peers: []string{ours}, print: true, rows: []row{
		{id: "paired/get-16", title: "GET 1 KB, 16 connections, paired", unit: "× " + haproxy, digits: 2, interval: true},
		{id: "paired/get-64", title: "GET 1 KB, 64 connections, paired", unit: "× " + haproxy, digits: 2, interval: true},
	}},
	{
		short: "throughput", title: "Requests per second, with load, proxy and application on the same CPUs", peers: withAlone, ratios: usual,
		rows: rowsOf("rate", "requests/s", 0, "plain", "tls", "h2", "grpc"), print: true,
	},
	{short: "latency", title: "Latency at 1000 requests per second, µs", peers: withAlone, ratios: usual, rows: []row{
		{id: "latency/p50", title: "p50", unit: "µs"},
		{id: "latency/p99", title: "p99", unit: "µs"},
		{id: "added/p50", title: "p50 minus p50 of the application", unit: "µs", print: true},
		{id: "added/p99", title: "p99 minus p99 of the application", unit: "µs"},
	}},
	{short: "latency", title: "Latency of a gRPC call, closed loop, µs", peers: withAlone, ratios: usual, rows: []row{
		{id: "latency/grpc-1x64", title: "1 connection of 64 calls, p50", unit: "µs"},
	}},
	{short: "memory", title: "Memory of a process (RSS)", peers: proxies, ratios: usual, rows: []row{
		{id: "memory/idle", title: "idle, MB", unit: "MB", digits: 1},
		{id: "memory/64", title: "64 busy connections, maximum, MB", unit: "MB", digits: 1, print: true},
		{id: "memory/1000", title: "1000 busy connections, maximum, MB", unit: "MB", digits: 1},
		{id: "memory/each", title: "increase per connection with 1000 connections, KB", unit: "KB", digits: 1},
		{id: "memory/tls-each", title: "increase per connection with TLS, KB", unit: "KB", digits: 1},
		{id: "memory/h2c-each", title: "increase per connection with h2c, KB", unit: "KB", digits: 1},
		{id: "memory/h2tls-each", title: "increase per connection with HTTP/2 over TLS, KB", unit: "KB", digits: 1},
		{id: "memory/waiting", title: "increase per queued HTTP/2 stream, KB", unit: "KB", digits: 1},
	}},
	{short: "density", title: "Memory per sidecar with 40 sidecars on a node", peers: proxies, ratios: usual, rows: []row{
		{id: "density/share", title: "proportional share (PSS), MB", unit: "MB", digits: 2, print: true},
		{id: "density/private", title: "private memory, MB", unit: "MB", digits: 2},
	}},
	{short: "idle pod", title: "An idle pod", own: "idle", peers: []string{ours, withDefaultNames, knative}, ratios: usual[:1], rows: []row{
		{id: "idle/series", title: "number of series on port 9091"},
		{id: "idle/bytes", title: "length of the page, KB", unit: "KB", digits: 1},
		{id: "idle/cpu", title: "CPU time per minute, ms", unit: "ms", digits: 1},
		{id: "idle/private", title: "private memory, MB", unit: "MB", digits: 2},
		{id: "idle/start", title: "start, exec to ready, ms", unit: "ms", digits: 1},
	}},
	{short: "start", title: "Start and size", peers: proxies, ratios: usual, rows: []row{
		{id: "start/plain", title: "time to the first response, ms", unit: "ms", digits: 1},
		{id: "start/quota", title: "time to the first response with a CPU limit of 30m, ms", unit: "ms"},
		{id: "size", title: "binary, MB", unit: "MB", digits: 1},
	}},
	{
		short: "queue", title: "Queue: 100 clients, 10 concurrent requests of 20 ms", peers: []string{ours, knative, haproxy},
		ratios: []ratio{{"÷ " + knative, ours, knative}, {"÷ " + haproxy, ours, haproxy}}, rows: []row{
			{id: "queue/p50", title: "wait, p50, ms", unit: "ms", digits: 1},
			{id: "queue/p99", title: "wait, p99, ms", unit: "ms", digits: 1},
			{id: "queue/spread", title: "p99 / p50", digits: 3, print: true},
		},
	},
	{
		short: "telemetry", title: "CPU time per request with telemetry, µs", peers: []string{ours, withLog, withFewSpans, withSpans}, print: true,
		ratios: []ratio{{"÷ off, " + withLog, withLog, ours}, {"÷ off, " + withFewSpans, withFewSpans, ours}, {"÷ off, " + withSpans, withSpans, ours}},
		rows:   []row{{id: "cpu/" + telemetryLoad, title: "GET 1 KB, 16 connections", unit: "µs", digits: 1}},
	},
}

// A target limits a measure of a peer. The median of the peer must not exceed limit times the median of the peer
// against. If against is empty, limit is an absolute value.
type target struct {
	measure, peer, against string
	limit                  float64
}

var targets = []target{
	{"cpu/get-1", ours, baseline, 0.45}, {"cpu/get-1", ours, haproxy, 1.3},
	{"cpu/get-16", ours, baseline, 0.28}, {"paired/get-16", ours, "", 0.95},
	{"cpu/get-64", ours, baseline, 0.28}, {"paired/get-64", ours, "", 1.05},
	{"cpu/post-10k", ours, baseline, 0.30}, {"cpu/post-10k", ours, haproxy, 1.3},
	{"cpu/down-100k", ours, baseline, 0.50}, {"cpu/down-100k", ours, haproxy, 1},
	{"cpu/tls-1", ours, haproxy, 0.85},
	{"cpu/tls-16", ours, haproxy, 0.9},
	{"cpu/tls-post-10k", ours, haproxy, 1},
	{"cpu/tls-100k", ours, haproxy, 1},
	{"cpu/h2c-1x1", ours, haproxy, 1.6}, {"cpu/h2c-1x100", ours, haproxy, 1.4},
	{"cpu/h2c-4x16", ours, baseline, 1}, {"cpu/h2c-4x16", ours, haproxy, 1.4}, {"cpu/h2c-100k-4x4", ours, haproxy, 1.8},
	{"cpu/h2tls-4x16", ours, haproxy, 1.3},
	{"cpu/grpc-1x1", ours, haproxy, 1.2}, {"cpu/grpc-1x64", ours, haproxy, 1},
	{"cpu/grpc-16x4", ours, haproxy, 1}, {"latency/grpc-1x64", ours, haproxy, 1},
	{"added/p99", ours, baseline, 0.30}, {"added/p99", ours, haproxy, 0.8},
	{"memory/each", ours, baseline, 0.25}, {"memory/each", ours, haproxy, 1.6},
	{"memory/tls-each", ours, haproxy, 2.2},
	{"memory/h2c-each", ours, "", 30}, {"memory/h2tls-each", ours, "", 45}, {"memory/waiting", ours, "", 8},
	{"density/private", ours, "", 2.2},
	{"start/plain", ours, knative, 0.65}, {"start/quota", ours, knative, 0.65},
	{"size", ours, "", 15},
	{"queue/spread", ours, "", 1.05},
	{"cpu/" + telemetryLoad, withLog, ours, 1.10},
}

// A table contains the cells of each line. The first line is the header.
type table [][]string

// A spread states whether a cell contains the minimum and the maximum of the rounds.
type spread bool

const (
	withSpread    spread = true
	withoutSpread spread = false
)

// cells returns the table of a section.
func (s *section) cells(r *Results, sp spread) table {
	head := append([]string{""}, s.peers...)
	for _, c := range s.ratios {
		head = append(head, c.title)
	}
	t := table{head}
	for _, m := range s.rows {
		if len(r.Cells[m.id]) == 0 || m.print && sp == withoutSpread { // skip a row that was not selected or is not part of the document
			continue
		}
		line := []string{m.title}
		for _, p := range s.peers {
			line = append(line, m.text(r.Cells[m.id][p], sp))
		}
		for _, c := range s.ratios {
			line = append(line, ratioText(r.ratio(m.id, c.peer, c.against)))
		}
		t = append(t, line)
	}
	return t
}

// text returns a cell: the median, with the spread of the rounds or with the interval of the median.
func (m *row) text(c *Cell, sp spread) string {
	if c == nil || len(c.Values) == 0 {
		if c != nil && len(c.Failed) > 0 {
			return "failed"
		}
		return "-"
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', m.digits, 64) }
	text := number(median(c.Values))
	if low, high, ok := medianInterval(c.Values); m.interval && ok {
		text += fmt.Sprintf(" (95 %%: %s to %s, %d pairs)", number(low), number(high), len(c.Values))
	} else if low, high := number(slices.Min(c.Values)), number(slices.Max(c.Values)); sp == withSpread && low != high {
		text += " (" + low + " to " + high + ")"
	}
	if len(c.Failed) > 0 {
		text += ", some rounds failed"
	}
	return text
}

func ratioText(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// notes returns the notes for the cells in a section. If several rows of a peer have the same note,
// it occurs only once.
func (s *section) notes(r *Results) []string {
	var all []string
	for _, p := range s.peers {
		var notes []string
		rows := map[string][]string{} // titles of rows by note
		for _, m := range s.rows {
			if c := r.Cells[m.id][p]; c != nil && c.Note != "" {
				if rows[c.Note] == nil {
					notes = append(notes, c.Note)
				}
				rows[c.Note] = append(rows[c.Note], m.title)
			}
		}
		for _, note := range notes {
			if len(rows[note]) == 1 {
				note = rows[note][0] + ", " + p + ": " + note
			} else {
				note = p + ": " + note
			}
			all = append(all, note)
		}
	}
	return all
}

// reached is the result of a goal that is reached.
const reached = "reached"

// targetCells returns the table of the goals.
func targetCells(r *Results) table {
	t := table{{"measure", "measured", "goal", "result"}}
	for _, g := range targets {
		if len(r.Settings.Rows) > 0 && len(r.Cells[g.measure]) == 0 {
			continue
		}
		s, m := findRow(g.measure)
		what := s.short + ", " + m.title
		if g.peer != ours {
			what += ", with " + g.peer
		}
		var v float64
		var ok bool
		suffix := " " + m.unit
		if g.against == "" {
			v, ok = r.median(g.measure, g.peer)
		} else {
			v, ok = r.ratio(g.measure, g.peer, g.against)
			suffix = " × " + g.against
			if g.against == ours {
				suffix = " × without"
			}
		}
		suffix = strings.TrimRight(suffix, " ")
		measured, verdict := "not measured", "open"
		if ok {
			measured, verdict = ratioText(v, true)+suffix, reached
			if m.interval {
				measured = m.text(r.Cells[g.measure][g.peer], withSpread) + suffix
			}
			if v > g.limit {
				verdict = "**missed**"
			}
		}
		t = append(t, []string{what, measured, "≤ " + strconv.FormatFloat(g.limit, 'f', 2, 64) + suffix, verdict})
	}
	return t
}

// findRow returns the first row of a measure, and the section of this row. It panics if there is no such row.
func findRow(id string) (section, row) {
	for _, s := range sections {
		for _, m := range s.rows {
			if m.id == id {
				return s, m
			}
		}
	}
	panic("no row " + id)
}

// describe describes the machine, the settings and the date of the run.
func (r *Results) describe() string {
	m := &r.Machine
	kind := ""
	if r.Settings.Quick {
		kind = " The numbers are not reliable, because this was a quick run."
	}
	return fmt.Sprintf("%s, commit %s: %d rounds of %d s for each load, %s.%s\n%s, %d CPUs, %.0f GB, %s, Linux %s, load average before the start %s.\nKnative %s, HAProxy %s, nginx %s, wrk %s, h2load %s.",
		r.Time.Format("2006-01-02"), m.Commit, r.Settings.Rounds, r.Settings.Seconds, m.Go, kind,
		m.CPU, m.CPUs, m.MemoryGB, m.System, m.Kernel, m.Load,
		cmp.Or(m.Versions["knative"], "none"), m.Versions["haproxy"], m.Versions["nginx"], m.Versions["wrk"], m.Versions["h2load"])
}

// printTable prints the report for a terminal.
func printTable(w io.Writer, r *Results) {
	fmt.Fprintln(w, r.describe())
	for i := range sections {
		s := &sections[i]
		t := s.cells(r, withSpread)
		if len(t) == 1 { // skip the section, because no row was measured
			continue
		}
		fmt.Fprintf(w, "\n%s\n", s.title)
		t.print(w)
		for _, note := range s.notes(r) {
			fmt.Fprintln(w, "  "+note)
		}
	}
	if failures := r.failures(); len(failures) > 0 {
		fmt.Fprintf(w, "\nFailures\n")
		for _, line := range failures {
			fmt.Fprintln(w, "  "+line)
		}
	}
	fmt.Fprintf(w, "\nGoals\n")
	targetCells(r).print(w)
}

func (t table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range t {
		fmt.Fprintln(tw, "  "+strings.Join(line, "\t"))
	}
	tw.Flush()
}

// markdown writes the table in Markdown.
func (t table) markdown(w io.Writer) {
	for i, line := range t {
		fmt.Fprintln(w, strings.ReplaceAll("| "+strings.Join(line, " | ")+" |", "  |", " |"))
		if i == 0 {
			fmt.Fprintln(w, "|"+strings.Repeat("---|", len(line)))
		}
	}
	fmt.Fprintln(w)
}

// markers returns the lines before and after a generated part of the document.
func markers(name string) (begin, end string) {
	return "<!-- " + name + " -->\n", "<!-- /" + name + " -->\n"
}

// resultsName is the name of the markers around all sections without separate markers.
const resultsName = "results"

// writeDocument updates the parts of the document for which the run measured all rows. written describes these
// parts. A quick run writes nothing. A run of all rows also writes the plot and the complete report.
func writeDocument(r *Results, doc, complete string) (written string, err error) {
	parts := map[string][]byte{}
	plotName := strings.TrimSuffix(doc, filepath.Ext(doc)) + ".svg"
	whole := len(r.Settings.Rows) == 0
	if whole {
		parts[resultsName] = markdown(r, filepath.Base(plotName))
	}
	for i := range sections {
		if s := &sections[i]; s.own != "" && len(s.cells(r, withSpread)) > 1 {
			parts[s.own] = s.ownMarkdown(r)
		}
	}
	if r.Settings.Quick || len(parts) == 0 {
		return "not written, because the run is quick or incomplete", nil
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		return "", err
	}
	for name, part := range parts {
		if text, err = splice(text, name, part); err != nil {
			return "", fmt.Errorf("%s: %w", doc, err)
		}
	}
	if whole {
		var b bytes.Buffer
		printTable(&b, r)
		if err := errors.Join(os.WriteFile(plotName, plot(r), 0o644), os.WriteFile(complete, b.Bytes(), 0o644)); err != nil {
			return "", err
		}
	}
	return "written: " + strings.Join(slices.Sorted(maps.Keys(parts)), ", "), os.WriteFile(doc, text, 0o644)
}

// ownMarkdown returns the text between the markers of the section.
func (s *section) ownMarkdown(r *Results) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n%s\n\n", r.describeIdle())
	s.cells(r, withSpread).markdown(&b)
	for _, note := range s.notes(r) {
		fmt.Fprintf(&b, "* %s\n\n", note)
	}
	return b.Bytes()
}

// describeIdle describes the machine and the run for the section on idle pods.
func (r *Results) describeIdle() string {
	m := &r.Machine
	return fmt.Sprintf("%s, commit %s, Knative %s, %s: rounds: %d, seconds per measurement: %d, pods per sidecar: %d.\n"+
		"%s, %d CPUs, %.0f GB, %s, Linux %s, load average before the start %s.\nCreated by `%s`. The numbers are medians of the rounds, with the minimum and the maximum in parentheses.",
		r.Time.Format("2006-01-02"), m.Commit, cmp.Or(m.Versions["knative"], "none"), m.Go, r.Settings.Rounds, r.Settings.Idle, idlePods,
		m.CPU, m.CPUs, m.MemoryGB, m.System, m.Kernel, m.Load, r.Settings.command())
}

// splice replaces the text between the markers of a name.
func splice(doc []byte, name string, results []byte) ([]byte, error) {
	begin, end := markers(name)
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, errors.New("missing line " + strings.TrimSpace(begin) + " or " + strings.TrimSpace(end))
	}
	return slices.Concat(before, []byte(begin), results, []byte(end), after), nil
}

// markdown returns the results section of the document.
func markdown(r *Results, plotName string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n%s Created by `make bench`.\n\n![Bar chart of the medians](%s)\n\n", r.describe(), plotName)
	b.WriteString("The cells contain medians. A column `÷ PEER` contains the ratio of queue-proxy to the peer.\n\n")
	all := targetCells(r)
	missed := slices.DeleteFunc(slices.Clone(all), func(line []string) bool { return line[len(line)-1] == reached })
	fmt.Fprintf(&b, "### Goals\n\n%d of %d goals are reached.\n\n", len(all)-len(missed), len(all)-1)
	if len(missed) > 1 { // the first line is the header of the table
		missed[0][0] = "missed goal"
		for i, line := range missed {
			missed[i] = line[:len(line)-1]
		}
		missed.markdown(&b)
	}
	if failures := r.failures(); len(failures) > 0 {
		b.WriteString("### Failures\n\nThe numbers do not include the failed rounds.\n\n")
		for _, line := range failures {
			fmt.Fprintf(&b, "* %s\n", line)
		}
		b.WriteString("\n")
	}
	b.WriteString("### Tables\n\n")
	for _, t := range mergedTables(r) {
		t.markdown(&b)
	}
	return b.Bytes()
}

// mergedTables returns the tables of the document. Successive sections with the same columns are merged into one table,
// in which each section begins with a line for its title and notes.
func mergedTables(r *Results) []table {
	var all []table
	for i := range sections {
		s := &sections[i]
		t := s.cells(r, withoutSpread)
		if len(t) == 1 || s.own != "" || s.print {
			continue
		}
		title := make([]string, len(t[0]))
		title[0] = "**" + s.title + "**"
		for _, note := range s.notes(r) {
			title[0] += " (" + note + ")"
		}
		if last := len(all) - 1; last >= 0 && slices.Equal(all[last][0], t[0]) {
			all[last] = slices.Concat(all[last], table{title}, t[1:])
		} else {
			all = append(all, slices.Concat(table{t[0], title}, t[1:]))
		}
	}
	return all
}
