//go:build linux

package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Settings are the options of the comparison.
type settings struct {
	self    string         // path of this program
	sidecar string         // path of the sidecar
	modules string         // directory node_modules
	page    string         // file with the table
	seconds int            // duration of a row; 0 means defaultSeconds, extended until the minimum number of requests is reached
	quick   bool           // short selection for CI, without HAProxy
	hour    bool           // run only the row that takes an hour, and only with the sidecar
	write   bool           // write the lines of the rows into the table
	list    bool           // list the rows instead of running them
	only    string         // regular expression that selects the variants to run
	rows    *regexp.Regexp // rows to run

	sidecarSettings []string // environment of the sidecar
}

const (
	defaultSeconds = 20
	quickSeconds   = 3
)

func readSettings(args []string) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("endurance", flag.ContinueOnError)
	selection := f.String("run", "", "run the rows with names that match this regular expression")
	f.IntVar(&s.seconds, "seconds", 0, "duration of each row in seconds; 0 means 20 s and a minimum number of requests")
	f.Func("set", "setting of the sidecar, for example CONCURRENCY_MODE=adaptive; the flag can be repeated", func(setting string) error {
		if !strings.Contains(setting, "=") {
			return errors.New("not in the form NAME=VALUE")
		}
		s.sidecarSettings = append(s.sidecarSettings, setting)
		return nil
	})
	f.BoolVar(&s.quick, "quick", false, "run a subset of the rows, without HAProxy")
	f.BoolVar(&s.hour, "hour", false, "run only the row that takes an hour, and only with the sidecar")
	f.BoolVar(&s.write, "write", false, "write the results to the table in the file")
	f.BoolVar(&s.list, "list", false, "list the rows")
	f.StringVar(&s.only, "variants", "", "run only variants (direct, sidecar, HAProxy, nginx) that match this regular expression")
	f.StringVar(&s.sidecar, "sidecar", "bin/queue-proxy", "path of the queue-proxy program")
	f.StringVar(&s.modules, "modules", "bin/endurance-peers/node_modules", "directory that contains the npm packages")
	f.StringVar(&s.page, "page", "test/endurance/results.txt", "file that contains the table")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%s: unknown argument", f.Arg(0))
	}
	var err error
	if s.rows, err = regexp.Compile(*selection); err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	if s.seconds < 0 {
		return nil, errors.New("-seconds: must not be negative")
	}
	if s.only != "" {
		pattern, err := regexp.Compile(s.only)
		if err != nil {
			return nil, fmt.Errorf("-variants: %w", err)
		}
		if !slices.ContainsFunc([]variant{direct, sidecar, haproxy, nginx}, func(v variant) bool { return pattern.MatchString(string(v)) }) {
			return nil, fmt.Errorf("-variants %s: no variant matches", s.only)
		}
	}
	if s.write && (s.quick || s.hour || s.only != "") {
		return nil, errors.New("-write requires all variants of the rows")
	}
	for _, path := range []*string{&s.sidecar, &s.modules, &s.page} {
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("path: %w", err)
		}
	}
	s.self, err = os.Executable()
	return s, err
}

// duration returns the duration of a row in seconds.
func (s *settings) duration(r *row) int {
	switch {
	case r.seconds > 0:
		return r.seconds
	case s.seconds > 0:
		return s.seconds
	case s.quick:
		return quickSeconds
	case r.hour:
		return 3600
	}
	return defaultSeconds
}

// minimum returns the minimum number of requests of a row. 0 means no minimum.
func (s *settings) minimum(r *row) int {
	if s.seconds > 0 || s.quick || r.seconds > 0 {
		return 0
	}
	return cmp.Or(r.requests, fewRequests)
}

// selected returns the rows to run. It returns an error if no row is selected.
func (s *settings) selected(all []row) ([]row, error) {
	var chosen []row
	for _, r := range all {
		if s.rows.MatchString(r.name) && (r.quick || !s.quick) && r.hour == s.hour {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %s: no row matches", s.rows)
	}
	for _, part := range alternatives(s.rows.String()) {
		pattern, err := regexp.Compile(part)
		if err != nil {
			return nil, fmt.Errorf("-run: %w", err)
		}
		if !slices.ContainsFunc(chosen, func(r row) bool { return pattern.MatchString(r.name) }) {
			return nil, fmt.Errorf("-run %s: no row matches", part)
		}
	}
	return chosen, nil
}

// alternatives splits a regular expression at each "|" outside of groups and character classes.
func alternatives(pattern string) (parts []string) {
	begin, depth, class := 0, 0, false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '[':
			class = true
		case c == ']':
			class = false
		case class:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			parts, begin = append(parts, pattern[begin:i]), i+1
		}
	}
	return append(parts, pattern[begin:])
}

// variants returns the variants of a row.
func (s *settings) variants(r *row) ([]variant, error) {
	other := haproxy
	if r.nginx {
		other = nginx
	}
	all := []variant{direct, sidecar, other}
	switch {
	case s.quick:
		all = all[:2]
	case s.hour:
		all = all[1:2]
	}
	if s.only == "" {
		return all, nil
	}
	pattern, err := regexp.Compile(s.only)
	if err != nil {
		return nil, fmt.Errorf("-variants: %w", err)
	}
	var chosen []variant
	for _, v := range all {
		if pattern.MatchString(string(v)) {
			chosen = append(chosen, v)
		}
	}
	return chosen, nil
}

// compare runs the selected rows, prints the table, and returns an error if a row fails.
func compare(ctx context.Context, args []string) error {
	s, err := readSettings(args)
	if err != nil {
		return err
	}
	chosen, err := s.selected(rows())
	if err != nil {
		return err
	}
	if s.list {
		for _, r := range chosen {
			fmt.Println(r.name)
		}
		return nil
	}
	if !inNamespace() {
		return enterNamespace(ctx)
	}
	if err := enableLoopback(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "endurance")
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o755), writeCertificate(dir), writeFiles(dir), copyFiles(peerFiles, dir)); err != nil {
		return err
	}
	report, err := runRows(ctx, dir, chosen, s)
	if err != nil {
		return err
	}
	fmt.Println(report.table(""))
	return report.verdict()
}

// copyFiles copies the embedded files into dir.
func copyFiles(files embed.FS, dir string) error {
	if err := os.CopyFS(dir, fs.FS(files)); err != nil {
		return fmt.Errorf("peer files: %w", err)
	}
	return nil
}

// runRows runs the rows one after the other and prints the progress.
func runRows(ctx context.Context, dir string, chosen []row, s *settings) (*report, error) {
	rep := &report{}
	for i := range chosen {
		r := &chosen[i]
		line := line{row: r, outcomes: map[variant]*outcome{}}
		variants, err := s.variants(r)
		if err != nil {
			return nil, err
		}
		for _, v := range variants {
			begun := time.Now()
			out, err := runRow(ctx, dir, r, v, s)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", r.name, v, err)
			}
			line.outcomes[v] = out
			out.print(fmt.Sprintf("%s, %s, %.0f s", r.name, v, time.Since(begun).Seconds()))
		}
		fmt.Printf("%s: %s\n\n", r.name, line.verdict())
		rep.lines = append(rep.lines, line)
		if s.write { // write the table after each row, so that a run that is interrupted keeps its results
			if err := rep.writeTo(s.page); err != nil {
				return nil, err
			}
		}
	}
	return rep, nil
}
