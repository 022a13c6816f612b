// Command measure compares the adaptive limit with fixed limits and writes the tables into
// a document.
//
//	make limits
//
// The command first simulates the rows. Then it starts a real application, the sidecar and
// clients for each row and limit. It prints the total time. With -run, the document keeps the
// lines of the other rows.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"time"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "app" {
		exit(serve(os.Args[2], os.Args[3]))
	}
	var s settings
	flag.StringVar(&s.proxy, "proxy", "bin/queue-proxy", "path of the queue-proxy program")
	flag.DurationVar(&s.lasts, "time", 30*time.Second, "duration of a measurement")
	flag.DurationVar(&s.warm, "warm", 30*time.Second, "time between the start of the load and the measurement of the adaptive limit")
	flag.StringVar(&s.page, "write", "", "document to update")
	rows := flag.String("run", "", "run the rows with names that match this regular expression")
	only := flag.String("only", "", "create only one `table` (simulated or real)")
	flag.Parse()
	var err error
	if s.rows, err = regexp.Compile(*rows); err != nil {
		exit(fmt.Errorf("-run: %w", err))
	}
	s.simulated, s.real = *only != "real", *only != "simulated"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(run(ctx, &s))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type settings struct {
	proxy, page     string
	rows            *regexp.Regexp
	lasts, warm     time.Duration
	simulated, real bool
}

// run measures the selected rows. The document is written after each row, so that an
// interrupted run keeps its results.
func run(ctx context.Context, s *settings) error {
	began := time.Now()
	simulated := simulatedTables()
	doc, err := newDocument(s.page, append(simulated, realTable(ctx, s)))
	if err != nil {
		return err
	}
	if err := doc.write(); err != nil { // write the document first, because descriptions of rows may have changed
		return err
	}
	for i, t := range doc.tables {
		selected := s.simulated
		if i >= len(simulated) {
			selected = s.real
		}
		for _, l := range t.lines {
			if !selected || !s.rows.MatchString(l.name) {
				continue
			}
			cells, err := l.measure()
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			if err := doc.set(&t, &l, cells); err != nil {
				return err
			}
		}
	}
	fmt.Printf("Total time: %v, %d CPUs, %s, %s/%s.\n", time.Since(began).Round(time.Second),
		runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
