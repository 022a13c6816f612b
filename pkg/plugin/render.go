package plugin

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// Column is a column of the table.
type Column struct {
	Title string
	Min   int  // minimum width in a narrow window, in characters; 0 for a column that is not cut
	Name  bool // contains names that differ at the end

	right bool // right-aligned
	cell  func(Row, time.Time) string
}

// Columns returns the columns of the table. The column for the namespace is optional.
func Columns(namespaces bool) []Column {
	all := []Column{
		{Title: "NAMESPACE", Min: 9, Name: true, cell: func(r Row, _ time.Time) string { return r.Namespace }},
		{Title: "POD", Min: 16, Name: true, cell: func(r Row, _ time.Time) string { return r.Pod }},
		{Title: "READY", cell: func(r Row, _ time.Time) string { return ready(r.State) }},
		{Title: "RUNNING", right: true, cell: func(r Row, _ time.Time) string { return number(r.Running) }},
		{Title: "WAITING", right: true, cell: func(r Row, _ time.Time) string { return number(r.Waiting) }},
		{Title: "LIMIT", right: true, cell: limit},
		{Title: "REQ/S", right: true, cell: func(r Row, _ time.Time) string { return rate(r.Rate) }},
		{Title: "P99", right: true, cell: func(r Row, _ time.Time) string { return seconds(r.P99) }},
		{Title: "LAST FAILURE", Min: 10, cell: failure},
		{Title: "NOTE", Min: 8, cell: func(r Row, _ time.Time) string { return r.Note }},
	}
	if !namespaces {
		return all[1:]
	}
	return all
}

// Table returns the titles of columns, followed by the cells of rows. The cells contain only printable characters.
// Right-aligned cells of a column have the same width.
func Table(columns []Column, rows []Row, now time.Time) [][]string {
	table := make([][]string, len(rows)+1)
	for _, c := range columns {
		cells, width := []string{c.Title}, len(c.Title)
		for _, r := range rows {
			cells = append(cells, message.Printable(c.cell(r, now)))
			width = max(width, utf8.RuneCountInString(cells[len(cells)-1]))
		}
		for i, cell := range cells {
			if c.right {
				cell = fmt.Sprintf("%*s", width, cell)
			}
			table[i] = append(table[i], cell)
		}
	}
	return table
}

// WriteText writes the table as plain text, without truncated names.
func WriteText(w io.Writer, rows []Row, namespaces bool, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range Table(Columns(namespaces), rows, now) {
		fmt.Fprintln(out, strings.Join(cells, "\t"))
	}
	return out.Flush()
}

// unknown is the text for a value that is not known.
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

// seconds formats a duration with two or three digits.
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

// age formats a duration in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d/time.Second)))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d/time.Minute))
	}
	return fmt.Sprintf("%dh", int(d/time.Hour))
}
