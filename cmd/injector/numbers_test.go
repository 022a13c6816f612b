package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

var folders = flag.String("manifests", "", "colon-separated directories of manifests to measure; the default is the corpus")

// numbers counts the results for some files.
type numbers struct {
	files, changed, restored, again int // numbers of files with workloads, of changed files, of restored files, and of files that a second injection changed

	workloads int
	verdicts  map[string]int // number of workloads by reason, or by "injected"
	found     int            // number of workloads with an undeclared port
	followed  int            // number of Services that are rewritten in the first step
	later     int            // number of Services that are rewritten in the second step

	picks []string // selected port of each workload
}

// measure injects and uninjects one file.
func (n *numbers) measure(name string, text []byte) {
	file := manifest.Parse(name, text)
	results := manifest.Inject([]*manifest.File{file}, nil, inject.Workloads)
	workloads := 0
	for _, r := range results {
		switch {
		case r.Kind == "Service" && r.Verdict == inject.Rewritten:
			n.followed++
		case r.Reason == inject.SecondStep:
			n.later++
		case r.Kind == "Service" || r.Kind == "NetworkPolicy" || r.Reason == inject.NoPods:
		case r.Reason == inject.Unreadable && r.Name == "": // the file is a template and not YAML
		case r.Verdict == inject.Injected:
			workloads++
			n.picks = append(n.picks, fmt.Sprintf("%s:%d: %s: %s", name, r.Line, objectName(r), selected(r)))
			n.verdicts["injected"]++
			if strings.Contains(r.Text, "is not declared") {
				n.found++
			}
		default:
			workloads++
			n.picks = append(n.picks, fmt.Sprintf("%s:%d: %s: %s", name, r.Line, objectName(r), describeVerdict(r)))
			n.verdicts[r.Reason]++
		}
	}
	n.workloads += workloads
	if workloads == 0 {
		return
	}
	n.files++
	out := file.Text()
	if string(out) == string(text) {
		return
	}
	n.changed++
	again := manifest.Parse(name, out)
	manifest.Inject([]*manifest.File{again}, nil, inject.Workloads)
	if string(again.Text()) != string(out) {
		n.again++
	}
	back := manifest.Parse(name, out)
	manifest.Uninject([]*manifest.File{back})
	if string(back.Text()) == string(text) {
		n.restored++
	}
}

// manifestsIn returns the files in directories that can contain workloads.
func manifestsIn(t *testing.T, folders string) []string {
	t.Helper()
	var all []string
	for dir := range strings.SplitSeq(folders, ":") {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
				all = append(all, name)
			}
			return err
		})
		harness.NoError(t, err)
	}
	return all
}

// TestNumbersOfManifests prints the numbers in pkg/inject/testdata/workloads/README.md. With -v and -manifests,
// it measures other directories.
func TestNumbersOfManifests(t *testing.T) {
	from := corpus
	if *folders != "" {
		from = *folders
	}
	n := numbers{verdicts: map[string]int{}}
	for _, name := range manifestsIn(t, from) {
		text, err := os.ReadFile(name)
		harness.NoError(t, err)
		n.measure(name, text)
	}
	if *folders != "" {
		t.Logf("picks:\n%s", strings.Join(n.picks, "\n"))
	}
	t.Logf("%d files with %d workloads: %d files changed, %d files restored, %d files changed by a second injection", n.files, n.workloads, n.changed, n.restored, n.again)
	t.Logf("verdicts: %v; %d injected on an undeclared port", n.verdicts, n.found)
	t.Logf("Services: %d rewritten in the first step, %d in the second step", n.followed, n.later)
	if n.restored != n.changed || n.again != 0 {
		t.Errorf("got %d of %d files restored and %d changed by a second injection, want all and 0", n.restored, n.changed, n.again)
	}
}

// wanted returns the ports in want.txt. "-" means no port, and "?" means any port.
func wanted(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(read(t, corpus+"/want.txt")) {
		if file, port, ok := strings.Cut(strings.TrimSpace(line), " "); ok && file != "#" {
			all[file] = port
		}
	}
	return all
}

func TestCorpusPortsMatchExpectations(t *testing.T) {
	want, picked, kept := wanted(t), 0, 0
	for _, s := range shapes(t) {
		port := "-"
		for _, r := range s.results {
			if r.Verdict == inject.Injected && r.Kind != "Service" {
				port = strconv.Itoa(int(r.AppPort))
				break
			}
		}
		switch w := want[s.file]; {
		case w == "":
			t.Errorf("%s: no line in want.txt", s.file)
		case w == "?" && port != "-", w != "?" && port != w:
			t.Errorf("%s (%s): got port %s, want %s", s.file, s.title(), port, w)
		case port == "-":
			kept++
		default:
			picked++
		}
		delete(want, s.file)
	}
	if len(want) > 0 {
		t.Errorf("lines in want.txt without a file: %s", fmt.Sprint(want))
	}
	t.Logf("%d injected on the correct port, %d correctly not injected", picked, kept)
}
