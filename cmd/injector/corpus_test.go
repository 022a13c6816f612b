package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const corpus = "../../pkg/inject/testdata/corpus"

// A shape is one file of the corpus.
type shape struct {
	file, text string
	results    []*manifest.Result
}

// shapes injects each file of the corpus separately.
func shapes(t *testing.T) []shape {
	t.Helper()
	files, err := filepath.Glob(corpus + "/*.*[nl]") // the pattern matches .json and .yaml
	if err != nil || len(files) < 60 {
		t.Fatalf("got %d files (%v), want at least 60", len(files), err)
	}
	var all []shape
	for _, file := range files {
		s := shape{file: filepath.Base(file), text: read(t, file)}
		s.results = manifest.Inject([]*manifest.File{manifest.Parse(s.file, []byte(s.text))}, nil, inject.Workloads)
		all = append(all, s)
	}
	return all
}

// title returns the description in the first line of a file.
func (s shape) title() string {
	line, _, _ := strings.Cut(s.text, "\n")
	if title, ok := strings.CutPrefix(line, "# "); ok {
		return strings.TrimSpace(title)
	}
	return "a list of pods in JSON"
}

// result describes the result for the first workload and for the Services, in the format of
// results.txt.
func (s shape) result() string {
	var workload *manifest.Result
	var services []string
	for _, r := range s.results {
		switch {
		case r.Kind == "Service" && r.Reason != inject.Knative:
			services = append(services, describeVerdict(r))
		case workload == nil:
			workload = r
		}
	}
	verdict, why := string(workload.Verdict), workload.Text
	if workload.Reason != "" {
		verdict = workload.Reason
	}
	if workload.Verdict == inject.Injected {
		why = selected(workload)
	}
	why, _, _ = strings.Cut(why, "; if ") // omit the suggested flag
	service := ""
	for _, text := range services {
		if _, to, ok := strings.Cut(text, "rewritten: "); ok {
			service = "    Service: " + to + "\n"
		}
		if strings.Contains(text, inject.SecondStep) {
			service = "    Service: changed in the second step\n"
		}
	}
	return fmt.Sprintf("%s: %s\n    %s: %s\n%s", s.file, s.title(), verdict, why, service)
}

// selected describes the port that is selected.
func selected(r *manifest.Result) string {
	for _, p := range r.Ports {
		if p.Selected {
			return "port " + evidence(p)
		}
	}
	return ""
}

// TestResultsOfCorpus compares the result for each shape with results.txt, so that a change to the
// rules is visible.
func TestResultsOfCorpus(t *testing.T) {
	var all []string
	injected := 0
	for _, s := range shapes(t) {
		all = append(all, s.result())
		if slices.ContainsFunc(s.results, func(r *manifest.Result) bool { return r.Verdict == inject.Injected }) {
			injected++
		}
	}
	want := fmt.Sprintf("Results for the shapes of this directory, written by go test ./cmd/injector -run Corpus -update.\n%d of %d are injected.\n\n%s",
		injected, len(all), strings.Join(all, "\n"))
	const name = corpus + "/results.txt"
	if *update {
		harness.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	if got := read(t, name); got != want {
		t.Errorf("the file is not up to date; run go test ./cmd/injector -run Corpus -update:\n%s", unified(name, []byte(got), []byte(want)))
	}
}

// The first line of each file of a database or a TLS server states that its port is not
// for HTTP.
func TestDatabasesAndTLSServersAreNotInjected(t *testing.T) {
	kept := []string{"Redis", "MySQL", "PostgreSQL", "MongoDB", "Kafka", "ZooKeeper", "etcd", "Cassandra", "RabbitMQ", "memcached", "NATS", "database", "mail relay", "DNS", "TLS", "HTTPS", "only port 443"}
	found := 0
	for _, s := range shapes(t) {
		isKept := strings.Contains(s.title(), "plain port") // the file has a plain port in addition to the port for TLS
		for _, word := range kept {
			if isKept || !strings.Contains(s.title(), word) {
				continue
			}
			found++
			for _, r := range s.results {
				if r.Verdict == inject.Injected {
					t.Errorf("%s (%s): injected on port %d, want no injection", s.file, s.title(), r.AppPort)
				}
			}
			break
		}
	}
	if want := 20; found < want {
		t.Errorf("got %d files of databases and TLS servers, want at least %d", found, want)
	}
}

func TestInjectionOfCorpusIsIdempotent(t *testing.T) {
	for _, s := range shapes(t) {
		out, report, code := injector(t, "inject", s.text)
		if code != done {
			harness.Contains(t, report, "refused (which-", s.file)
			continue
		}
		again, report, code := injector(t, "inject", out)
		if again != out || code != done {
			t.Errorf("%s: a second injection changes the file, or returns exit code %d (%s):\n%s", s.file, code, report, unified(s.file, []byte(out), []byte(again)))
		}
	}
}

func TestUninjectRestoresCorpus(t *testing.T) {
	changed := 0
	for _, s := range shapes(t) {
		out, _, code := injector(t, "inject", s.text)
		if code != done || out == s.text {
			continue
		}
		changed++
		if back, report, _ := injector(t, "uninject", out); back != s.text {
			t.Errorf("%s: %s\n%s", s.file, report, unified(s.file, []byte(s.text), []byte(back)))
		}
	}
	if want := 25; changed < want {
		t.Errorf("got %d changed files, want at least %d", changed, want)
	}
}
