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
	Min   int  // minimum width in a narrow window, in characters; 0 means that the cells are never shortened
	Name  bool // the column contains names that often differ only at the end
	Keep  bool // the column is shown in a window of any width

	right bool // the cells are right-aligned
	cell  func(Row, time.Time) string
}

// A Layout selects the columns of the table.
type Layout struct {
	Namespaces bool // show the namespace
	Workloads  bool // each row is a workload
	Narrow     bool // show the limit in the column of the running requests, and omit the note
}

// Columns returns the columns of the table.
func (l Layout) Columns() []Column {
	var all []Column
	if l.Namespaces {
		all = append(all, Column{Title: "NAMESPACE", Min: 9, Name: true, cell: func(r Row, _ time.Time) string { return r.Namespace }})
	}
	if l.Workloads {
		all = append(all, Column{Title: "WORKLOAD", Min: 16, Name: true, Keep: true, cell: func(r Row, _ time.Time) string { return r.Workload }})
	} else {
		all = append(all, Column{Title: "POD", Min: 16, Name: true, Keep: true, cell: func(r Row, _ time.Time) string { return r.Pod }})
	}
	all = append(all, Column{Title: "READY", Keep: true, cell: ready})
	waiting := Column{Title: "WAITING", right: true, cell: func(r Row, _ time.Time) string { return number(r.Waiting) }}
	if l.Narrow {
		all = append(all, Column{Title: "RUN/LIMIT", Keep: true, right: true, cell: runningAndLimit}, waiting)
	} else {
		all = append(all,
			Column{Title: "RUNNING", right: true, cell: func(r Row, _ time.Time) string { return number(r.Running) }},
			waiting,
			Column{Title: "LIMIT", right: true, cell: limit})
	}
	last := failure
	if l.Narrow {
		last = func(r Row, now time.Time) string { return strings.TrimSuffix(failure(r, now), " ago") }
	}
	all = append(all,
		Column{Title: "REQ/S", right: true, cell: func(r Row, _ time.Time) string { return rate(r.Rate) }},
		Column{Title: "P99", right: true, cell: func(r Row, _ time.Time) string { return seconds(r.P99) }},
		Column{Title: "LAST FAILURE", Min: 10, cell: last})
	if !l.Narrow {
		all = append(all, Column{Title: "NOTE", Min: 8, cell: func(r Row, _ time.Time) string { return r.Note }})
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

// Matches reports whether a row contains text. Case is ignored.
func Matches(r Row, text string) bool {
	cells := []string{r.Namespace, r.Pod, r.Workload, ready(r, time.Time{}), r.Failure, r.Note}
	return strings.Contains(strings.ToLower(strings.Join(cells, " ")), strings.ToLower(text))
}

// WriteText writes the table as plain text, without truncating names.
func WriteText(w io.Writer, rows []Row, layout Layout, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range Table(layout.Columns(), rows, now) {
		fmt.Fprintln(out, strings.Join(cells, "\t"))
	}
	return out.Flush()
}

// unknown is the text of a cell if the value is not known.
const unknown = "-"

// ready returns the state of a pod, or the number of ready pods of a workload.
func ready(r Row, _ time.Time) string {
	if r.Pods > 0 {
		return fmt.Sprintf("%d/%d", r.ReadyPods, r.Pods)
	}
	return map[State]string{Ready: "yes", NotReady: "no", Draining: "draining", Unknown: "?"}[r.State]
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

func runningAndLimit(r Row, now time.Time) string {
	return number(r.Running) + "/" + limit(r, now)
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

// seconds formats a duration in milliseconds or seconds.
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
