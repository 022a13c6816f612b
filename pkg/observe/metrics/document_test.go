package metrics

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// go test ./pkg/observe/metrics -update writes the generated files: the tables of docs/metrics.md, and
// deploy/monitoring/prometheusrule.yaml.
var update = flag.Bool("update", false, "write the generated files")

const guide = "../../../docs/metrics.md"

// everything returns a Metrics in which each metric of the set has a series. The sets "default" and "all"
// include the metric of merged scrapes.
func everything(t *testing.T, names string) *Metrics {
	t.Helper()
	o := options(names)
	if names == "default" || names == "all" {
		o.Merge.Port = 1
	}
	m := newMetrics(t, o)
	observeEveryKind(m)
	unreachable := observed("GET", 1, 1, 502, observation.AppUnreachable)
	unreachable.FirstByte = time.Time{}
	m.Observe(&unreachable)
	probe := observed("GET", 1, 1, 200, observation.OK)
	probe.Kind = observation.KubeletRequest
	m.Observe(&probe)
	call := observed("POST", 2, 0, 200, observation.OK)
	call.RPC = observation.GRPCMissing
	m.Observe(&call)
	m.Listening(time.Now())
	m.Answered(time.Now(), true)
	return m
}

// A shown describes a metric in a scrape. ours is false for the metrics of the collectors of client_golang.
type shown struct {
	name, kind, help string
	labels           []string
	ours             bool
}

// shownBy returns the metrics of a set, sorted by name.
func shownBy(t *testing.T, names string) (all []shown) {
	t.Helper()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40)) // the metric of the memory limit is absent without a limit
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

func TestGuideListsAllMetricsAndLabels(t *testing.T) {
	for _, part := range []struct{ name, table string }{
		{"default", metricTable(ownMetrics(shownBy(t, "default")))},
		{"process", collectorNames(shownBy(t, "default"))},
		{"knative-1.18", nameList(withoutMemStats(ownMetrics(shownBy(t, "knative-1.18")))) + ", and `" + memStatsPrefix + "*`\n"},
		{"knative-1.19", nameList(except(ownMetrics(shownBy(t, "knative-1.19")), shownBy(t, "knative-head"))) + "\n"},
		{"knative-head", nameList(ownMetrics(shownBy(t, "knative-head"))) + "\n"},
		{"labels", labelTable()},
		{"reasons", reasonTable()},
	} {
		harness.Document(t, guide, part.name, "\n"+part.table+"\n", *update)
	}
}

// ownMetrics returns the metrics that this package defines.
func ownMetrics(all []shown) []shown {
	return slices.DeleteFunc(slices.Clone(all), func(f shown) bool { return !f.ours })
}

// except returns the metrics with names that others does not contain.
func except(all, others []shown) []shown {
	return slices.DeleteFunc(slices.Clone(all), func(f shown) bool {
		return slices.ContainsFunc(others, func(o shown) bool { return o.name == f.name })
	})
}

// collectorNames returns the metric names of the client_golang collectors, without their prefix. It
// does not list the metrics of the process, because all of them are exported.
func collectorNames(all []shown) string {
	clients := slices.DeleteFunc(slices.Clone(all), func(f shown) bool {
		return f.ours || strings.HasPrefix(f.name, "queue_proxy_process_")
	})
	return strings.ReplaceAll(nameList(clients), "`queue_proxy_", "`") + ", and `process_*`\n"
}

func nameList(all []shown) string {
	var names []string
	for _, f := range all {
		names = append(names, f.name)
	}
	return code(names)
}

// memStatsPrefix is the prefix of the metrics in memStats.
const memStatsPrefix = "revision_go_"

func withoutMemStats(all []shown) []shown {
	return slices.DeleteFunc(slices.Clone(all), func(f shown) bool { return strings.HasPrefix(f.name, memStatsPrefix) })
}

// meaning returns the cell for a help text. It contains the first sentence without "Number of" and the
// final period.
func meaning(help string) string {
	help, _, _ = strings.Cut(help, ". ")
	if rest, ok := strings.CutPrefix(help, "Number of "); ok && !strings.HasPrefix(rest, "times ") {
		help = strings.ToUpper(rest[:1]) + rest[1:]
	}
	return strings.TrimSuffix(help, ".")
}

// metricTable returns a table of metrics, grouped by type.
func metricTable(all []shown) string {
	var b strings.Builder
	b.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, kind := range []string{"counter", "histogram", "gauge"} {
		fmt.Fprintf(&b, "| **%ss** | | |\n", strings.ToUpper(kind[:1])+kind[1:])
		for _, f := range all {
			if f.kind == kind {
				fmt.Fprintf(&b, "| `%s` |%s | %s |\n", f.name, strings.TrimRight(" "+code(f.labels), " "), meaning(f.help))
			}
		}
	}
	return b.String()
}

// labelTable returns a table with the values of the labels, except for the label reason.
func labelTable() string {
	var b strings.Builder
	b.WriteString("| label | values |\n|---|---|\n")
	for _, l := range []struct {
		name   string
		values []string
	}{{"code", classes[:]}, {"method", methods}, {"protocol", protocols}} {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, code(l.values))
	}
	return b.String()
}

// blame describes the cause of each reason.
var blame = map[string]string{
	"ok":                     "None. A 5xx status is an error of the application.",
	"queue-full":             "Capacity: too many requests.",
	"queue-timeout":          "Capacity: no slot became free in time.",
	"overload":               "Capacity or an attack: the [memory budget](bounds.md#memory-budget) is exhausted.",
	"not-ready":              "User container: see `queue_proxy_not_ready_reason`.",
	"draining":               "Shutdown: the drain deadline expired, or only streams remained.",
	"request-timeout":        "User container or queue: the request took too long.",
	"response-start-timeout": "User container or queue: no first byte in time.",
	"idle-timeout":           "User container or client: no data for `REVISION_IDLE_TIMEOUT_SECONDS`.",
	"client-slow":            "Client: it sent the body or read the response too slowly.",
	"app-unreachable":        "User container: nothing listens on its port.",
	"local":                  "Sidecar: no file descriptor, local port or memory for a connection.",
	"app-reset":              "User container: it closed the connection, for example because of a crash.",
	"app-garbage":            "User container: its response is not HTTP.",
	"bad-request":            "Client: the request is invalid, or its body or header section is too long.",
	"client-gone":            "Client: it closed the connection or stream early, or its `grpc-timeout` expired.",
	"other":                  "Sidecar: a defect.",
}

// reasonTable returns a table with the values of the label reason.
func reasonTable() string {
	var b strings.Builder
	b.WriteString("| reason | status | cause |\n|---|---|---|\n")
	for i, word := range reasons {
		status := "-"
		for reason := range observation.NumReasons {
			if placeOf[reason] == i && reason > observation.OK {
				status = strings.TrimPrefix(status+fmt.Sprintf(", %d", reason.Status()), "-, ")
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", word, status, blame[word])
	}
	return b.String()
}

// docs/limits.md contains the reasons with spaces instead of hyphens, as "queue-proxy why" prints them.
func TestLimitsGuideListsReasons(t *testing.T) {
	page := contents(t, "../../../docs/limits.md")
	reasons := regexp.MustCompile(`(?m)^\t\w+ +LimitReason += "([^"]+)"`).FindAllStringSubmatch(contents(t, "../../observation/limit.go"), -1)
	if len(reasons) < 10 {
		t.Fatalf("got %d reasons, want at least 10", len(reasons))
	}
	for _, m := range reasons {
		harness.Contains(t, page, "\n| `"+strings.ReplaceAll(m[1], "-", " ")+"` |", "table of docs/limits.md")
	}
}

func TestGuideExplainsAllReasons(t *testing.T) {
	for _, word := range reasons {
		if blame[word] == "" {
			t.Errorf("%s: got no explanation, want one", word)
		}
	}
	harness.Equal(t, len(blame), len(reasons), "explanations")
}

// The tables of the guide are generated from a scrape, so the scrape must contain all metrics.
func TestScrapeForGuideContainsAllMetrics(t *testing.T) {
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

// code returns a comma-separated list of words, formatted as code.
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
