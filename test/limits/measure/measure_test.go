package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// loadUntil runs the clients until the result is ok. On a busy machine, the first run can be too
// short, so the next run is longer.
func loadUntil(t *testing.T, address string, clients group, ok func(result) bool) {
	t.Helper()
	var got result
	for lasts := 100 * time.Millisecond; lasts < harness.Patience; lasts *= 2 {
		if got = load(t.Context(), []group{clients}, address, 0, lasts); ok(got) {
			return
		}
	}
	t.Errorf("%v: got %+v", clients.paths, got)
}

func TestLoadCountsResponsesByStatus(t *testing.T) {
	a := app{workers: 4, took: time.Millisecond}
	server := httptest.NewServer(a.handler())
	defer server.Close()
	address := server.Listener.Addr().String()
	for path, share := range map[string]float64{"/": 0, "/error": 1, "/hold?for=1ms": 0, "/hold?for=x": 1} {
		loadUntil(t, address, group{n: 2, paths: []string{path}}, func(got result) bool {
			return got.failed == share && (got.goodput > 0) == (share == 0)
		})
	}
	got := load(t.Context(), []group{{n: 2, paths: []string{"/"}, aside: true}}, address, 0, 20*time.Millisecond)
	if got.goodput != 0 || got.failed != 0 {
		t.Errorf("got %+v for clients that are not measured", got)
	}
}

func TestAppServesPathsOfEachRow(t *testing.T) {
	for _, r := range realRows() {
		for _, g := range r.clients {
			for _, path := range g.paths {
				w := httptest.NewRecorder()
				if path = strings.Split(path, "?for")[0]; path != "/hold" {
					r.app.handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
				}
				if w.Code == 404 {
					t.Errorf("%s: no handler for %s", r.name, path)
				}
			}
		}
	}
}

func TestRejectionReturnsStatusOfRow(t *testing.T) {
	a := app{workers: 4, took: time.Millisecond, reject: 1, status: 429}
	server := httptest.NewServer(a.handler())
	defer server.Close()
	loadUntil(t, server.Listener.Addr().String(), short(8), func(got result) bool {
		return got.failed > 0 && got.goodput > 0
	})
}

func TestDocumentKeepsLinesOfOtherRows(t *testing.T) {
	const head = "\n#### T\n\n| row | result |\n|---|---|\n"
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("a\n"+beginMark+head+"| x: old description | old |\n| y | old |\n| removed | old |\n"+endMark+"b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tables := []table{{title: "T", header: "| row | result |", lines: []line{{cell: "x: description"}, {cell: "y"}}}}
	d, err := newDocument(page, tables)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.set(&tables[0], &tables[0].lines[1], "new"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if want := "a\n" + beginMark + head + "| x: description | old |\n| y | new |\n\n" + endMark + "b\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestDocumentWithoutMarkersReturnsError(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newDocument(page, nil); err == nil {
		t.Error("got no error")
	}
}

func TestSimulatedTableContainsEachRow(t *testing.T) {
	s := settings{rows: regexp.MustCompile("^pool of 1$"), simulated: true}
	for _, table := range simulatedTables() {
		for _, l := range table.lines {
			if !s.rows.MatchString(l.name) {
				continue
			}
			if got, _ := l.measure(); !strings.HasPrefix(got, "1 | ") || strings.Count(got, " | ") != 7 {
				t.Errorf("got cells %q, want 8 cells with the limit 1", got)
			}
		}
	}
}

func TestBatchesCompleteAllRequests(t *testing.T) {
	a := app{workers: 1, took: time.Millisecond, batch: 4}
	server := httptest.NewServer(a.handler())
	defer server.Close()
	loadUntil(t, server.Listener.Addr().String(), short(10), func(got result) bool {
		return got.failed == 0 && got.goodput > 0
	})
}
