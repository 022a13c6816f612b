package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestSecondInjectionChangesNothing(t *testing.T) {
	for _, p := range injected(t) {
		again, _, code := injector(t, "inject", p.made, p.args...)
		if code != done || again != p.made {
			t.Errorf("%s: got exit code %d and\n%s\nwant the unchanged input\n%s", p.name, code, again, p.made)
		}
	}
}

func TestUninjectRestoresInput(t *testing.T) {
	for _, p := range injected(t) {
		if strings.Contains(p.given, "queue-proxy.dev/status") {
			continue
		}
		back, report, code := injector(t, "uninject", p.made, "-o", "json")
		want, _, _ := injector(t, "uninject", p.given, "-o", "json")
		if code != done {
			t.Fatalf("%s: got exit code %d, want 0: %s", p.name, code, report)
		}
		if got, want := values(t, back), values(t, want); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", p.name, back, p.given)
		}
	}
}

func values(t *testing.T, stream string) []any {
	t.Helper()
	var all []any
	for d := json.NewDecoder(strings.NewReader(stream)); d.More(); {
		var v any
		harness.NoError(t, d.Decode(&v))
		all = append(all, v)
	}
	return all
}

// patched returns the result of git apply for a file.
func patched(t *testing.T, name, text, patch string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, name), text)
	cmd := exec.Command("git", "apply", "-p0", "--whitespace=nowarn")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, patch)
	}
	return read(t, filepath.Join(dir, name))
}

func TestDiffOutputIsAPatch(t *testing.T) {
	for _, p := range injected(t) {
		t.Run(p.name, func(t *testing.T) {
			patch, _, code := injector(t, "inject", p.given, append(p.args, "-o", "diff")...)
			if p.given == p.made {
				harness.Equal(t, patch, "", "the difference of what is not changed")
				harness.Equal(t, code, done, "exit code")
				return
			}
			harness.Equal(t, code, differs, "exit code")
			harness.Equal(t, patched(t, "<stdin>", p.given, patch), p.made)
		})
	}
}

// The memory for a diff must not be quadratic in the number of lines. A quadratic algorithm would
// use half a GiB for 60 documents with 3000 added lines.
func TestLargeDiffNeedsLittleMemory(t *testing.T) {
	const most = 100 << 20 // maximum number of allocated bytes
	in := strings.Repeat(read(t, golden+"/deployment/in.yaml")+"---\n", 60)
	want, _, _ := injector(t, "inject", in)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	patch := unified("f", []byte(in), []byte(want))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > most {
		t.Errorf("got %d MiB allocated, want at most %d", got>>20, most>>20)
	}
	if got := patched(t, "f", in, patch); got != want {
		t.Errorf("got %d bytes after git apply, want %d", len(got), len(want))
	}
}

func TestJSONAndYAMLOutputAreEqual(t *testing.T) {
	for _, p := range injected(t) {
		got, _, code := injector(t, "inject", p.given, append(p.args, "-o", "json")...)
		want, _, _ := injector(t, "uninject", p.made, "-o", "json")
		harness.Equal(t, code, done, p.name, "exit code")
		again, _, _ := injector(t, "uninject", got, "-o", "json")
		if !reflect.DeepEqual(values(t, again), values(t, want)) {
			t.Errorf("%s: got\n%s\nwant the values of %s", p.name, got, p.out)
		}
	}
}

// full is a writer that always fails.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestWriteErrorReturnsExitCode2(t *testing.T) {
	for _, args := range [][]string{{"inject"}, {"inject", "-o", "diff"}, {"uninject"}, {"explain", "-o", "json"}, {"policy"}, {"completion", "bash"}} {
		var stderr bytes.Buffer
		if code := run(args, chosen, strings.NewReader(goodPod), full{}, &stderr); code != failed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%q: got exit code %d and %q, want 2 and the error", args, code, stderr.String())
		}
	}
}

// The report can be printed to a terminal or a log, so it must not contain control characters of
// the manifest.
func TestReportContainsNoControlCharacters(t *testing.T) {
	in := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a\u001b[2K\u001b[1A\nb: Pod c: injected\u202e\u009b","annotations":{"queue-proxy.dev/mode":"\u001b]0;x\u0007"}},"spec":{"containers":[{"name":"web"}]}}`
	for _, command := range []string{"inject", "explain", "uninject"} {
		out, report, _ := injector(t, command, in)
		if command != "explain" {
			out = report
		}
		if strings.Count(out, "\n") != 1 || strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("%s: got %q, want one line of printable characters", command, out)
		}
	}
}

func TestDirectoryOutputIsOneStream(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "kind: ConfigMap") // the file has no final newline
	write(t, filepath.Join(dir, "b.yaml"), "kind: Secret\n")
	write(t, filepath.Join(dir, "c.yaml"), "---\nkind: Role\n")
	out, _, _ := injector(t, "inject", "", "-f", dir)
	harness.Equal(t, out, "kind: ConfigMap\n---\nkind: Secret\n---\nkind: Role\n")
}
