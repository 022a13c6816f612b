package metrics

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// go test ./pkg/metrics -update writes what is made from the code: the tables of
// docs/metrics.md and deploy/monitoring/prometheusrule.yaml.
var update = flag.Bool("update", false, "rewrite what is made from the code")

const guide = "../../docs/metrics.md"

// everything is metrics with a set and a merge, after requests by which every metric has
// got a series.
func everything(t *testing.T, names string) *Metrics {
	t.Helper()
	o := options(names)
	if names == "default" || names == "all" { // whose table has the metrics of a merge
		o.Merge.Port = 1
	}
	m := newMetrics(t, o)
	observeEveryKind(m)
	unreachable := observed("GET", 1, 1, 502, queue.AppUnreachable)
	unreachable.FirstByte = time.Time{}
	m.Observe(&unreachable)
	probe := observed("GET", 1, 1, 200, queue.OK)
	probe.Kind = header.KubeletRequest
	m.Observe(&probe)
	m.Listening(time.Now())
	m.Answered(time.Now(), true)
	return m
}

// A shown metric is what a scrape tells of one. Those of client_golang's collectors are
// not ours.
type shown struct {
	name, kind, help string
	labels           []string
	ours             bool
}

// shownBy are the metrics of a set, in the order of their names.
func shownBy(t *testing.T, names string) (all []shown) {
	t.Helper()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40)) // which has a metric
	m := everything(t, names)
	gathered, err := m.gatherer.Gather()
	harness.NoError(t, err)
	for _, f := range gathered {
		labels := map[string]bool{}
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		_, ours := m.registry.names[f.GetName()]
		all = append(all, shown{
			f.GetName(), strings.ToLower(f.GetType().String()), f.GetHelp(), slices.Sorted(maps.Keys(labels)), ours,
		})
	}
	return all
}

func TestTheGuideHasEveryMetricWithItsLabels(t *testing.T) {
	for _, part := range []struct{ name, table string }{
		{"default", metricTable(shownBy(t, "default"), true)},
		{"process", metricTable(shownBy(t, "default"), false)},
		{"knative-1.18", metricTable(shownBy(t, "knative-1.18"), true)},
		{"knative-head", metricTable(shownBy(t, "knative-head"), true)},
		{"labels", labelTable()},
		{"reasons", reasonTable()},
	} {
		harness.Document(t, guide, part.name, "\n"+part.table+"\n", *update)
	}
}

// metricTable is metrics as the guide shows them: ours, or the others.
func metricTable(all []shown, ours bool) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range all {
		if f.ours == ours {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, code(f.labels), f.help)
		}
	}
	return b.String()
}

func limitReasons() (words []string) {
	for _, r := range adapt.Reasons() {
		words = append(words, string(r))
	}
	return words
}

// labelTable is the closed lists of our own labels.
func labelTable() string {
	var b strings.Builder
	b.WriteString("| label | values |\n|---|---|\n")
	for _, l := range []struct {
		name   string
		values []string
	}{{"code", classes}, {"method", methods}, {"protocol", protocols}, {"reason", reasons}, {"reason of the limit", limitReasons()}} {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, code(l.values))
	}
	return b.String()
}

// blame says whose error a reason is, and what is done about it.
var blame = map[string]string{
	"ok":                     "Nobody's: what the client got is what the user container said. With `code=\"5xx\"` it is the application's own error.",
	"queue-full":             "Capacity: more requests at once than may run and wait. Scale out, or raise the limits.",
	"queue-timeout":          "Capacity: no slot became free in time.",
	"overload":               "Capacity, or an attack: the memory budget for requests is exhausted. See `queue_proxy_request_memory_bytes`.",
	"not-ready":              "The user container's: see `queue_proxy_not_ready_reason`.",
	"draining":               "The pod's end: the drain's deadline cut it. The deadline or the request is too long.",
	"request-timeout":        "The user container's, or the queue's: the whole took too long. Compare queue wait with app duration.",
	"response-start-timeout": "The user container's, or the queue's: no first byte in time.",
	"idle-timeout":           "Either side's: nothing moved for too long.",
	"app-unreachable":        "The user container's: nothing listens at its port. It crashed or restarts.",
	"local":                  "Caused by the sidecar: it had no file descriptor, no local port or no memory for a connection to the user container. `queue-proxy why` and the log contain the resource.",
	"app-reset":              "The user container's: it broke the connection off. Crash, out of memory, or its own timeout.",
	"app-garbage":            "The user container's: what it sent is not HTTP.",
	"bad-request":            "Caused by the client: its request is not valid, or the body or the header section is longer than permitted.",
	"client-gone":            "The client's: it closed the connection or the stream before the response was complete, or the `grpc-timeout` of its call expired.",
	"other":                  "A defect of this program: the list of reasons is out of date.",
}

// reasonTable is what each reason means to somebody who was woken by it.
func reasonTable() string {
	var b strings.Builder
	b.WriteString("| reason | status | whose error |\n|---|---|---|\n")
	for i, word := range reasons {
		status := "-"
		for reason := range queue.NumReasons {
			if placeOf[reason] == i && reason > queue.OK {
				status = strings.TrimPrefix(status+fmt.Sprintf(", %d", reason.Status()), "-, ")
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", word, status, blame[word])
	}
	return b.String()
}

func TestEveryReasonIsExplained(t *testing.T) {
	for _, word := range reasons {
		if blame[word] == "" {
			t.Errorf("%s: got no word on whose error it is, want one", word)
		}
	}
	harness.Equal(t, len(blame), len(reasons), "explanations")
}

// The tables are made of what a scrape shows, so that must be everything.
func TestEveryMetricHasASeriesInTheGuidesTables(t *testing.T) {
	m := everything(t, "all")
	seen := map[string]bool{}
	for _, f := range shownBy(t, "all") {
		seen[f.name] = true
	}
	for name := range m.registry.names {
		if !seen[name] {
			t.Errorf("%s: got no series, want one", name)
		}
	}
}

// code is a list of words, each in a font of its own.
func code(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "`" + strings.Join(words, "`, `") + "`"
}

func contents(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	harness.NoError(t, err)
	return string(text)
}
