package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A column is one of the table.
type column struct {
	title string
	right bool // numbers stand at the right
	least int  // to how many characters it may be cut where the screen is narrow; 0: not at all
	cell  func(Row, time.Time) string
}

// columns are those of the table. The first is only there where rows of several namespaces are
// shown.
func columns(namespaces bool) []column {
	all := []column{
		{title: "NAMESPACE", least: 9, cell: func(r Row, _ time.Time) string { return r.Namespace }},
		{title: "POD", least: 16, cell: func(r Row, _ time.Time) string { return r.Pod }},
		{title: "READY", cell: func(r Row, _ time.Time) string { return ready(r.State) }},
		{title: "RUNNING", right: true, cell: func(r Row, _ time.Time) string { return number(r.Running) }},
		{title: "WAITING", right: true, cell: func(r Row, _ time.Time) string { return number(r.Waiting) }},
		{title: "LIMIT", right: true, cell: limit},
		{title: "REQ/S", right: true, cell: func(r Row, _ time.Time) string { return rate(r.Rate) }},
		{title: "P99", right: true, cell: func(r Row, _ time.Time) string { return seconds(r.P99) }},
		{title: "LAST FAILURE", least: 10, cell: failure},
		{title: "NOTE", least: 8, cell: func(r Row, _ time.Time) string { return r.Note }},
	}
	if !namespaces {
		return all[1:]
	}
	return all
}

// unknown stands for what is not known.
const unknown = "-"

func ready(s State) string {
	return map[State]string{Ready: "yes", NotReady: "no", Draining: "draining", Unknown: "?"}[s]
}

func number(n *int) string {
	if n == nil {
		return unknown
	}
	return strconv.Itoa(*n)
}

func limit(r Row, _ time.Time) string {
	if r.Limit != nil && *r.Limit == 0 {
		return "none"
	}
	return number(r.Limit)
}

func rate(n *float64) string {
	switch {
	case n == nil:
		return unknown
	case *n == 0:
		return "0"
	case *n < 100:
		return strconv.FormatFloat(*n, 'f', 1, 64)
	}
	return strconv.FormatFloat(*n, 'f', 0, 64)
}

// seconds writes a duration with two or three digits.
func seconds(n *float64) string {
	switch {
	case n == nil:
		return unknown
	case *n < 0.01:
		return strconv.FormatFloat(*n*1000, 'f', 1, 64) + "ms"
	case *n < 1:
		return strconv.FormatFloat(*n*1000, 'f', 0, 64) + "ms"
	case *n < 10:
		return strconv.FormatFloat(*n, 'f', 2, 64) + "s"
	}
	return strconv.FormatFloat(*n, 'f', 0, 64) + "s"
}

func failure(r Row, now time.Time) string {
	switch {
	case r.Failure == "":
		return unknown
	case r.FailedAt == nil:
		return r.Failure + " earlier"
	}
	return r.Failure + " " + age(now.Sub(*r.FailedAt)) + " ago"
}

// age is a duration in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d/time.Second)))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d/time.Minute))
	}
	return fmt.Sprintf("%dh", int(d/time.Hour))
}

// gap stands between two columns.
const gap = "  "

// A table is rows made ready for printing.
type table struct {
	columns []column
	lines   [][]string // the first has the titles
	widths  []int
}

func newTable(rows []Row, namespaces bool, now time.Time) *table {
	t := &table{columns: columns(namespaces)}
	t.widths = make([]int, len(t.columns))
	add := func(cell func(column) string) {
		line := make([]string, len(t.columns))
		for i, c := range t.columns {
			line[i] = cell(c)
			t.widths[i] = max(t.widths[i], length(line[i]))
		}
		t.lines = append(t.lines, line)
	}
	add(func(c column) string { return c.title })
	for _, r := range rows {
		add(func(c column) string { return printable.Text(c.cell(r, now)) })
	}
	return t
}

// fit makes columns narrower until the lines are at most width long, or no column can be
// narrower: in each step the one that is furthest from its least.
func (t *table) fit(width int) {
	over := len(gap)*(len(t.widths)-1) - width
	for _, w := range t.widths {
		over += w
	}
	for ; over > 0; over-- {
		widest, spare := 0, 0
		for i, c := range t.columns {
			if c.least > 0 && t.widths[i]-c.least > spare {
				widest, spare = i, t.widths[i]-c.least
			}
		}
		if spare == 0 {
			return
		}
		t.widths[widest]--
	}
}

// line writes a line with its columns below each other. Names are cut in the middle, because
// those of one workload begin alike and pods differ at the end; texts are cut at the end.
func (t *table) line(n int) string {
	var b strings.Builder
	for i, cell := range t.lines[n] {
		if i > 0 {
			b.WriteString(gap)
		}
		c, width := t.columns[i], t.widths[i]
		if c.title == "POD" || c.title == "NAMESPACE" {
			cell = cutMiddle(cell, width)
		} else {
			cell = cutEnd(cell, width)
		}
		if !c.right {
			width = -width // as fmt has it
		}
		fmt.Fprintf(&b, "%*s", width, cell)
	}
	return strings.TrimRight(b.String(), " ")
}

func length(s string) int { return len([]rune(s)) }

// ellipsis stands for what was cut.
const ellipsis = "…"

func cutEnd(s string, width int) string {
	all := []rune(s)
	switch {
	case len(all) <= width:
		return s
	case width == 0:
		return ""
	}
	return string(all[:width-1]) + ellipsis
}

func cutMiddle(s string, width int) string {
	all := []rune(s)
	if len(all) <= width {
		return s
	}
	head := (width - 1) / 2
	tail := width - 1 - head
	return string(all[:head]) + ellipsis + string(all[len(all)-tail:])
}

// Text is the table as plain text, with every name in full.
func Text(rows []Row, namespaces bool, now time.Time) string {
	t := newTable(rows, namespaces, now)
	var b strings.Builder
	for n := range t.lines {
		b.WriteString(t.line(n) + "\n")
	}
	return b.String()
}

// A Screen is what a terminal shows, apart from the rows.
type Screen struct {
	Width, Height int // in characters
	Colour        bool
	Namespaces    bool   // show them: rows are of several
	Title, Keys   string // of the first line: at its left, and its right
	Problem       string // why the rows are old; "" if they are not
	Now           time.Time
}

// SGR parameters (ECMA-48, 8.3.117).
const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

func (s Screen) paint(with, text string) string {
	if !s.Colour || with == "" || text == "" {
		return text
	}
	return with + text + plain
}

// Lines are the lines of the screen, at most Height of at most Width. What does not fit is
// counted in the last one.
func (s Screen) Lines(rows []Row) []string {
	t := newTable(rows, s.Namespaces, s.Now)
	t.fit(s.Width)
	lines := []string{s.head(rows), ""}
	if s.Problem != "" {
		lines[1] = s.paint(red, cutEnd(printable.Text(s.Problem), s.Width))
	}
	lines = append(lines, s.paint(bold, cutEnd(t.line(0), s.Width)))
	room := max(0, s.Height-len(lines))
	for n := range rows {
		if n+1 == room && len(rows) > room {
			lines = append(lines, s.paint(dim, cutEnd(fmt.Sprintf("%d more", len(rows)-n), s.Width)))
			break
		}
		lines = append(lines, s.paint(colourOf(rows[n].State), cutEnd(t.line(n+1), s.Width)))
	}
	return lines[:min(len(lines), max(0, s.Height))]
}

// head is the first line: what is shown, how many are not ready, and which keys there are.
func (s Screen) head(rows []Row) string {
	counts := map[State]int{}
	for _, r := range rows {
		counts[r.State]++
	}
	left := fmt.Sprintf("%s   %d sidecars", s.Title, len(rows))
	if len(rows) == 1 {
		left = s.Title + "   1 sidecar"
	}
	for _, state := range []State{NotReady, Unknown, Draining} {
		if counts[state] > 0 {
			left += fmt.Sprintf(", %d %s", counts[state], strings.ReplaceAll(string(state), "-", " "))
		}
	}
	left, right := printable.Text(left), s.Keys+"   "+s.Now.Format(time.TimeOnly)
	blanks := s.Width - length(left) - length(right)
	if blanks < len(gap) {
		return s.paint(bold, cutEnd(left, s.Width))
	}
	return s.paint(bold, left) + strings.Repeat(" ", blanks) + s.paint(dim, right)
}

func colourOf(s State) string {
	return map[State]string{NotReady: red, Unknown: yellow, Draining: yellow}[s]
}
