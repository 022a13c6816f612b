//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// A variant is the path from the clients to the servers.
type variant string

const (
	direct  variant = "direct"
	sidecar variant = "sidecar"
	limited variant = "sidecar, limit 4"
	haproxy variant = "HAProxy"
)

// A suite is a set of cases that run in each of the variants.
type suite struct {
	name     string
	quick    bool // only used with -quick, because another suite contains the same cases
	variants []variant
	run      func(ctx context.Context, e *environment, v variant) (*result, error)
}

// A result is the outcome of a suite in one variant.
type result struct {
	cases  int               // number of cases that ran
	failed map[string]string // failure of each failed case, by name
}

// fail records the failure of a case. A nil error is not a failure.
func (r *result) fail(name string, err error) {
	if err == nil {
		return
	}
	if r.failed == nil {
		r.failed = map[string]string{}
	}
	r.failed[name] = err.Error()
}

// suites returns all suites.
func suites() []suite {
	all := []variant{direct, sidecar, limited, haproxy}
	return []suite{
		{name: "connectrpc conformance: server", variants: all, run: serverMode(allProtocols, false)},
		{name: "connectrpc conformance: server with another version of HTTP", variants: all, run: serverMode(bothVersions, true)},
		{name: "connectrpc conformance: client", variants: all, run: clientMode(allProtocols)},
		{name: "connectrpc conformance: gRPC server over h2c and TLS", variants: all[:2], quick: true, run: serverMode(grpcOnly, false)},
		{name: "grpc-go interoperability", variants: all, run: runInterop},
		{name: "WebSocket", variants: all, run: runWebSocket(overTCP)},
		{name: "WebSocket over TLS", variants: all, run: runWebSocket(overTLS)},
		{name: "WebSocket over HTTP/2", variants: all, run: runWebSocket(overHTTP2)},
	}
}

// An environment contains the paths of a run.
type environment struct {
	sidecar  string // path of the queue-proxy program
	programs string // directory with the programs of the suites
	dir      string // directory of the run
}

// settings are the options of the command.
type settings struct {
	environment
	page  string         // document with the table
	names *regexp.Regexp // suites to run
	quick bool           // short selection for CI
	write bool           // write the table into the document
	list  bool           // list the suites instead of running them
}

func readSettings(args []string) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("suites", flag.ContinueOnError)
	selection := f.String("run", "", "run the suites with names that match this regular expression")
	f.BoolVar(&s.quick, "quick", false, "run only the gRPC cases of connectrpc, without HAProxy")
	f.BoolVar(&s.write, "write", false, "write the results to the table in the document")
	f.BoolVar(&s.list, "list", false, "list the suites")
	f.StringVar(&s.sidecar, "sidecar", "bin/queue-proxy", "path of the queue-proxy program")
	f.StringVar(&s.programs, "programs", "bin/suites-programs", "directory that contains the programs of the suites")
	f.StringVar(&s.page, "page", "docs/reliability.md", "document that contains the table")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%s: unknown argument", f.Arg(0))
	}
	var err error
	if s.names, err = regexp.Compile(*selection); err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	if s.write && (*selection != "" || s.quick) {
		return nil, errors.New("-write requires all suites")
	}
	for _, path := range []*string{&s.sidecar, &s.programs, &s.page} {
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("path: %w", err)
		}
	}
	return s, nil
}

// selected returns the suites to run. It returns an error if no suite is selected.
func (s *settings) selected(all []suite) ([]suite, error) {
	var chosen []suite
	for _, u := range all {
		if s.names.MatchString(u.name) && u.quick == s.quick {
			chosen = append(chosen, u)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %s: no suite matches", s.names)
	}
	return chosen, nil
}

// runAll runs the selected suites, prints the table, and returns an error if a case fails
// because of the sidecar.
func runAll(ctx context.Context, args []string) error {
	s, err := readSettings(args)
	if err != nil {
		return err
	}
	chosen, err := s.selected(suites())
	if err != nil {
		return err
	}
	if s.list {
		for _, u := range chosen {
			fmt.Println(u.name)
		}
		return nil
	}
	if s.dir, err = os.MkdirTemp("", "suites"); err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	defer os.RemoveAll(s.dir)
	if err := writeCertificate(s.dir); err != nil {
		return err
	}
	rep := &report{}
	for _, u := range chosen {
		l, err := u.compare(ctx, &s.environment, os.Stdout)
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		rep.lines = append(rep.lines, l)
	}
	fmt.Printf("\n%s\n", rep.table())
	if s.write {
		if err := rep.writeTo(s.page); err != nil {
			return err
		}
	}
	return rep.verdict()
}

// compare runs the suite in its variants and prints the progress.
func (u *suite) compare(ctx context.Context, e *environment, progress io.Writer) (*line, error) {
	l := &line{name: u.name, results: map[variant]*result{}}
	for _, v := range u.variants {
		begun := time.Now()
		r, err := u.run(ctx, e, v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v, err)
		}
		if r.cases == 0 {
			return nil, fmt.Errorf("%s: no cases were run", v)
		}
		l.results[v] = r
		fmt.Fprintf(progress, "%s, %s: %d of %d cases passed, %.0f s\n", u.name, v, r.passed(), r.cases, time.Since(begun).Seconds())
		for _, name := range r.failedNames() {
			fmt.Fprintf(progress, "  FAILED %s: %s\n", name, r.failed[name])
		}
	}
	return l, nil
}
