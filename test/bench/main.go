//go:build linux

// Command bench compares the queue-proxy with Knative's queue-proxy, a bare httputil.ReverseProxy, HAProxy and
// nginx. All of them run in front of the same app on the same machine. In each round, all programs are restarted and
// measured in turn, so that a change in the speed of the machine affects all of them. Compare the ratios of the
// medians, not the absolute numbers.
//
//	make bench                      install the peers, build and measure all rows (an hour)
//	BENCH_QUICK=1 make bench        measure one short round, to test this program
//	BENCH_ROWS=tls,grpc make bench  measure only these groups of rows (minutes)
//	BENCH_ROUNDS=9 BENCH_SECONDS=5  set the number of rounds and the duration of each load (default 5 and 3)
//	BENCH_BEFORE=FILE make bench    compare the build with another build of queue-proxy, in BENCH_ROUNDS pairs
//	bench -from results.json        write the report of an earlier run
//
// The program runs in its own network namespace, which requires root. It prints the tables and writes
// bin/bench/results.json. A complete run writes the medians and the missed goals in docs/performance.md, the plot
// docs/performance.svg, and the complete report test/bench/results.txt. If only the group idle is selected, the program
// writes only the table of idle pods. A quick run writes none of these files. If a measurement fails, for example because
// the status of a response is not 200, the report contains the error and the exit status is 1.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	from := flag.String("from", "", "results.json to read instead of a new measurement")
	bin := flag.String("bin", "bin/bench", "directory that contains the programs and results.json")
	doc := flag.String("doc", "docs/performance.md", "document to update")
	complete := flag.String("report", "test/bench/results.txt", "file for the complete report")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *from, *bin, *doc, *complete); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Settings contains the number and the duration of the measurements in a run.
type Settings struct {
	Rounds  int      `json:"rounds"`
	Seconds int      `json:"seconds"` // duration of each load
	Quick   bool     `json:"quick"`
	Starts  int      `json:"starts"`         // number of starts of each peer in a round; the median is recorded
	Pods    int      `json:"pods"`           // number of pods on one node, each with a sidecar
	Pairs   int      `json:"pairs"`          // total number of pairs in all rounds
	Idle    int      `json:"idle"`           // duration of the CPU measurement for an idle pod in seconds
	Rows    []string `json:"rows,omitempty"` // selected groups of rows; empty for all groups
}

// groups lists the groups of rows that can be selected.
var groups = []string{"plain", "tls", "h2", "grpc", "latency", "paired", "memory", "density", "start", "idle", "queue", "telemetry"}

// selects reports whether a group of rows is selected.
func (s *Settings) selects(group string) bool {
	return len(s.Rows) == 0 || slices.Contains(s.Rows, group)
}

// defaultRounds is the number of rounds if BENCH_ROUNDS is not set.
const defaultRounds = 5

// readSettings reads the environment variables BENCH_*.
func readSettings() (Settings, error) {
	s := Settings{Rounds: defaultRounds, Seconds: 3, Starts: 5, Pods: 40, Pairs: 15, Idle: 60}
	if v := os.Getenv("BENCH_QUICK"); v != "" && v != "0" {
		s = Settings{Rounds: 1, Seconds: 1, Starts: 1, Pods: 4, Pairs: 1, Idle: 30, Quick: true}
	}
	for name, n := range map[string]*int{"BENCH_ROUNDS": &s.Rounds, "BENCH_SECONDS": &s.Seconds} {
		v := os.Getenv(name)
		if v == "" {
			continue
		}
		var err error
		if *n, err = strconv.Atoi(v); err != nil || *n < 1 || *n > 1000 {
			return s, fmt.Errorf("%s: got %q, want an integer from 1 to 1000", name, v)
		}
	}
	for group := range strings.SplitSeq(os.Getenv("BENCH_ROWS"), ",") {
		if group = strings.TrimSpace(group); group == "" {
			continue
		}
		if !slices.Contains(groups, group) {
			return s, fmt.Errorf("BENCH_ROWS: %q is not in %s", group, strings.Join(groups, ", "))
		}
		s.Rows = append(s.Rows, group)
	}
	return s, nil
}

// command returns the command line that starts a run with these settings.
func (s *Settings) command() string {
	words := []string{"make bench"}
	if len(s.Rows) > 0 {
		words = append([]string{"BENCH_ROWS=" + strings.Join(s.Rows, ",")}, words...)
	}
	if s.Rounds != defaultRounds {
		words = append([]string{fmt.Sprintf("BENCH_ROUNDS=%d", s.Rounds)}, words...)
	}
	return strings.Join(words, " ")
}

// run performs the measurements, or reads the results of an earlier run from the file from, and
// writes the report.
func run(ctx context.Context, from, bin, doc, complete string) error {
	if from != "" {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		var r Results
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		return report(&r, doc, complete)
	}

	settings, err := readSettings()
	if err != nil {
		return err
	}
	shared := isolate()
	if shared != nil {
		fmt.Fprintln(os.Stderr, "bench:", shared)
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	machine, err := describeMachine(bin)
	if err != nil {
		return err
	}
	r := &Results{Time: time.Now().UTC().Truncate(time.Second), Machine: machine, Settings: settings, Cells: map[string]map[string]*Cell{}}
	before := os.Getenv("BENCH_BEFORE")
	b, err := newBench(bin, before, r, shared)
	if err != nil {
		return err
	}
	if before != "" {
		err = b.compareBuilds(ctx)
	} else {
		err = b.measure(ctx)
	}
	b.close() // close before the report is written, because report may fail
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bin, "results.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	if before != "" {
		printBuilds(os.Stdout, r)
		return r.firstFailure()
	}
	return report(r, doc, complete)
}

// report prints the tables. For a complete run, it writes the document and the complete report. It
// returns an error if a measurement failed. The document also contains this error.
func report(r *Results, doc, complete string) error {
	printTable(os.Stdout, r)
	written, err := writeDocument(r, doc, complete)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s: %s\n", doc, written)
	return r.firstFailure()
}

// openFiles is the limit on open files. No process of the comparison opens more files.
const openFiles = 10000

// raiseFileLimit raises the limit on open files for this process and its children, because a proxy
// has up to 1000 connections to clients and up to 1000 connections to the app.
func raiseFileLimit() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	l.Cur = max(l.Cur, openFiles)
	l.Max = max(l.Max, l.Cur)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("raise the limit on open files to %d: %w", openFiles, err)
	}
	return nil
}

// rotate returns the elements in a different order in each round, so that each element is first in
// some round.
func rotate[T any](all []T, round int) []T {
	n := round % len(all)
	return append(append([]T(nil), all[n:]...), all[:n]...)
}
