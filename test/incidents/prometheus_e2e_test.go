//go:build e2e

package incidents

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A server is a Prometheus server that scrapes the pods and evaluates the alerts.
type server struct {
	address string
	targets string // directory that contains a file for each target
}

// interval is the interval between scrapes and between rule evaluations.
const interval = 2 * time.Second

var (
	forField = regexp.MustCompile(`(?m)^ *for: .*\n`)

	// shorter shortens the wait in the condition of NobodyLeaves from 60 s to 20 s.
	shorter = strings.NewReplacer("oldest_waiter_age_seconds > 60", "oldest_waiter_age_seconds > 20")
)

// startPrometheus starts Prometheus with the alerts in deploy/monitoring. The "for" field is removed from the rules, so
// that an alert fires as soon as its condition is true.
func startPrometheus(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	s := &server{targets: filepath.Join(dir, "targets")}
	harness.NoError(t, os.Mkdir(s.targets, 0o755))
	rules, err := os.ReadFile("../../deploy/monitoring/rules.yaml")
	harness.NoError(t, err)
	immediate := shorter.Replace(string(forField.ReplaceAll(rules, nil)))
	if !strings.Contains(immediate, "oldest_waiter_age_seconds > 20") {
		t.Fatal("rules.yaml: the condition of NobodyLeaves is not found")
	}
	harness.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(immediate), 0o644))
	config := fmt.Sprintf(`global: {scrape_interval: %v, evaluation_interval: %[1]v}
rule_files: [%s]
scrape_configs:
- job_name: pods
  file_sd_configs:
  - files: [%s]
`, interval, filepath.Join(dir, "rules.yaml"), filepath.Join(s.targets, "*.json"))
	harness.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(config), 0o644))
	s.address = "127.0.0.1:" + harness.FreePorts(t, 1)[0]
	var output harness.Buffer
	c := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+s.address)
	c.Stdout, c.Stderr = &output, &output
	harness.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("output of Prometheus:\n%s", output.Tail())
		}
	})
	harness.Until(t, "Prometheus is ready", func() bool {
		_, err := fetch("http://" + s.address + "/-/ready")
		return err == nil
	})
	prometheus = s
}

// watch implements evaluator.
func (s *server) watch(p *pod) {
	target := fmt.Sprintf(`[{"targets": ["127.0.0.1:%s"], "labels": {"pod": "pod-%[1]s", "container": "queue-proxy"}}]`, p.metrics)
	name := filepath.Join(s.targets, p.metrics)
	harness.NoError(p.t, os.WriteFile(name+".tmp", []byte(target), 0o644))
	harness.NoError(p.t, os.Rename(name+".tmp", name+".json"))
	query := "http://" + s.address + "/api/v1/query?query=" + url.QueryEscape(`up{instance="127.0.0.1:`+p.metrics+`"}`)
	harness.Until(p.t, "Prometheus scrapes the sidecar", func() bool {
		page, err := fetch(query)
		return err == nil && strings.Contains(page, p.metrics)
	})
}

// firing implements evaluator.
func (s *server) firing(p *pod) (names []string, err error) {
	page, err := fetch("http://" + s.address + "/api/v1/rules?type=alert")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Name           string
					LastEvaluation time.Time
					Alerts         []struct{ Labels map[string]string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(page), &answer); err != nil {
		return nil, err
	}
	for _, group := range answer.Data.Groups {
		if group.Name != "queue-proxy" {
			continue
		}
		for _, rule := range group.Rules {
			if rule.LastEvaluation.Before(p.reported.Add(2 * interval)) {
				return nil, errors.New("no evaluation of a later scrape")
			}
			for _, a := range rule.Alerts {
				if a.Labels["instance"] == "127.0.0.1:"+p.metrics {
					names = append(names, strings.TrimPrefix(rule.Name, "QueueProxy"))
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
