//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSelectedRows(t *testing.T) {
	t.Setenv("BENCH_ROWS", "tls, grpc")
	s, err := readSettings()
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string]bool{"tls": true, "grpc": true, "plain": false} {
		if got := s.selects(group); got != want {
			t.Errorf("%s: got %v, want %v", group, got, want)
		}
	}
	t.Setenv("BENCH_ROWS", "TLS")
	if _, err := readSettings(); err == nil || !strings.Contains(err.Error(), "density") {
		t.Errorf("unknown group: got %v, want an error with all groups", err)
	}
	t.Setenv("BENCH_ROWS", "")
	if s, err = readSettings(); err != nil || !s.selects("plain") || len(s.Rows) > 0 {
		t.Errorf("no selection: got %v, %v, want all groups", s.Rows, err)
	}
}

func TestLoadsHaveGroupsAndRows(t *testing.T) {
	for _, l := range loads {
		if !slices.Contains(groups, l.group) {
			t.Errorf("%s: got group %q, want one of %v", l.id, l.group, groups)
		}
		findRow("cpu/" + l.id) // findRow panics if there is no such row
		findRow("rate/" + l.id)
		if l.latency {
			findRow("latency/" + l.id)
		}
	}
	for _, id := range pairedLoads {
		findRow("paired/" + id)
		findLoad(id)
	}
}

func TestReportContainsOnlySelectedRows(t *testing.T) {
	r := &Results{Settings: Settings{Rows: []string{"tls"}}, Cells: map[string]map[string]*Cell{}}
	r.add("cpu/tls-16", ours, 10)
	r.add("cpu/tls-16", haproxy, 20)
	var b bytes.Buffer
	printTable(&b, r)
	if !strings.Contains(b.String(), "0.50 × HAProxy") {
		t.Errorf("no target of the measured row in\n%s", b.String())
	}
	for _, other := range []string{"100 KB", "added", "not measured"} {
		if strings.Contains(b.String(), other) {
			t.Errorf("got %q, which belongs to a row that is not selected:\n%s", other, b.String())
		}
	}
}

func TestMedianIntervalOfSignTest(t *testing.T) {
	for _, c := range []struct {
		n         int
		low, high float64
		ok        bool
	}{
		{5, 0, 0, false}, // the probability of only heads or only tails is 6.3 %, which is too high
		{6, 1, 6, true},
		{8, 1, 8, true},
		{9, 2, 8, true},
		{15, 4, 12, true},
		{20, 6, 15, true},
		{100, 40, 61, true},
	} {
		values := make([]float64, c.n)
		for i := range values {
			values[i] = float64(c.n - i)
		}
		if low, high, ok := medianInterval(values); low != c.low || high != c.high || ok != c.ok {
			t.Errorf("values 1 to %d: got %v to %v, %v, want %v to %v, %v", c.n, low, high, ok, c.low, c.high, c.ok)
		}
	}
}

func TestPairedRowContainsMedianInterval(t *testing.T) {
	r := &Results{Cells: map[string]map[string]*Cell{}}
	for i := range 15 {
		r.add("paired/get-16", ours, 0.9+float64(i)/100)
	}
	var b bytes.Buffer
	printTable(&b, r)
	if want := "0.97 (95 %: 0.93 to 1.01, 15 pairs) × HAProxy"; !strings.Contains(b.String(), want) {
		t.Errorf("%q not found in\n%s", want, b.String())
	}
}

func TestPairsAreDistributedOverRounds(t *testing.T) {
	for _, rounds := range []int{1, 2, 5, 7, 40} {
		sum := 0
		s := Settings{Rounds: rounds, Pairs: 15}
		for n := range rounds {
			sum += pairsOfRound(s, n)
		}
		if sum != s.Pairs {
			t.Errorf("%d rounds: got %d pairs, want %d", rounds, sum, s.Pairs)
		}
	}
}

func TestMedianOfH2loadLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1795346303191260\t200\t323\n1795346303191262\t200\t353\n1795346303191262\t200\t9\n")
	if got, err := medianOfLog(name); err != nil || got != 323*time.Microsecond {
		t.Errorf("got %v, %v, want 323µs", got, err)
	}
	for _, odd := range []string{"", "179\t200\n", "179\t200\tx\n"} {
		write(odd)
		if got, err := medianOfLog(name); err == nil {
			t.Errorf("%q: got %v, want an error", odd, got)
		}
	}
}

func TestKnativeDoesNotServeHTTP2ToHTTP1(t *testing.T) {
	p := &peer{name: knative}
	for id, want := range map[string]bool{"get-16": true, "tls-16": true, "h2c-4x16": false, "h2tls-4x16": false, "grpc-1x64": true} {
		if got := p.serves(findLoad(id)); got != want {
			t.Errorf("%s: got %v, want %v", id, got, want)
		}
	}
}

func TestNoteOnSeveralRowsIsPrintedOnce(t *testing.T) {
	r := &Results{Cells: map[string]map[string]*Cell{}}
	for _, id := range []string{"h2c-1x1", "h2c-4x16"} {
		r.note("cpu/"+id, knative, notServed)
	}
	r.note("cpu/get-1", nginx, "a note")
	var b bytes.Buffer
	printTable(&b, r)
	for _, want := range []string{"  Knative: not measured because", "  GET 1 KB, 1 connection, nginx: a note"} {
		if got := strings.Count(b.String(), want); got != 1 {
			t.Errorf("got %q %d times, want once in\n%s", want, got, b.String())
		}
	}
}
