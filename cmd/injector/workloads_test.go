package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// workloadsDir contains the facts and the labels of real workloads. Its README describes both.
const workloadsDir = "../../pkg/inject/testdata/workloads/"

var held = flag.Bool("held", false, "measure the held half of the real workloads instead; at most two runs, each with a row in pkg/inject/testdata/workloads/README.md")

var clones = flag.String("clones", "", "directory with a clone of each repository of the real workloads as owner/name; TestInjectionOfRealFilesIsStable reads the files from it")

// A workload contains the facts and the label of a real workload.
type workload struct {
	Repository, Commit, Path, APIVersion, Kind, Namespace, Name string
	Template                                                    map[string]any
	Services                                                    []map[string]any

	label  string  // one of the labels in the README
	ports  []int32 // ports of the label
	closed []int32 // declared ports on which nothing listens
}

// id identifies the workload in its repository.
func (w *workload) id() string { return w.Path + " " + w.Kind + "/" + w.Name }

// readWorkloads reads one half of the corpus.
func readWorkloads(t *testing.T, half string) []*workload {
	t.Helper()
	var all []*workload
	labels := strings.Split(strings.TrimSpace(read(t, workloadsDir+half+".tsv")), "\n")
	for line := range strings.Lines(read(t, workloadsDir+half+".jsonl")) {
		w := new(workload)
		harness.NoError(t, json.Unmarshal([]byte(line), w))
		fields := strings.Split(labels[len(all)], "\t")
		if len(fields) != 5 || fields[0] != w.Repository || fields[1]+" "+fields[2] != w.id() {
			t.Fatalf("%s: got label %q for %s %s", half, labels[len(all)], w.Repository, w.id())
		}
		w.readLabel(t, fields[3])
		all = append(all, w)
	}
	if len(all) != len(labels) {
		t.Fatalf("%s: got %d workloads and %d labels, want a label for each workload", half, len(all), len(labels))
	}
	return all
}

var labelForm = regexp.MustCompile(`^(http|grpc|ambiguous|none|unclear)(?: ([0-9,]+))?(?: closed ([0-9,]+))?$`)

func (w *workload) readLabel(t *testing.T, text string) {
	t.Helper()
	m := labelForm.FindStringSubmatch(text)
	if m == nil || (m[2] == "") != (m[1] == "none" || m[1] == "unclear") {
		t.Fatalf("%s: got the label %q, want the format in the README", w.id(), text)
	}
	numbers := func(list string) (all []int32) {
		for n := range strings.SplitSeq(list, ",") {
			if i, err := strconv.ParseInt(n, 10, 32); err == nil {
				all = append(all, int32(i))
			}
		}
		return all
	}
	w.label, w.ports, w.closed = m[1], numbers(m[2]), numbers(m[3])
}

// file returns a manifest that contains the workload and its Services.
func (w *workload) file(t *testing.T) string {
	t.Helper()
	object := map[string]any{"apiVersion": w.APIVersion, "kind": w.Kind}
	metadata := map[string]any{"name": w.Name}
	if w.Namespace != "" {
		metadata["namespace"] = w.Namespace
	}
	object["metadata"], object["spec"] = metadata, map[string]any{"template": w.Template}
	if w.Kind == "Pod" {
		maps.Copy(metadata, w.Template["metadata"].(map[string]any))
		object["spec"] = w.Template["spec"]
	}
	objects := []any{object}
	for _, s := range w.Services {
		service := map[string]any{"apiVersion": "v1", "kind": "Service"}
		maps.Copy(service, s)
		objects = append(objects, service)
	}
	var text bytes.Buffer
	for _, o := range objects {
		part, err := json.MarshalIndent(o, "", "  ")
		harness.NoError(t, err)
		text.Write(append(part, '\n'))
	}
	return text.String()
}

// A class states how the result for a workload compares with the label.
type class string

const (
	correct     class = "correct"         // injected with the port of the label, or not injected because the workload serves no requests
	wrongPort   class = "wrong port"      // injected with a port that is not the port of the label
	notServing  class = "must not inject" // injected, although the workload serves no requests
	missed      class = "missed"          // not injected, although the workload serves requests
	notAllPorts class = "not all ports"   // not injected, but the error does not contain all ports of the label
	uncounted   class = "unclear"
)

// classify compares a result with the label.
func (w *workload) classify(r *manifest.Result) class {
	injected := r.Verdict == inject.Injected
	switch {
	case w.label == "unclear":
		return uncounted
	case injected && w.label == "none":
		return notServing
	case injected && (w.label == "ambiguous" || r.AppPort != w.ports[0]):
		return wrongPort
	case injected || w.label == "none":
		return correct
	case w.label == "ambiguous":
		for _, n := range w.ports {
			if r.Verdict != inject.Refused || !regexp.MustCompile(fmt.Sprintf(`\b%d\b`, n)).MatchString(r.Text) {
				return notAllPorts
			}
		}
		return correct
	}
	return missed
}

// serviceNames matches the names of Services in the reasons for a port.
var serviceNames = regexp.MustCompile(`Service \S+`)

// rule returns the strongest evidence for the selected port, or the reason why the
// workload is not injected.
func rule(r *manifest.Result) string {
	if r.Verdict != inject.Injected {
		return r.Reason
	}
	for _, p := range r.Ports {
		if !p.Selected || len(p.Reasons) == 0 {
			continue
		}
		switch reason := p.Reasons[0]; {
		case serviceNames.MatchString(reason):
			return "Service"
		case strings.HasPrefix(reason, "declared as"):
			return "declared with a name"
		case reason == "declared":
			return "declared without a name"
		case strings.Contains(reason, "probe"):
			return "probe"
		}
	}
	return "other"
}

// Costs of a wrong result.
const (
	neverReady = "never-ready" // the selected port has no listener, and the container has no readiness probe over the network
	bypass     = "bypass"      // the injection changes the port that a Service reaches
	broken     = "broken"      // the pod is ready, but a Service forwards traffic other than plain HTTP to the sidecar
	harmless   = "harmless"    // the pod is ready, and the requests of each Service succeed as before
)

// exposed describes the TCP ports of a manifest.
type exposed struct {
	open   map[int32]bool  // a program probably listens on the port
	plain  map[int32]bool  // the name of the port indicates metrics, health checks or HTTP
	served map[int32]bool  // a Service uses the port
	probed map[string]bool // containers with a readiness probe over the network
}

var plainPort = regexp.MustCompile(`(^|-)(metrics?|prom|prometheus|health|healthz|probes?|http|telemetry)(-|$)`)

// expose returns the ports in a manifest and in the label of the workload.
func (w *workload) expose(t *testing.T, text string) exposed {
	t.Helper()
	e := exposed{map[int32]bool{}, map[int32]bool{}, map[int32]bool{}, map[string]bool{}}
	for _, n := range w.ports {
		e.open[n] = true
	}
	objects := objectsOf(t, text)
	named := map[string]int32{}
	add := func(n int32, name string, protocol corev1.Protocol) {
		e.open[n] = e.open[n] || cmp.Or(protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		e.plain[n] = e.plain[n] || plainPort.MatchString(name)
	}
	for _, o := range objects {
		for _, c := range o.pod.Spec.Containers {
			for _, p := range c.Ports {
				add(p.ContainerPort, p.Name, p.Protocol)
				if p.Name != "" {
					named[p.Name] = p.ContainerPort
				}
			}
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.StartupProbe, c.ReadinessProbe} {
				switch {
				case p == nil || p.Exec != nil:
					continue
				case p.HTTPGet != nil:
					e.open[p.HTTPGet.Port.IntVal] = true
				case p.TCPSocket != nil:
					e.open[p.TCPSocket.Port.IntVal] = true
				case p.GRPC != nil:
					e.open[p.GRPC.Port] = true
				}
				e.probed[c.Name] = p == c.ReadinessProbe
			}
		}
	}
	for _, o := range objects {
		for _, p := range o.service.Spec.Ports {
			n := cmp.Or(p.TargetPort.IntVal, named[p.TargetPort.StrVal], p.Port)
			add(n, p.Name, p.Protocol)
			e.served[n] = true
		}
	}
	for _, n := range w.closed {
		e.open[n] = false
	}
	return e
}

// inspect injects a workload. It returns the result and, if the result is wrong, its cost.
func (w *workload) inspect(t *testing.T) (*manifest.Result, string) {
	t.Helper()
	text := w.file(t)
	file := manifest.Parse(path.Join(w.Repository, w.Path), []byte(text))
	result := manifest.Inject([]*manifest.File{file}, nil, inject.Services)[0]
	e, v, n := w.expose(t, text), w.classify(result), result.AppPort
	switch {
	case !maps.Equal(routes(t, text), routes(t, string(file.Text()))):
		return result, bypass
	case v != wrongPort && v != notServing:
		return result, ""
	case !e.open[n] && !e.probed[result.Container]:
		return result, neverReady
	case v == notServing && e.served[n] && !e.plain[n]:
		return result, broken
	}
	return result, harmless
}

// A score contains the number of results of one rule, or of all rules.
type score struct {
	verdicts map[class]int
	injected int // number of injected workloads, except unclear ones
	hits     int // number of workloads that are injected with the port of the label
}

func (s *score) add(v class, injected bool) {
	if s.verdicts == nil {
		s.verdicts = map[class]int{}
	}
	s.verdicts[v]++
	if injected && v != uncounted {
		s.injected++
		if v == correct {
			s.hits++
		}
	}
}

func (s *score) row(name string) string {
	row := "| " + name
	for _, v := range []class{correct, wrongPort, notServing, missed, notAllPorts, uncounted} {
		row += fmt.Sprintf(" | %d", s.verdicts[v])
	}
	if s.injected == 0 {
		return row + " | |"
	}
	return row + fmt.Sprintf(" | %.1f %% |", 100*float64(s.hits)/float64(s.injected))
}

// The minimum precision and recall of the development half in percent. Increase them when the rules
// improve.
const (
	minPrecision = 97.0
	minRecall    = 95.0
)

// The test compares the results with the labels, which describe the requests that the
// applications serve. If -held is set, it uses the held-out half of the corpus.
func TestRealWorkloadsMatchLabels(t *testing.T) {
	half := "development"
	if *held {
		half = "held"
	}
	total, rules, costs, serving := new(score), map[string]*score{}, map[string]int{}, 0
	var wrong []string
	for _, w := range readWorkloads(t, half) {
		result, cost := w.inspect(t)
		v, injected := w.classify(result), result.Verdict == inject.Injected
		by := rule(result)
		if rules[by] == nil {
			rules[by] = new(score)
		}
		rules[by].add(v, injected)
		total.add(v, injected)
		if w.label == "http" || w.label == "grpc" {
			serving++
		}
		if cost != "" {
			costs[cost]++
		}
		if cost != "" || v != correct && v != uncounted {
			wrong = append(wrong, fmt.Sprintf("%s %s %s: %s, want %s %v: %s", v, cost, w.Repository, w.id(), w.label, w.ports, cmp.Or(result.Text, strings.Join(result.Notes[:min(1, len(result.Notes))], ""))))
		}
	}
	lines := []string{"| rule | correct | wrong port | must not inject | missed | not all ports | unclear | precision |", "|---|---|---|---|---|---|---|---|"}
	for _, by := range slices.Sorted(maps.Keys(rules)) {
		lines = append(lines, rules[by].row(by))
	}
	slices.Sort(wrong)
	precision, recall := float64(total.hits)/float64(total.injected), float64(total.hits)/float64(serving)
	t.Logf("%s half:\n%s\n%s", half, strings.Join(append(lines, total.row("all")), "\n"), strings.Join(wrong, "\n"))
	t.Logf("precision %.1f %% (%d of %d), recall %.1f %% (%d of %d), costs %v", 100*precision, total.hits, total.injected, 100*recall, total.hits, serving, costs)
	if costs[neverReady]+costs[bypass] > 0 {
		t.Errorf("got costs %v, want no %s and no %s", costs, neverReady, bypass)
	}
	if 100*precision < minPrecision || 100*recall < minRecall {
		t.Errorf("got a precision of %.1f %% and a recall of %.1f %%, want at least %.0f %% and %.0f %%", 100*precision, 100*recall, minPrecision, minRecall)
	}
}

func TestInjectionOfRealWorkloadsIsStable(t *testing.T) {
	changed, all := 0, slices.Concat(readWorkloads(t, "development"), readWorkloads(t, "held"))
	for _, w := range all {
		text := w.file(t)
		injected := func(from string) *manifest.File {
			file := manifest.Parse(w.id(), []byte(from))
			manifest.Inject([]*manifest.File{file}, nil, inject.Services)
			return file
		}
		once := string(injected(text).Text())
		twice := injected(once)
		if got := string(twice.Text()); got != once {
			t.Errorf("%s %s: a second injection changes the file:\n%s", w.Repository, w.id(), unified(w.id(), []byte(once), []byte(got)))
		}
		manifest.Uninject([]*manifest.File{twice})
		if got := string(twice.Text()); got != text {
			t.Errorf("%s %s: uninject does not restore the file:\n%s", w.Repository, w.id(), unified(w.id(), []byte(text), []byte(got)))
		}
		if once != text {
			changed++
		}
	}
	if want := len(all) / 4; changed < want {
		t.Errorf("got %d changed files, want at least %d", changed, want)
	}
}

// Without -clones, the test only checks the list of the files, because this repository does not
// contain them. With -clones, it reads each YAML file with containers, including the files that are
// not in the corpus.
func TestInjectionOfRealFilesIsStable(t *testing.T) {
	files := map[string]map[string]bool{} // paths of files by repository and commit
	for _, half := range []string{"development", "held"} {
		for _, w := range readWorkloads(t, half) {
			repository := w.Repository + " " + w.Commit
			if files[repository] == nil {
				files[repository] = map[string]bool{}
			}
			if files[repository][w.Path] = true; len(w.Commit) != 40 {
				t.Errorf("%s %s: got commit %q, want 40 digits", w.Repository, w.Path, w.Commit)
			}
		}
	}
	if *clones == "" {
		return
	}
	changed, all := 0, 0
	for _, repository := range slices.Sorted(maps.Keys(files)) {
		name, commit, _ := strings.Cut(repository, " ")
		dir := filepath.Join(*clones, strings.TrimPrefix(name, "github.com/"))
		others, _ := exec.Command("git", "-C", dir, "grep", "--name-only", "-e", "containers:", commit, "--", "*.yaml", "*.yml").Output()
		for line := range strings.Lines(string(others)) {
			files[repository][strings.TrimSpace(strings.TrimPrefix(line, commit+":"))] = true
		}
		for _, file := range slices.Sorted(maps.Keys(files[repository])) {
			text, err := exec.Command("git", "-C", dir, "cat-file", "blob", commit+":"+file).Output()
			if err != nil {
				t.Errorf("%s/%s: cannot read the file: %v", name, file, err)
				continue
			}
			if all++; wantStable(t, name+"/"+file, string(text)) {
				changed++
			}
		}
	}
	t.Logf("injected and restored %d of %d files", changed, all)
}

func TestWorkloadsAreFromManyRepositories(t *testing.T) {
	repositories, workloads := map[string]string{}, 0
	for _, half := range []string{"development", "held"} {
		for _, w := range readWorkloads(t, half) {
			if other := repositories[w.Repository]; other != "" && other != half {
				t.Errorf("%s: workloads in both halves, want one half", w.Repository)
			}
			repositories[w.Repository] = half
			workloads++
		}
	}
	if len(repositories) < 60 || workloads < 400 {
		t.Errorf("got %d workloads from %d repositories, want at least 400 workloads from 60 repositories", workloads, len(repositories))
	}
}

func TestClassifyComparesResultWithLabel(t *testing.T) {
	injected := func(port int32) inject.Outcome { return inject.Outcome{Verdict: inject.Injected, AppPort: port} }
	refused := func(text string) inject.Outcome { return inject.Outcome{Verdict: inject.Refused, Text: text} }
	for _, test := range []struct {
		label string
		out   inject.Outcome
		want  class
	}{
		{"http 8080", injected(8080), correct},
		{"grpc 8080 closed 9090", injected(9090), wrongPort},
		{"http 8080", refused("--port 8080"), missed},
		{"none", injected(8080), notServing},
		{"none", refused("--port 8080"), correct},
		{"ambiguous 80,81", injected(80), wrongPort},
		{"ambiguous 80,81", refused("the ports 80 and 81"), correct},
		{"ambiguous 80,81", refused("the ports 80 and 8181"), notAllPorts},
		{"unclear", injected(80), uncounted},
	} {
		w := new(workload)
		w.readLabel(t, test.label)
		if got := w.classify(&manifest.Result{Outcome: &test.out}); got != test.want {
			t.Errorf("%s, %s %d: got %q, want %q", test.label, test.out.Verdict, test.out.AppPort, got, test.want)
		}
	}
}
