package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestLoadCountsResponsesByStatus(t *testing.T) {
	a := app{workers: 4, took: time.Millisecond}
	server := httptest.NewServer(a.handler())
	defer server.Close()
	address := server.Listener.Addr().String()
	for path, want := range map[string]bool{"/": true, "/error": false, "/hold?for=1ms": true, "/hold?for=x": false} {
		got := load(t.Context(), []group{{n: 2, paths: []string{path}}}, address, 0, 100*time.Millisecond)
		if ok := got.goodput > 0 && got.failed < 0.5; ok != want {
			t.Errorf("%s: got %+v, want success %v", path, got, want)
		}
	}
	got := load(t.Context(), []group{{n: 2, paths: []string{"/"}, aside: true}}, address, 0, 20*time.Millisecond)
	if got.goodput != 0 || got.failed != 0 {
		t.Errorf("got %+v of clients that are not measured", got)
	}
}

func TestClientsOfEachRowReachTheirApplication(t *testing.T) {
	for _, r := range realRows() {
		for _, g := range r.clients {
			for _, path := range g.paths {
				w := httptest.NewRecorder()
				if path = strings.Split(path, "?for")[0]; path != "/hold" {
					r.app.handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
				}
				if w.Code == 404 {
					t.Errorf("%s: got no handler for %s", r.name, path)
				}
			}
		}
	}
}

func TestRejectionsHaveStatusOfRow(t *testing.T) {
	a := app{workers: 4, took: time.Millisecond, reject: 1, status: 429}
	server := httptest.NewServer(a.handler())
	defer server.Close()
	got := load(t.Context(), []group{short(8)}, server.Listener.Addr().String(), 0, 200*time.Millisecond)
	if got.failed == 0 || got.goodput == 0 {
		t.Errorf("got %+v, want successes and rejections", got)
	}
}

func TestTablesAreWrittenBetweenMarks(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("a\n"+beginMark+"old\n"+endMark+"b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(page, "new\n"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if want := "a\n" + beginMark + "new\n" + endMark + "b\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if err := write(filepath.Join(t.TempDir(), "missing"), ""); err == nil {
		t.Error("got no error of a missing document")
	}
}

func TestSimulatedTableHasLineForEachRow(t *testing.T) {
	got := simulatedTables(regexp.MustCompile("^pool of 1$"))
	if n := strings.Count(got, "| pool of 1: 1 worker, 10 ms | 1 | "); n != 1 {
		t.Errorf("got %d lines of the row, want 1\n%s", n, got)
	}
}
