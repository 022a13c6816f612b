package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestALoadTellsWhatBecameOfItsRequests(t *testing.T) {
	for status, want := range map[int]seen{
		http.StatusOK:                  {},
		http.StatusServiceUnavailable:  {refused: 1},
		http.StatusInternalServerError: {failed: 1},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		defer server.Close()
		for _, l := range []load{{clients: 3}, {rate: 1000}} {
			got := l.do(t.Context(), server.Listener.Addr().String(), 50*time.Millisecond)
			if ok := status == http.StatusOK; (got.throughput > 0) != ok || (got.p99 > 0) != ok {
				t.Errorf("%d, %+v: got %+v, want times of 200 alone", status, l, got)
			}
			if got.refused != want.refused || got.failed != want.failed {
				t.Errorf("%d, %+v: got %+v, want %+v", status, l, got, want)
			}
		}
	}
}

func TestATableHasTheMediansOfAllRounds(t *testing.T) {
	closed := []seen{{throughput: 30, p50: 0.001, p99: 0.004}, {throughput: 10, p50: 0.003, p99: 0.005}, {throughput: 20, p50: 0.002, p99: 0.006}}
	open := []seen{{refused: 0.1}, {refused: 0.3, failed: 0.5}, {refused: 0.2}}
	got := table("pooled", 600, []results{{name: "adaptive", loads: [2][]seen{closed, open}, found: []int{7, 8, 9}}})
	for _, want := range []string{"pooled", "600 requests a second", "| adaptive: found 7 8 9 | 20 (10 to 30) | 2 ms | 5 ms | 0 (0 to 0) | 0 ms | 0 ms | 20 % | 0 % |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwant in it %q", got, want)
		}
	}
}

func TestBothAppsAnswer(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{pooled: newPool().serve, cpuBound: compress(text())} {
		w := httptest.NewRecorder()
		handler(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Errorf("%s: got %d, %q, want 200 and an answer", name, w.Code, w.Body)
		}
	}
}

func TestWhoWaitsTooLongForAConnectionFails(t *testing.T) {
	p := newPool()
	for range connections {
		p.free <- struct{}{} // in use
	}
	w := httptest.NewRecorder()
	p.serve(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusInternalServerError {
		t.Errorf("got %d, want 500", w.Code)
	}
}
