package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/kubectl"
	"github.com/queue-proxy/queue-proxy/pkg/terminal"
	"github.com/queue-proxy/queue-proxy/pkg/top"
)

// listEvery is how often pods are listed: their list costs an API server much more than their
// numbers do.
const listEvery = 10 * time.Second

// signalWait is within what time a Ctrl-C that has ended kubectl, too, arrives here.
const signalWait = 100 * time.Millisecond

// A collector asks for rows again and again.
type collector struct {
	proxy     *kubectl.Proxy
	selection kubectl.Selection
	interval  time.Duration
	watch     *top.Watch

	all    []top.Sidecar
	more   bool // than are asked
	listed time.Time
}

// top shows the sidecars.
func (p *program) top(ctx context.Context, line commandLine) error {
	k := p.kubectl(&line)
	if line.namespace == "" && !line.everywhere {
		var err error
		if line.namespace, err = k.Namespace(ctx); err != nil {
			return err
		}
	}
	proxy, err := k.Proxy(ctx)
	if err != nil {
		return err
	}
	defer proxy.Close()
	c := &collector{
		proxy: proxy, interval: line.interval, watch: &top.Watch{Window: line.window},
		selection: kubectl.Selection{Namespace: line.namespace, Labels: line.selector, Container: line.container},
	}
	if err := c.list(ctx); err != nil { // before a screen is there: kubectl may ask its user for a password
		return err
	}
	if screen, ok := p.screen(); ok && !line.once && line.output == "text" {
		return p.live(ctx, line, c, screen)
	}
	return p.once(ctx, line, c)
}

// screen is the standard output if it is a terminal that can show a screen.
func (p *program) screen() (*os.File, bool) {
	f, ok := p.stdout.(*os.File)
	return f, ok && terminal.Is(f) && p.terminal != "dumb"
}

// list finds the sidecars.
func (c *collector) list(ctx context.Context) error {
	all, more, err := c.proxy.Sidecars(ctx, c.selection)
	if err != nil {
		if ended := c.proxy.Failed(); ended != nil {
			return ended
		}
		return err
	}
	c.all, c.more, c.listed = all, more, time.Now()
	c.watch.List(all)
	return nil
}

// round asks all sidecars once, and returns rows.
func (c *collector) round(ctx context.Context) []top.Row {
	c.proxy.Scrape(ctx, c.all, c.watch.Add)
	return c.watch.Rows()
}

// once prints the rows of two rounds: rates and durations are of the time between them.
func (p *program) once(ctx context.Context, line commandLine, c *collector) error {
	if len(c.all) == 0 && line.output != "json" {
		fmt.Fprintf(p.stderr, "No sidecars found%s.\n", in(line))
		return nil
	}
	rows := c.round(ctx)
	if len(rows) > 0 {
		wait(ctx, c.interval)
		rows = c.round(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	top.Sort(rows, line.sort)
	if c.more {
		fmt.Fprintf(p.stderr, "There are more than %d sidecars; -l selects some.\n", kubectl.Most)
	}
	if line.output == "json" {
		return top.WriteJSON(p.stdout, rows, time.Now())
	}
	_, err := io.WriteString(p.stdout, top.Text(rows, line.everywhere, time.Now()))
	return err
}

func in(line commandLine) string {
	if line.everywhere {
		return ""
	}
	return " in namespace " + line.namespace
}

// wait waits for d, or until ctx is done.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A news is what a round has brought: rows, and why they are old, if they are.
type news struct {
	rows    []top.Row
	more    bool
	problem error
}

// follow makes rounds until ctx is done or the proxy has ended.
func (c *collector) follow(ctx context.Context, tell func(news)) error {
	for ctx.Err() == nil {
		var n news
		if time.Since(c.listed) >= listEvery {
			n.problem = c.list(ctx)
		}
		n.rows, n.more = c.round(ctx), c.more
		ended := c.proxy.Failed()
		if ended == nil {
			tell(n)
			wait(ctx, c.interval)
		} else if wait(ctx, signalWait); ctx.Err() == nil {
			return ended
		}
	}
	return nil
}

// live shows a screen until somebody ends it, by q, Ctrl-C or a signal.
func (p *program) live(ctx context.Context, line commandLine, c *collector, out *os.File) (err error) {
	screen, err := terminal.Open(p.stdin, out)
	if err != nil {
		return err
	}
	c.proxy.Silence()
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	var ended error
	defer func() {
		end()
		running.Wait()
		if closed := screen.Close(); err == nil {
			err = closed
		}
		if err == nil {
			err = ended
		}
	}()
	rounds, keys := make(chan news), make(chan byte)
	running.Go(func() {
		defer end()
		ended = c.follow(ctx, func(n news) { send(ctx, rounds, n) })
	})
	running.Go(func() {
		screen.Keys(ctx, func(key byte) { send(ctx, keys, key) })
	})
	v := &view{line: line, colour: !p.plain}
	tick := time.NewTicker(time.Second) // of the clock, and of ages
	defer tick.Stop()
	for {
		if err := screen.Draw(v.lines(screen.Size())); err != nil {
			return err
		}
		select {
		case v.news = <-rounds:
			v.known = true
		case key := <-keys:
			if !v.press(key) {
				return nil
			}
		case <-screen.Resized():
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// send gives something to who receives, unless ctx is done before.
func send[T any](ctx context.Context, to chan<- T, what T) {
	select {
	case to <- what:
	case <-ctx.Done():
	}
}

// A view is what the screen shows.
type view struct {
	line   commandLine
	colour bool
	known  bool // there has been a round
	news   news
}

// press does what a key asks for and reports whether to go on.
func (v *view) press(key byte) bool {
	switch key {
	case 'q', 'Q':
		return false
	case 's':
		all := top.Keys()
		v.line.sort = all[(slices.Index(all, v.line.sort)+1)%len(all)]
	}
	return true
}

func (v *view) lines(width, height int) []string {
	s := top.Screen{
		Width: width, Height: height, Colour: v.colour, Namespaces: v.line.everywhere, Now: time.Now(),
		Title: "all namespaces", Keys: "sorted by " + v.line.sort + "   s sort, q quit",
	}
	if !v.line.everywhere {
		s.Title = "namespace " + v.line.namespace
	}
	switch {
	case v.news.problem != nil:
		s.Problem = v.news.problem.Error()
	case v.news.more:
		s.Problem = fmt.Sprintf("there are more than %d sidecars; -l selects some", kubectl.Most)
	case !v.known:
		s.Problem = "asking"
	case len(v.news.rows) == 0:
		s.Problem = "no sidecars found; they are looked for every " + listEvery.String()
	}
	top.Sort(v.news.rows, v.line.sort)
	return s.Lines(v.news.rows)
}
