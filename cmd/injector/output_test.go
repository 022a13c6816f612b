package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

const (
	goodPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}\n"
	badPod  = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, annotations: {queue-proxy.dev/what: \"\"}}\nspec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}\n"
)

// With --on-refusal=skip, a refused object does not affect the other objects.
func TestOnRefusalSkipInjectsOtherObjects(t *testing.T) {
	in := goodPod + "---\n" + badPod
	if out, _, code := injector(t, "inject", in); code != failed || out != "" {
		t.Errorf("got exit code %d and %q, want 2 and no output", code, out)
	}
	out, report, code := injector(t, "inject", in, "--on-refusal=skip")
	if code != partial || !strings.Contains(out, "queue-proxy:dev") || !strings.HasSuffix(out, "---\n"+badPod) {
		t.Errorf("got exit code %d and\n%s\nwant 3, an injected first pod and an unchanged second pod", code, out)
	}
	if want := "2 objects: 1 injected, 1 refused (1 bad-option)\n"; !strings.HasSuffix(report, want) {
		t.Errorf("got report %q, want the suffix %q", report, want)
	}
}

// zeros is a reader that returns zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestInputAboveLimitIsRefused(t *testing.T) {
	dir := t.TempDir()
	one := filepath.Join(dir, "one.yaml")
	write(t, one, "a: b\n")
	write(t, filepath.Join(dir, "two.yaml"), "a: b\n")
	for name, read := range map[string]func(limit int) (int, error){
		"a file": func(limit int) (int, error) { in, err := readPath(one, limit); return sizeOf(in), err },
		"a directory": func(limit int) (int, error) {
			in, err := readPath(dir, limit+5) // the limit includes the length of the other file
			return sizeOf(in) - 5, err
		},
		"the standard input": func(limit int) (int, error) {
			text, err := readAll(strings.NewReader("a: b\n"), limit)
			return len(text), err
		},
	} {
		if n, err := read(5); err != nil || n != 5 {
			t.Errorf("%s: got %d bytes and error %v, want 5 bytes", name, n, err)
		}
		if _, err := read(4); !errors.Is(err, errInputTooLarge) {
			t.Errorf("%s: got error %v, want %v", name, err, errInputTooLarge)
		}
	}
	if _, err := readAll(zeros{}, 1000); !errors.Is(err, errInputTooLarge) {
		t.Errorf("endless input: got error %v, want %v", err, errInputTooLarge)
	}
	harness.Contains(t, errInputTooLarge.Error(), "limit of 128 MiB")
}

func TestSameErrorIsReportedOnce(t *testing.T) {
	out := inject.Outcome{Verdict: inject.Refused, Reason: inject.Unreadable, Text: "too large"}
	var stderr strings.Builder
	c := &command{stderr: &stderr}
	c.report([]*manifest.Result{{File: "f", Line: 1, Name: "a", Outcome: &out, SameErrors: 2}, {File: "f", Name: "b", Outcome: &out, HasSameError: true}, {File: "f", Name: "c", Outcome: &out, HasSameError: true}}, true)
	harness.Equal(t, stderr.String(), "f:1: a: refused (unreadable): too large\nf:1: the error applies to 2 more objects of the document\n")
}

func TestExplainPrintsJSON(t *testing.T) {
	out, _, code := injector(t, "explain", goodPod+"---\n"+badPod, "-o", "json")
	var got []map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != failed || len(got) != 2 {
		t.Fatalf("got exit code %d, %v and %s, want 2 and two verdicts", code, err, out)
	}
	if v := got[0]; v["verdict"] != "injected" || v["name"] != "web" || v["port"] != 8080.0 || v["line"] != 1.0 {
		t.Errorf("got %v, want injected with port 8080", v)
	}
	if v := got[1]; v["verdict"] != "refused" || v["reason"] != "bad-option" {
		t.Errorf("got %v, want refused", v)
	}
}

func TestInPlaceWritesChangedFiles(t *testing.T) {
	dir := t.TempDir()
	web, other, link := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "other.yaml"), filepath.Join(t.TempDir(), "link.yaml")
	write(t, web, goodPod)
	write(t, other, "kind: ConfigMap\n")
	harness.NoError(t, os.Chmod(web, 0o640))
	harness.NoError(t, os.Symlink(web, link))
	before, err := os.Stat(other)
	harness.NoError(t, err)
	out, _, code := injector(t, "inject", "", "-f", link, "-f", other, "--in-place")
	if code != done || out != "" || !strings.Contains(read(t, web), "queue-proxy:dev") {
		t.Errorf("got exit code %d, %q and\n%s\nwant an injected file", code, out, read(t, web))
	}
	if info, err := os.Stat(web); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got mode %v (%v), want the original mode", info.Mode(), err)
	}
	if after, err := os.Stat(other); err != nil || !os.SameFile(before, after) {
		t.Errorf("the other file was replaced (%v)", err)
	}
	if _, _, code := injector(t, "uninject", "", "-f", dir, "--in-place"); code != done || read(t, web) != goodPod {
		t.Errorf("got exit code %d and\n%s\nwant the original file", code, read(t, web))
	}
	if left, err := filepath.Glob(dir + "/.injector*"); err != nil || len(left) > 0 {
		t.Errorf("temporary files were not removed: %q (%v)", left, err)
	}
}

// If a file cannot be written, no file changes, and the error contains its name.
func TestInPlaceFailureWritesNoFile(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, first, goodPod)
	write(t, second, goodPod)
	harness.NoError(t, os.Chmod(second, 0o444))
	_, report, code := injector(t, "inject", "", "-f", dir, "--in-place")
	if want := "injector: " + second + ": the file is read-only\n"; code != failed || !strings.HasSuffix(report, want) {
		t.Errorf("got exit code %d and %q, want 2 and %q", code, report, want)
	}
	if read(t, first) != goodPod || read(t, second) != goodPod {
		t.Errorf("got\n%s\nand\n%s\nwant the original files", read(t, first), read(t, second))
	}
	if left, err := filepath.Glob(dir + "/.injector*"); err != nil || len(left) > 0 {
		t.Errorf("temporary files were not removed: %q (%v)", left, err)
	}
}

func TestMemoryLimitDependsOnInputSize(t *testing.T) {
	small := goodPod + strings.Repeat("---\n# x\n", 10_000)
	large := goodPod + "# " + strings.Repeat("x", maxSmallDocument)
	for text, want := range map[string]string{small: fmt.Sprint(400, 57<<20+18*len(small)), large: fmt.Sprint(25, int64(math.MaxInt64))} {
		for _, command := range []string{"inject", "uninject", "explain", "status"} {
			got := ""
			output := writerFunc(func(text []byte) (int, error) {
				percent := debug.SetGCPercent(25)
				debug.SetGCPercent(percent)
				got = fmt.Sprint(percent, debug.SetMemoryLimit(-1))
				return len(text), nil
			})
			run([]string{command}, chosen, strings.NewReader(text), output, io.Discard)
			harness.Equal(t, got, want, "GC percentage and memory limit in bytes of", command)
		}
	}
}

// A writerFunc is a Write method.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }
