package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/queue-proxy/queue-proxy/pkg/plugin"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// hiddenText contains a C0 and a C1 control character, a bidirectional override and a zero-width space.
const hiddenText = "a\x1b[2J\u009b31m\u202eb\u200bc"

// wantPrintable checks that a terminal shows all characters of an output.
func wantPrintable(t *testing.T, name, output string) {
	t.Helper()
	if i := strings.IndexFunc(output, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%s: got %q, want no invisible characters", name, output[i:])
	}
}

// podsWith returns an API server with two pods named good and bad. The pod bad serves page and
// statistics.
func podsWith(t *testing.T, page, statistics string) *apiServer {
	t.Helper()
	serve := func(page string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("format") == "json" {
				page = statistics
			}
			fmt.Fprint(w, page)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	bad := serve(page)
	return &apiServer{
		pods:  podItem("shop", "bad", "") + "," + podItem("shop", "good", ""),
		ports: map[string]string{"bad:9091": bad, "bad:9090": bad, "good:9091": serve("# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 1\n")},
	}
}

func TestInvalidNumbersOfPodDoNotAffectOtherPods(t *testing.T) {
	for name, c := range map[string]*apiServer{
		"statistics of 1e308": podsWith(t, "", `{"queue_average_concurrent_requests":1e308,"queue_requests_per_second_6s":1e308}`),
		"statistics of 1e999": podsWith(t, "", `{"queue_average_concurrent_requests":1,"queue_requests_per_second_6s":1e999}`),
		"metrics": podsWith(t, "# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 1\n# TYPE queue_proxy_running_requests gauge\nqueue_proxy_running_requests NaN\n"+
			"# TYPE queue_proxy_waiting_requests gauge\nqueue_proxy_waiting_requests -Inf\n# TYPE queue_proxy_concurrency_limit gauge\nqueue_proxy_concurrency_limit 1e308\n"+
			"# TYPE queue_proxy_request_failures_total counter\nqueue_proxy_request_failures_total{reason=\"app-reset\"} 1e308\n", ""),
	} {
		c.install(t)
		stdout, stderr, code := ran(t, "top", "-n", "shop", "-ojson", "--interval", "1s", "--sort=name")
		var got struct{ Sidecars []plugin.Row }
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got.Sidecars) != 2 || got.Sidecars[1].State != plugin.Ready {
			t.Errorf("%s: got code %d, %v, %q and %s, want a row for each pod", name, code, err, stderr, stdout)
			continue
		}
		bad := got.Sidecars[0]
		if bad.Rate != nil && *bad.Rate != 0 || bad.Waiting != nil || bad.Limit != nil || len(bad.Failures) > 0 {
			t.Errorf("%s: got %+v, want no number", name, bad)
		}
		if table, _, _ := ran(t, "top", "-n", "shop", "--interval", "1s"); len(table) > 400 {
			t.Errorf("%s: got %s, want short lines", name, table)
		}
	}
}

func TestOutputHasNoHiddenCharactersOfPods(t *testing.T) {
	podsWith(t, "# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 0\n# TYPE queue_proxy_not_ready_reason gauge\n"+
		"queue_proxy_not_ready_reason{reason=\""+hiddenText+"\"} 1\n", "").install(t)
	for _, args := range []string{"top -n shop -ojson --interval 1s", "top -n shop --interval 1s"} {
		stdout, stderr, code := ran(t, strings.Fields(args)...)
		wantPrintable(t, args, stdout+stderr)
		if code != 0 || !strings.Contains(stdout, "31m") {
			t.Errorf("%s: got code %d and %q, want the rest of the reason", args, code, stdout)
		}
	}
	script := filepath.Join(t.TempDir(), "why")
	harness.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho '"+hiddenText+"'\necho '"+hiddenText+"' >&2\n"), 0o700))
	(&apiServer{program: script}).install(t)
	for _, args := range []string{"why web", "why -o json web"} {
		stdout, stderr, code := ran(t, strings.Fields(args)...)
		wantPrintable(t, args, stdout+stderr)
		if code != 0 || !strings.Contains(stdout, "31m") || !strings.Contains(stderr, "31m") {
			t.Errorf("%s: got code %d, %q and %q, want the rest of the text", args, code, stdout, stderr)
		}
	}
}
