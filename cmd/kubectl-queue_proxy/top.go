package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/charmbracelet/x/term"

	"github.com/queue-proxy/queue-proxy/pkg/plugin"
)

// listInterval is the time between two requests for the list of pods. Such a request causes much more load on the API
// server than requests for metrics.
const listInterval = 10 * time.Second

// collector collects rows in rounds.
type collector struct {
	client    *plugin.Client
	selection plugin.Selection
	watch     plugin.Watch

	sidecars []plugin.Sidecar
	more     bool // there are more than plugin.MaxSidecars sidecars
	listed   time.Time
}

// top shows the sidecars in the live view, or prints them once.
func (p *program) top(ctx context.Context, line commandLine) error {
	client, namespace, err := line.connect()
	if err != nil {
		return err
	}
	if line.everywhere {
		namespace = ""
	}
	c := &collector{client: client, watch: plugin.Watch{Window: line.window}, selection: plugin.Selection{Namespace: namespace, Labels: line.selector, Container: line.container}}
	if err := c.list(ctx); err != nil { // list the sidecars before the live view starts, because an authentication plugin can prompt for a password
		return err
	}
	if !line.once && line.output == "text" && p.isTerminal() {
		return p.live(ctx, line, namespace, c)
	}
	return p.once(ctx, line, c)
}

// isTerminal reports whether the standard output is a terminal that supports the live view.
func (p *program) isTerminal() bool {
	f, ok := p.stdout.(*os.File)
	return ok && term.IsTerminal(f.Fd()) && !slices.Contains(p.environ, "TERM=dumb")
}

// list updates the list of sidecars.
func (c *collector) list(ctx context.Context) error {
	sidecars, more, err := c.client.Sidecars(ctx, c.selection)
	if err != nil {
		return err
	}
	c.sidecars, c.more, c.listed = sidecars, more, time.Now()
	c.watch.List(sidecars)
	return nil
}

// round reads the metrics of all sidecars once.
func (c *collector) round(ctx context.Context) []plugin.Row {
	c.client.Scrape(ctx, c.sidecars, c.watch.Add)
	return c.watch.Rows()
}

// news returns the result of a round. It first updates the list of sidecars if listInterval has passed.
func (c *collector) news(ctx context.Context) newsMsg {
	var problem error
	if time.Since(c.listed) >= listInterval {
		problem = c.list(ctx)
	}
	return newsMsg{rows: c.round(ctx), more: c.more, problem: problem}
}

// once reads the metrics in two rounds and prints the rows. Rates and durations refer to the time between the rounds.
func (p *program) once(ctx context.Context, line commandLine, c *collector) error {
	if len(c.sidecars) == 0 && line.output == "text" {
		where := ""
		if !line.everywhere {
			where = " in namespace " + c.selection.Namespace
		}
		fmt.Fprintf(p.stderr, "No sidecars found%s.\n", where)
		return nil
	}
	rows := c.round(ctx)
	if len(rows) > 0 {
		select {
		case <-time.After(line.interval):
		case <-ctx.Done():
			return ctx.Err()
		}
		rows = c.round(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	rows = line.arrange(rows)
	if c.more {
		fmt.Fprintf(p.stderr, "There are more than %d sidecars. Use -l to select sidecars.\n", plugin.MaxSidecars)
	}
	if line.output == "json" {
		return plugin.WriteJSON(p.stdout, rows, time.Now())
	}
	if len(rows) == 0 && line.filter != "" {
		fmt.Fprintf(p.stderr, "No row matches the filter %q.\n", line.filter)
		return nil
	}
	return plugin.WriteText(p.stdout, rows, line.layout(false), time.Now())
}

// arrange returns the rows of the table, which are the sorted pods or workloads that the filter selects.
func (line *commandLine) arrange(pods []plugin.Row) []plugin.Row {
	rows := slices.Clone(pods)
	if line.by == byWorkload {
		rows = plugin.ByWorkload(rows)
	}
	rows = slices.DeleteFunc(rows, func(r plugin.Row) bool { return !plugin.Matches(r, line.filter) })
	plugin.Sort(rows, line.sort)
	return rows
}

// layout returns the columns of the table.
func (line *commandLine) layout(narrow bool) plugin.Layout {
	return plugin.Layout{Namespaces: line.everywhere, Workloads: line.by == byWorkload, Narrow: narrow}
}
