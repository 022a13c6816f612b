// The command measure compares the adaptive limit with fixed limits and writes the tables
// into a document.
//
//	make limits
//
// The first table is simulated. For the second one, the command starts an application, the
// sidecar and clients for each limit. It prints the total time.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"time"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "app" {
		exit(serve(os.Args[2], os.Args[3]))
	}
	var s settings
	flag.StringVar(&s.proxy, "proxy", "bin/queue-proxy", "the program queue-proxy")
	flag.DurationVar(&s.lasts, "time", 30*time.Second, "duration of a measurement")
	flag.DurationVar(&s.warm, "warm", 30*time.Second, "time before the measurement of the adaptive limit")
	flag.StringVar(&s.page, "write", "", "the document into which the tables are written")
	rows := flag.String("run", "", "run the rows whose name matches this regular expression")
	only := flag.String("only", "", "simulated or real: only this table")
	flag.Parse()
	var err error
	if s.rows, err = regexp.Compile(*rows); err != nil {
		exit(fmt.Errorf("-run: %w", err))
	}
	s.simulated, s.real = *only != "real", *only != "simulated"
	if s.page != "" && (*rows != "" || *only != "") {
		exit(fmt.Errorf("-write: requires all rows and both tables"))
	}
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

// run makes the tables.
func run(ctx context.Context, s *settings) error {
	began := time.Now()
	var b strings.Builder
	if s.simulated {
		b.WriteString(simulatedTables(s.rows))
	}
	if s.real {
		table, err := realTable(ctx, s)
		b.WriteString(table)
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(&b, "\nTotal time: %v, %d CPUs, %s, %s/%s.\n", time.Since(began).Round(time.Second), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Print(b.String())
	if s.page == "" {
		return nil
	}
	return write(s.page, b.String())
}

// Marks of the part of the document that is written.
const (
	beginMark = "<!-- begin: make limits -->\n"
	endMark   = "<!-- end: make limits -->\n"
)

// write replaces the part of the document between the marks.
func write(page, tables string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s: no marks of make limits", page)
	}
	return os.WriteFile(page, []byte(before+beginMark+tables+endMark+after), 0o644)
}
