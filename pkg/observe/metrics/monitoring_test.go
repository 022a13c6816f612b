package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// These tests verify that the queries in deploy/monitoring and in the documents use only metrics and labels that exist.

const (
	monitoring = "../../../deploy/monitoring/"
	runbook    = "../../../docs/runbook.md"
)

// injectors returns the metrics of the injector from the guide. A test of pkg/inject/webhook compares this list
// with the code.
func injectors(t *testing.T) (all []shown) {
	t.Helper()
	_, table, _ := strings.Cut(contents(t, guide), "<!-- injector -->")
	table, _, _ = strings.Cut(table, "<!-- /injector -->")
	kind := ""
	for line := range strings.Lines(table) {
		if name, ok := strings.CutPrefix(line, "| **"); ok { // the first row of a group
			name, _, _ = strings.Cut(name, "s**")
			kind = strings.ToLower(name)
		}
		cells := strings.Split(strings.ReplaceAll(line, "`", ""), "|")
		if len(cells) < 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), prefix) {
			continue
		}
		one := shown{name: strings.TrimSpace(cells[1]), kind: kind, ours: true}
		for label := range strings.SplitSeq(cells[2], ",") {
			if label = strings.TrimSpace(label); label != "" {
				one.labels = append(one.labels, label)
			}
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		t.Fatalf("%s: got no metrics of the injector, want some", guide)
	}
	return all
}

// panel contains the fields of a Grafana panel that these tests use.
type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	Text    string `json:"description"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
}

func readDashboard(t testing.TB) dashboard {
	t.Helper()
	var d dashboard
	harness.NoError(t, json.Unmarshal([]byte(contents(t, monitoring+"dashboard.json")), &d))
	return d
}

func (d dashboard) queries() (all []string) {
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			all = append(all, v.Definition)
		}
	}
	return all
}

// Parts of queries: a metric with its matchers, a label in a matcher, and a list of labels for grouping.
var (
	metricInQuery   = regexp.MustCompile(`(queue_proxy_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	labelInMatcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	groupingInQuery = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
)

// targetLabels contains the labels that a scrape adds to each series, and the label of buckets.
var targetLabels = []string{"namespace", "pod", "job", "instance", "container", "le"}

// checkQuery returns our metrics in a query. It reports metrics and labels that do not exist.
func checkQuery(t *testing.T, where, text string) map[string]bool {
	t.Helper()
	known := map[string]shown{}
	for _, f := range append(shownBy(t, "default"), injectors(t)...) {
		known[f.name] = f
		if f.kind == "histogram" || f.kind == "summary" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[f.name+suffix] = f
			}
		}
	}
	found := map[string]bool{}
	labels := slices.Clone(targetLabels)
	for _, m := range metricInQuery.FindAllStringSubmatch(text, -1) {
		f, ok := known[m[1]]
		if !ok {
			t.Errorf("%s: got %s, want an existing metric", where, m[1])
			continue
		}
		if f.kind == "histogram" && m[1] == f.name {
			t.Errorf("%s: got %s, want the suffix _bucket, _sum or _count", where, m[1])
		}
		found[f.name] = true
		labels = append(labels, f.labels...)
		for _, l := range labelInMatcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(slices.Concat(f.labels, targetLabels), l[1]) {
				t.Errorf("%s: got %s{%s}, want an existing label", where, m[1], l[1])
			}
		}
	}
	for _, g := range groupingInQuery.FindAllStringSubmatch(text, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(label)) {
				t.Errorf("%s: got grouping by %q in %s, want an existing label", where, label, text)
			}
		}
	}
	return found
}

func TestDashboardUsesAllMetrics(t *testing.T) {
	inUse := map[string]bool{}
	for _, query := range readDashboard(t).queries() {
		maps.Copy(inUse, checkQuery(t, "dashboard.json", query))
	}
	for _, f := range append(shownBy(t, "default"), injectors(t)...) {
		if f.ours && !inUse[f.name] {
			t.Errorf("%s: got no panel, want one", f.name)
		}
	}
}

func TestPanelsHaveTitleDescriptionAndUniqueID(t *testing.T) {
	seen := map[int]string{}
	for _, p := range readDashboard(t).Panels {
		if p.Title == "" || seen[p.ID] != "" {
			t.Errorf("panel %d: got titles %q and %q, want one title for each ID", p.ID, p.Title, seen[p.ID])
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s: got no query, want one", p.Title)
		}
		if p.Type != "row" && p.Text == "" {
			t.Errorf("%s: got no description, want one", p.Title)
		}
		seen[p.ID] = p.Title
	}
}

func TestRulesUseExistingMetrics(t *testing.T) {
	rules := contents(t, monitoring+"rules.yaml")
	for alert := range strings.SplitSeq(rules, "- alert: ") {
		// Only the expression is a query. The annotations are text.
		if _, rest, ok := strings.Cut(alert, "expr:"); ok {
			expr, _, _ := strings.Cut(rest, "labels:")
			if len(checkQuery(t, "rules.yaml", expr)) == 0 {
				t.Errorf("got no metric in %s, want one", expr)
			}
		}
	}
}

// alerts returns the alerts in rules.yaml with their YAML text, by name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for text := range strings.SplitSeq(contents(t, monitoring+"rules.yaml"), "      - alert: ") {
		if name, rest, ok := strings.Cut(text, "\n"); ok && !strings.HasPrefix(text, "#") {
			all[name] = rest
		}
	}
	if len(all) < 20 {
		t.Fatalf("got %d alerts, want at least 20; the format of rules.yaml may have changed", len(all))
	}
	return all
}

// The label reason contains a readiness word, so the alert must describe each word.
func TestNotReadyAlertDescribesEachReason(t *testing.T) {
	alert := alerts(t)["QueueProxyNotReady"]
	for _, word := range observation.ReadinessWords() {
		if !strings.Contains(alert, fmt.Sprintf("if eq $reason %q }}: ", word)) {
			t.Errorf("%s: got no description, want one", word)
		}
	}
}

func TestAlertsAreTestedFiringAndSilent(t *testing.T) {
	type seen struct{ firing, silent bool }
	tested := map[string]seen{}
	for text := range strings.SplitSeq(contents(t, monitoring+"rules_test.yaml"), "        alertname: ") {
		name, rest, _ := strings.Cut(text, "\n")
		s := tested[name]
		firing := strings.HasPrefix(rest, "        exp_alerts:\n          - ")
		tested[name] = seen{s.firing || firing, s.silent || !firing}
	}
	for name := range alerts(t) {
		if got := tested[name]; !got.firing || !got.silent {
			t.Errorf("%s: got firing test: %v, silent test: %v; want both", name, got.firing, got.silent)
		}
	}
}

// The runbook_url of an alert must link to a section that describes the cause and the fix.
func TestAlertsHaveRunbookSections(t *testing.T) {
	text := contents(t, runbook)
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (QueueProxy\w+)$`).FindAllStringSubmatch(text, -1) {
		sections[m[1]] = true
	}
	for name, alert := range alerts(t) {
		want := "runbook_url: 'https://github.com/queue-proxy/queue-proxy/blob/main/docs/runbook.md#" + strings.ToLower(name) + "'"
		if !strings.Contains(alert, want) {
			t.Errorf("%s: got annotations without %s, want it", name, want)
		}
		if !sections[name] {
			t.Errorf("%s: got no section for %s, want one", runbook, name)
		}
		_, section, _ := strings.Cut(text, "### "+name+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		for _, part := range []string{"**Meaning**", "**Find**", "**Fix**"} {
			if !strings.Contains(section, part) {
				t.Errorf("%s: %s: got no paragraph %s, want one", runbook, name, part)
			}
		}
		delete(sections, name)
	}
	for name := range sections {
		t.Errorf("%s: got a section for %s, want only existing alerts", runbook, name)
	}
}

func TestRunbookUsesExistingMetrics(t *testing.T) {
	checkQuery(t, runbook, strings.NewReplacer("{P}", "").Replace(contents(t, runbook)))
}

func TestGuideUsesExistingMetrics(t *testing.T) {
	for _, m := range regexp.MustCompile("`[^`]+`").FindAllString(contents(t, guide), -1) {
		query := strings.NewReplacer("{P}", "", "{P,", "{").Replace(m)
		// A name without braces or parentheses is not a query.
		if strings.ContainsAny(query, "({") {
			checkQuery(t, guide, query)
		}
	}
}

// The Prometheus Operator requires the rules in a PrometheusRule object.
func TestRulesObjectIsGenerated(t *testing.T) {
	const name = monitoring + "prometheusrule.yaml"
	_, groups, ok := strings.Cut(contents(t, monitoring+"rules.yaml"), "\ngroups:\n")
	if !ok {
		t.Fatal("rules.yaml: got no groups, want some")
	}
	var want strings.Builder
	want.WriteString(`# Generated from rules.yaml by go test ./pkg/observe/metrics -update. Do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: queue-proxy
  labels:
    app.kubernetes.io/name: queue-proxy
spec:
  groups:
`)
	for line := range strings.Lines(groups) {
		if line != "\n" {
			line = "  " + line
		}
		want.WriteString(line)
	}
	if *update {
		harness.NoError(t, os.WriteFile(name, []byte(want.String()), 0o644))
	}
	harness.Equal(t, contents(t, name), want.String(), "run go test ./pkg/observe/metrics -update")
}
