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

// everything returns a Metrics in which each metric of the set has a series. The sets default and all include
// the metric of merged scrapes.
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
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40)) // required for the metrics of the limit
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
		{"process", nameList(shownBy(t, "default"))},
		{"knative-1.18", metricTable(withoutMemStats(ownMetrics(shownBy(t, "knative-1.18")))) + "\n" + memStatsList()},
		{"knative-1.19", metricTable(except(ownMetrics(shownBy(t, "knative-1.19")), shownBy(t, "knative-head")))},
		{"knative-head", metricTable(ownMetrics(shownBy(t, "knative-head")))},
		{"labels", labelTable(t)},
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

// nameList returns the names of the metrics of the collectors of client_golang.
func nameList(all []shown) string {
	var names []string
	for _, f := range all {
		if !f.ours {
			names = append(names, f.name)
		}
	}
	return code(names) + "\n"
}

// memStatsPrefix is the prefix of the metrics of memStats.
const memStatsPrefix = "revision_go_"

func withoutMemStats(all []shown) []shown {
	return slices.DeleteFunc(slices.Clone(all), func(f shown) bool { return strings.HasPrefix(f.name, memStatsPrefix) })
}

// memStatsList returns the names of memStats without their prefix.
func memStatsList() string {
	var names []string
	for _, m := range memStats {
		names = append(names, m.name)
	}
	return "The gauges `" + memStatsPrefix + "*` are the fields of `runtime.MemStats`: " + code(names) + "\n"
}

// commonLabels returns the labels that are common to all histograms with at least five labels. A table lists them once.
func commonLabels(all []shown) []string {
	const many = 5
	var common []string
	for _, f := range all {
		if f.kind != "histogram" || len(f.labels) < many {
			continue
		}
		if common == nil {
			common = slices.Clone(f.labels)
		}
		common = slices.DeleteFunc(common, func(label string) bool { return !slices.Contains(f.labels, label) })
	}
	return common
}

// metricTable returns a table of metrics, with a list of the labels that "common" stands for.
func metricTable(all []shown) string {
	common := commonLabels(all)
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range all {
		labels, text := f.labels, ""
		if len(common) > 0 && !slices.ContainsFunc(common, func(label string) bool { return !slices.Contains(labels, label) }) {
			labels = slices.DeleteFunc(slices.Clone(labels), func(label string) bool { return slices.Contains(common, label) })
			text = "common"
			if len(labels) > 0 {
				text += ", "
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, text+code(labels), f.help)
	}
	if len(common) > 0 {
		b.WriteString("\nCommon labels: " + code(common) + "\n")
	}
	return b.String()
}

// limitReasons returns the values of the constants of type [observation.LimitReason].
func limitReasons(t *testing.T) (words []string) {
	t.Helper()
	source, err := os.ReadFile("../../observation/limit.go")
	harness.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ +LimitReason += "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		words = append(words, m[1])
	}
	return words
}

// labelTable returns a table with the values of the labels. reasonTable returns the table for the label reason.
func labelTable(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| label | values |\n|---|---|\n")
	for _, l := range []struct {
		name   string
		values []string
	}{{"code", classes[:]}, {"method", methods}, {"protocol", protocols}, {"code of gRPC", grpcStatuses}, {"reason of the limit", limitReasons(t)}} {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, code(l.values))
	}
	return b.String()
}

// blame describes the cause of each reason.
var blame = map[string]string{
	"ok":                     "None: the client received the response of the user container. With `code=\"5xx\"`, it is an error of the application.",
	"queue-full":             "Capacity: too many running and queued requests. Scale out, or raise the limits.",
	"queue-timeout":          "Capacity: no slot became free in time.",
	"overload":               "Capacity or an attack: the memory budget for requests is exhausted. See `queue_proxy_request_memory_bytes`.",
	"not-ready":              "User container: see `queue_proxy_not_ready_reason`.",
	"draining":               "End of the pod: the deadline of the drain ended the request. The deadline is too short, or the request too long.",
	"request-timeout":        "User container or queue: the request took too long. Compare the time in the queue with that in the application.",
	"response-start-timeout": "User container or queue: no first byte in time.",
	"idle-timeout":           "User container, or a client that does not read the response: no data for `REVISION_IDLE_TIMEOUT_SECONDS`.",
	"client-slow":            "Client: it did not send the request body, or read the response (`SEND_TIMEOUT`), in time.",
	"app-unreachable":        "User container: nothing listens on its port. It crashed or restarts.",
	"local":                  "Sidecar: no file descriptor, local port or memory for a connection to the user container. `queue-proxy why` and the log contain the resource.",
	"app-reset":              "User container: it closed the connection because of a crash, lack of memory or its own timeout.",
	"app-garbage":            "User container: its response is not HTTP.",
	"bad-request":            "Client: the request is invalid, or its body or header section is too long.",
	"client-gone":            "Client: it closed the connection or stream before the response was complete, or its `grpc-timeout` expired.",
	"other":                  "A defect of the sidecar: the list of reasons is out of date.",
}

// reasonTable returns the table of the reasons.
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

func TestGuideExplainsAllReasons(t *testing.T) {
	for _, word := range reasons {
		if blame[word] == "" {
			t.Errorf("%s: got no explanation, want one", word)
		}
	}
	harness.Equal(t, len(blame), len(reasons), "explanations")
}

// The tables contain the metrics of a scrape, so the scrape must contain all metrics.
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
