//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// counting returns polls at the intervals of a cluster that count their requests.
func counting() (polls []poll, counts []int) {
	intervals := []time.Duration{probeInterval, scrapeInterval, statisticsInterval}
	counts = make([]int, len(intervals))
	for i, interval := range intervals {
		polls = append(polls, poll{interval, func() error {
			counts[i]++
			return nil
		}})
	}
	return polls, counts
}

func TestIdlePodIsPolledAtClusterRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls, got := counting()
		if err := repeat(t.Context(), time.Minute, polls); err != nil {
			t.Fatal(err)
		}
		if want := []int{6, 4, 60}; !slices.Equal(got, want) {
			t.Errorf("got %v probes, scrapes and statistics in a minute, want %v", got, want)
		}
	})
}

func TestFailedPollIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls, got := counting()
		broken := errors.New("broken")
		polls[0].send = func() error { return broken }
		if err := repeat(t.Context(), time.Minute, polls); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
		if want := 4; got[1] != want {
			t.Errorf("got %d scrapes, want %d despite the failed probe", got[1], want)
		}
	})
}

func TestPollsEndWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		polls, got := counting()
		if err := repeat(ctx, time.Minute, polls); err != nil {
			t.Fatal(err)
		}
		if want := 20; got[2] != want {
			t.Errorf("got %d scrapes of statistics, want %d", got[2], want)
		}
	})
}

func TestSeriesAreCounted(t *testing.T) {
	const scrape = "# HELP a b\n# TYPE a counter\na_total 1\n\na_total{b=\"# c\"} 2\n# EOF\n"
	if got, want := countSeries([]byte(scrape)), 2; got != want {
		t.Errorf("got %d series, want %d", got, want)
	}
	if got := countSeries(nil); got != 0 {
		t.Errorf("got %d series of an empty scrape, want 0", got)
	}
}

func TestIdleRunKeepsOtherTables(t *testing.T) {
	resultsBegin, resultsEnd := markers(resultsName)
	idleBegin, idleEnd := markers("idle")
	doc := filepath.Join(t.TempDir(), "performance.md")
	before := "before\n" + resultsBegin + "results\n" + resultsEnd + "between\n" + idleBegin
	if err := os.WriteFile(doc, []byte(before+"old\n"+idleEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Results{Settings: Settings{Rounds: 3, Idle: 60, Rows: []string{"idle"}}, Cells: map[string]map[string]*Cell{}}
	r.add("idle/series", ours, 30)
	r.add("idle/series", knative, 120)
	if _, err := writeDocument(r, doc, filepath.Join(t.TempDir(), "results.txt")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	table, found := strings.CutPrefix(string(text), before)
	if !found || !strings.HasSuffix(table, idleEnd+"after\n") || strings.Contains(table, "old") {
		t.Errorf("got\n%s\nwant a new table of idle pods and no other changes", text)
	}
	for _, want := range []string{"| number of series on port 9091 | 30 | - | 120 | 0.25 |", "`BENCH_ROUNDS=3 BENCH_ROWS=idle make bench`"} {
		if !strings.Contains(table, want) {
			t.Errorf("%q not found in\n%s", want, table)
		}
	}
	r.Settings.Quick = true
	r.add("idle/series", ours, 1000)
	if _, err := writeDocument(r, doc, filepath.Join(t.TempDir(), "results.txt")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(doc); err != nil || string(got) != string(text) {
		t.Errorf("quick run: got\n%s\n%v, want no change", got, err)
	}
}
