package incidents

import (
	"cmp"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// An incident is a row of the table in docs/metrics.md with the code that provokes it.
type incident struct {
	name string // name in the form "group: name"

	settings     func(p *pod) []string // environment of the sidecar; can be nil
	files        int                   // limit on open files of the sidecar; 0 means 4096
	unreadOutput bool                  // the standard output of the sidecar is not read
	app          func(p *pod)          // starts the application; nil if no application accepts connections
	provoke      func(p *pod)          // starts the clients; can be nil

	// Expected signals. They are empty if the signal does not report the incident.
	alerts   []string             // names of all firing alerts, without the prefix QueueProxy; the table contains the first name
	metric   string               // series without the prefix queue_proxy_
	abnormal func(v float64) bool // whether a value of the metric reports the incident; if nil, values greater than 0 do
	log      []string             // parts of one log line; the table contains the last one
	problem  string               // name of the first problem on the status page
	why      string               // part of the output of queue-proxy why; if problem is empty, also part of the status page

	// silent contains the reason for each signal that does not report the incident, by name.
	silent map[string]string
}

// env returns settings that do not depend on the pod.
func env(settings ...string) func(*pod) []string { return func(*pod) []string { return settings } }

// respond starts an application with a handler.
func respond(h http.HandlerFunc) func(*pod) { return func(p *pod) { p.serve(h) } }

// ok starts an application that returns 200.
func ok(p *pod) { p.serve(func(http.ResponseWriter, *http.Request) {}) }

// hang returns when the client disconnects or the test ends.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// clients returns a function that starts n clients. Each client waits for the duration pause
// before each request.
func clients(n int, pause time.Duration) func(*pod) {
	return func(p *pod) { p.traffic(0, n, pause) }
}

func TestIncidents(t *testing.T) {
	queueProxy = filepath.Join(t.TempDir(), "queue-proxy")
	if out, err := exec.Command("go", "build", "-o", queueProxy, "../../cmd/queue-proxy").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	startPrometheus(t)
	for _, in := range append(slices.Clone(incidents), healthy) {
		t.Run(in.name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t, &in)
			if in.provoke != nil {
				in.provoke(p)
			}
			verify(t, p, &in)
		})
	}
}

// healthy is a pod without an incident.
var healthy = incident{
	name: "none", app: ok, settings: env("REQUEST_LOG=true"), provoke: clients(4, 5*time.Millisecond),
	metric: `requests_total{code="2xx",reason="ok"}`, abnormal: func(v float64) bool { return v > 100 },
}

// maxRow is the maximum length of a row in characters.
const maxRow = 120

// The table in docs/metrics.md contains the signals that the tests check.
func TestTableContainsEachIncident(t *testing.T) {
	var b strings.Builder
	var reasons []string
	b.WriteString("\n| incident | alert | metric | log | status page and `why` |\n|---|---|---|---|---|\n")
	group := ""
	for i := range incidents {
		before, name := group, ""
		if group, name, _ = strings.Cut(incidents[i].name, ": "); group != before {
			fmt.Fprintf(&b, "| **%s%s** | | | | |\n", strings.ToUpper(group[:1]), group[1:])
		}
		cells := []string{name}
		for _, c := range incidents[i].cells() {
			switch {
			case (c.text == "") != (c.silent != ""):
				t.Errorf("%s: got the cell %q and the reason %q for an empty cell, want one of them", incidents[i].name, c.text, c.silent)
			case c.text == "":
				c.text = fmt.Sprintf("none (%d)", number(&reasons, c.silent))
			}
			cells = append(cells, c.text)
		}
		row := "| " + strings.Join(cells, " | ") + " |"
		if len(row) > maxRow {
			t.Errorf("got %d characters in %s, want at most %d", len(row), row, maxRow)
		}
		b.WriteString(row + "\n")
	}
	b.WriteString("\n")
	for i, reason := range reasons {
		fmt.Fprintf(&b, "%d. %s\n", i+1, reason)
	}
	b.WriteString("\n")
	harness.Document(t, "../../docs/metrics.md", "incidents", b.String(), *update)
}

// A cell contains the text of a table cell. If the signal does not report the incident, text is empty and
// silent is the reason.
type cell struct{ text, silent string }

// cells returns the cells of the row that contain the expected signals.
func (in *incident) cells() []cell {
	alert, line := "", ""
	if len(in.alerts) > 0 {
		alert = in.alerts[0]
	}
	if len(in.log) > 0 {
		line = in.log[len(in.log)-1]
	}
	return []cell{
		{alert, in.silent["alert"]},
		{quote(in.metric), in.silent["metric"]},
		{quote(line), in.silent["log"]},
		{quote(cmp.Or(in.problem, in.why)), in.silent["status page"]},
	}
}

// quote formats s as code. It returns "" if s is empty.
func quote(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// number returns the position of s in the list, starting at 1. If the list does not contain s, number adds it.
func number(list *[]string, s string) int {
	if i := slices.Index(*list, s); i >= 0 {
		return i + 1
	}
	*list = append(*list, s)
	return len(*list)
}
