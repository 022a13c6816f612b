//go:build linux

package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRowsAreComplete(t *testing.T) {
	at := &parameters{Self: "/bin/true", Dir: t.TempDir(), Peers: "peers", App: "127.0.0.1:1", Target: "127.0.0.1:2", Scheme: "http"}
	names := map[string]bool{}
	for _, r := range rows() {
		if names[r.name] {
			t.Errorf("%s: duplicate row", r.name)
		}
		names[r.name] = true
		if len(r.loads) == 0 {
			t.Errorf("%s: no client", r.name)
		}
		for _, c := range append(r.loads, r.app) {
			for _, text := range c {
				got, err := at.fill(text)
				if err != nil {
					t.Errorf("%s: %q: unexpected error: %v", r.name, text, err)
				}
				if script := strings.HasPrefix(got, "peers/"); script {
					if _, err := os.Stat(got); err != nil {
						t.Errorf("%s: got %v, want a file", r.name, err)
					}
				}
			}
			if len(c) > 2 && c[1] == "client" && loads()[c[2]] == nil {
				t.Errorf("%s: unknown client %s", r.name, c[2])
			}
		}
	}
}

func TestResetConnectionsDoNotEndPeers(t *testing.T) {
	for args, want := range map[string]bool{"app http -listen=x": false, "client http-get": false, "-quick": true} {
		if got := slices.Contains(endSignals(strings.Fields(args)), os.Signal(syscall.SIGPIPE)); got != want {
			t.Errorf("%s: program exits after SIGPIPE: got %t, want %t", args, got, want)
		}
	}
}

func TestSelectionWithoutMatchReturnsError(t *testing.T) {
	for _, selection := range []string{"no such row", "no such row|unary", "unary|no such (row|one)", "unary|[|]"} {
		s := &settings{rows: regexp.MustCompile(selection)}
		if got, err := s.selected(rows()); err == nil {
			t.Errorf("%s: got %d rows, want an error", selection, len(got))
		}
	}
	for _, selection := range []string{"", "unary|bidirectional", "grpc-go (unary|bidirectional)"} {
		s := &settings{rows: regexp.MustCompile(selection)}
		if _, err := s.selected(rows()); err != nil {
			t.Errorf("%s: got %v, want rows", selection, err)
		}
	}
}

func TestInvalidArgumentReturnsError(t *testing.T) {
	for _, args := range [][]string{{"-variants", "squid"}, {"-seconds", "-1"}, {"-set", "CONTAINER_CONCURRENCY"}, {"row"}} {
		if _, err := readSettings(args); err == nil {
			t.Errorf("%s: got no error", args)
		}
	}
}

func TestVerdictWithoutDirectRun(t *testing.T) {
	l := line{outcomes: map[variant]*outcome{sidecar: {result: result{Requests: 1000}}}}
	if got := l.verdict(); got != alone {
		t.Errorf("got %s, want %s", got, alone)
	}
}

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		direct, sidecar map[string]int
		want            string
	}{
		"no failures":                         {nil, nil, passed},
		"failures of the sidecar only":        {nil, map[string]int{"502": 1}, rejected},
		"failures of the peer alone":          {map[string]int{"502": 1}, nil, passed},
		"the same failures":                   {map[string]int{"502": 10}, map[string]int{"502": 15}, passed},
		"more of the same failures":           {map[string]int{"502": 10}, map[string]int{"502": 25}, rejected},
		"failures of another kind than alone": {map[string]int{"502": 10}, map[string]int{"504": 1}, rejected},
	} {
		l := line{outcomes: map[variant]*outcome{
			direct:  {result: result{Requests: 1000, Failures: c.direct}},
			sidecar: {result: result{Requests: 1000, Failures: c.sidecar}},
		}}
		if got := l.verdict(); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestVerdictContainsConnectionCount(t *testing.T) {
	l := line{outcomes: map[variant]*outcome{direct: {connections: 8}, sidecar: {connections: 33}, haproxy: {connections: 2}}}
	if got := l.verdict(); got != crowded || l.failed() {
		t.Errorf("got %s, want %s", got, crowded)
	}
}

func TestResultsOfTools(t *testing.T) {
	for name, c := range map[string]struct {
		program, text string
		requests      int
		failures      map[string]int
	}{
		"h2load": {"/usr/bin/h2load", "requests: 100 total, 100 started, 100 done, 93 succeeded, 7 failed, 7 errored, 0 timeout\n" +
			"status codes: 93 2xx, 0 3xx, 0 4xx, 0 5xx\ntraffic: 1.80MB (1885000) total", 100, map[string]int{"h2load: failed": 7}},
		"wrk": {"wrk", "  500 requests in 3.00s, 60.5KB read\n  Socket errors: connect 0, read 2, write 0, timeout 0\n" +
			"  Non-2xx or 3xx responses: 4\n", 500, map[string]int{"wrk: read": 2, "wrk: status": 4}},
		"curl":       {"curl", "transfer 200 10 0\ntransfer 502 3 0\n", 2, map[string]int{"curl: status 502, exit code 0": 1}},
		"own client": {"node", "text\n{\"requests\":3,\"failures\":{\"x\":1}}\n", 3, map[string]int{"x": 1}},
		"nothing":    {"wrk", "", 0, map[string]int{"no request completed": 1}},
	} {
		r, err := parseResult(c.program, c.text)
		if err != nil {
			t.Fatalf("%s: unexpected error: %v", name, err)
		}
		if r.Requests != c.requests || !maps.Equal(r.Failures, c.failures) {
			t.Errorf("%s: got %d requests and %v, want %d and %v", name, r.Requests, r.Failures, c.requests, c.failures)
		}
	}
}

func TestToolRunsUntilMinimumOfRequests(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "h2load")
	script := "#!/bin/sh\necho 'requests: 100 total, 100 started, 100 done, 93 succeeded, 7 failed, 0 errored, 0 timeout'\nexit 1\n"
	if err := os.WriteFile(tool, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	l := &load{options: options{requests: 250, command: []string{tool}}, started: time.Now()}
	if err := runTool(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got, want := l.tally.r.Failures["h2load: failed"], 21; l.tally.requests() != 300 || got != want {
		t.Errorf("got %d requests and %d failures, want 300 and %d", l.tally.requests(), got, want)
	}
}

func TestToolWithoutRequestsEndsLoad(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "wrk")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	l := &load{options: options{requests: 1, command: []string{tool}}, started: time.Now()}
	if err := runTool(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := l.tally.r.failures(); got != 1 {
		t.Errorf("got %d failures, want 1", got)
	}
}

func TestTableIsWrittenBetweenMarkers(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+beginMarker+"\nold\n"+endMarker+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rep := &report{lines: []line{{row: &row{name: "a row"}, outcomes: map[variant]*outcome{}}}}
	if err := rep.writeTo(page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if strings.Contains(got, "old") || !strings.Contains(got, "| a row |") || !strings.HasSuffix(got, endMarker+"\nafter\n") {
		t.Errorf("got %q, want the table between the markers", got)
	}
}

func TestTableKeepsLinesOfOtherRows(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(beginMarker+"\n"+endMarker+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := rows()
	result := func(r *row, requests, failures int) report {
		out := &outcome{}
		out.Requests, out.Failures = requests, map[string]int{"a failure": failures}
		return report{lines: []line{{row: r, outcomes: map[variant]*outcome{direct: {}, sidecar: out}}}}
	}
	for _, r := range []report{result(&all[2], 30, 1), result(&all[0], 10, 0), result(&all[2], 20, 0)} {
		if err := r.writeTo(page); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	first, last := strings.Index(got, "| "+all[0].name+" | 0 / 10 /"), strings.Index(got, "| "+all[2].name+" | 0 / 20 /")
	if first < 0 || last < first || strings.Contains(got, "0 / 30 /") || !strings.Contains(got, "all: 2 rows** | | | | **0 failed") {
		t.Errorf("got %q, want the latest line of each row, in row order", got)
	}
}

func TestGrowth(t *testing.T) {
	flat := []float64{1, 90, 100, 100, 100, 100, 101, 102}
	for name, c := range map[string]struct {
		values []float64
		want   int
	}{
		"flat":            {flat, 0},
		"grows":           {[]float64{1, 1, 100, 120, 140, 160, 180, 200}, 1},
		"too few samples": {flat[:4], 1},
	} {
		s := series{}
		for _, gauge := range growthGauges() {
			s[gauge] = flat
		}
		s[connectionsGauge] = c.values
		if got, _ := s.growth(); len(got) != c.want {
			t.Errorf("%s: got %q, want %d", name, got, c.want)
		}
	}
}
