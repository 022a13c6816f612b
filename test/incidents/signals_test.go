package incidents

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A signal reports incidents to an operator.
type signal struct {
	name string

	// silent reports whether the signal is expected not to report the incident.
	silent func(in *incident) bool

	// check returns an error if the signal does not have the value that is expected for the incident.
	check func(p *pod, in *incident) error
}

var signals = []signal{
	{"metric", func(in *incident) bool { return in.metric == "" }, checkMetric},
	{"log", func(in *incident) bool { return len(in.log) == 0 }, checkLog},
	{"status page", func(in *incident) bool { return in.problem == "" }, checkPage},
	{"alert", func(in *incident) bool { return len(in.alerts) == 0 }, checkAlert},
	{"why", func(in *incident) bool { return in.why == "" }, checkWhy},
}

// verify waits until the incident is reported, and then checks the silent signals.
func verify(t *testing.T, p *pod, in *incident) {
	t.Helper()
	for _, silent := range []bool{false, true} {
		p.reported = time.Now()
		await(t, p, in, slices.DeleteFunc(slices.Clone(signals), func(s signal) bool { return s.silent(in) != silent }))
	}
}

// await checks the signals in order until all of them have the expected value. The test fails after harness.Patience.
func await(t *testing.T, p *pod, in *incident, pending []signal) {
	t.Helper()
	end := time.Now().Add(harness.Patience)
	for _, s := range pending {
		for err := s.check(p, in); err != nil; err = s.check(p, in) {
			if time.Now().After(end) {
				t.Fatalf("timeout after %v: %s: %v", harness.Patience, s.name, err)
			}
			p.sleep(200 * time.Millisecond)
		}
	}
}

// checkAlert returns an error if the firing alerts differ from the alerts of the incident.
func checkAlert(p *pod, in *incident) error {
	if prometheus == nil {
		return nil
	}
	got, err := prometheus.firing(p)
	if err != nil {
		return err
	}
	want := slices.Clone(in.alerts)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// prometheus evaluates the alerts. It is nil without the build tag e2e.
var prometheus evaluator

// An evaluator evaluates the alerts in deploy/monitoring.
type evaluator interface {
	// watch starts to evaluate the alerts for a pod. It returns after the first scrape.
	watch(p *pod)

	// firing returns the sorted names of the alerts that fire for a pod. The names have no prefix. It returns an
	// error if there was no evaluation of a scrape after pod.reported.
	firing(p *pod) ([]string, error)
}

// checkMetric returns an error if no value of the incident's series reports the incident. By
// default, a value greater than 0 reports it.
func checkMetric(p *pod, in *incident) error {
	if in.metric == "" {
		return nil
	}
	name, labels, _ := strings.Cut(in.metric, "{")
	page, err := fetch("http://127.0.0.1:" + p.metrics + "/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest, ok := strings.CutPrefix(series, "queue_proxy_"+name)
		if !ok || rest != "" && rest[0] != '{' || !containsAll(rest, strings.Split(strings.TrimSuffix(labels, "}"), ",")) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		if in.abnormal == nil && v > 0 || in.abnormal != nil && in.abnormal(v) {
			return nil
		}
	}
	return fmt.Errorf("got no series %s with the value of the incident", in.metric)
}

func containsAll(s string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(s, part) })
}

// fetch sends a GET request and returns the body of the response.
func fetch(url string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	res, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("got status %d from %s", res.StatusCode, url)
	}
	return string(b), err
}

// warning matches a line that requires attention.
var warning = regexp.MustCompile(`"severity":"(WARNING|ERROR|CRITICAL)"`)

// checkLog returns an error if no line contains all parts of in.log. If in.log is empty, it returns an error
// if there is a warning.
func checkLog(p *pod, in *incident) error {
	if len(in.log) == 0 {
		if line := warning.FindString(p.stderr.String() + p.stdout.String()); line != "" {
			return fmt.Errorf("got a line with %s, want none", line)
		}
		return nil
	}
	if !p.stderr.HasLine(in.log...) && !p.stdout.HasLine(in.log...) {
		return fmt.Errorf("got no line with %q", in.log)
	}
	return nil
}

// checkPage returns an error unless the incident's problem is the first problem on the status page.
func checkPage(p *pod, in *incident) error {
	page, err := fetch("http://127.0.0.1:" + p.status + "/status.json")
	if err != nil {
		return err
	}
	var status struct{ Problems []struct{ Name string } }
	if err := json.Unmarshal([]byte(page), &status); err != nil {
		return err
	}
	first := ""
	if len(status.Problems) > 0 {
		first = status.Problems[0].Name
	}
	switch {
	case first != in.problem:
		return fmt.Errorf("got problems %v, want %q first", status.Problems, in.problem)
	case first == "" && !strings.Contains(page, in.why):
		return fmt.Errorf("got %s\nwant it to contain %q", page, in.why)
	}
	return nil
}

// spaces matches the spaces and line breaks between two words.
var spaces = regexp.MustCompile(`\s+`)

// checkWhy returns an error if the output of `queue-proxy why` does not contain in.why. If in.why is empty, it returns
// an error if the output reports a problem.
func checkWhy(p *pod, in *incident) error {
	why := exec.CommandContext(p.ctx, queueProxy, "why")
	why.Env = []string{"STATUS_PORT=" + p.status}
	out, _ := why.CombinedOutput() // ignore the error, because the exit code is 1 if the pod is not ready
	want := cmp.Or(in.why, "no problems found")
	if text := spaces.ReplaceAllString(string(out), " "); !strings.Contains(text, want) {
		return fmt.Errorf("got\n%s\nwant it to contain %q", out, want)
	}
	return nil
}
