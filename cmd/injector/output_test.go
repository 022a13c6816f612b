package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

const (
	goodPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}\n"
	badPod  = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, annotations: {queue-proxy.dev/what: \"\"}}\nspec: {containers: [{name: web, ports: [{containerPort: 8080}]}]}\n"
)

// One refusal must not stop a folder of files, where whoever runs it says so.
func TestOnRefusalSkipDoesTheRest(t *testing.T) {
	in := goodPod + "---\n" + badPod
	if out, _, code := injector(t, "inject", in); code != notAtAll || out != "" {
		t.Errorf("got exit code %d and %q, want 2 and nothing", code, out)
	}
	out, report, code := injector(t, "inject", in, "-on-refusal=skip")
	if code != partly || !strings.Contains(out, "queue-proxy:dev") || !strings.HasSuffix(out, "---\n"+badPod) {
		t.Errorf("got exit code %d and\n%s\nwant 3, the first pod injected and the second as it was", code, out)
	}
	if want := "2 objects: 1 injected, 1 refused (1 bad-option)\n"; !strings.HasSuffix(report, want) {
		t.Errorf("got the report %q, want it to end with %q", report, want)
	}
}

func TestAQuietReportHasRefusalsAlone(t *testing.T) {
	_, report, _ := injector(t, "inject", goodPod+"---\n"+badPod, "-q", "-on-refusal=skip")
	if strings.Count(report, "\n") != 1 || !strings.Contains(report, "Pod bad: refused") {
		t.Errorf("got %q, want one line about what is refused", report)
	}
}

// Most objects of a cluster make no pods; a line about each would hide the others.
func TestWhatMakesNoPodsIsCountedAndNotReported(t *testing.T) {
	in := strings.Repeat("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n", 3) + goodPod
	_, report, _ := injector(t, "inject", in)
	if strings.Contains(report, "ConfigMap") || !strings.Contains(report, "4 objects: 1 injected, 3 skipped (3 no-pods)\n") {
		t.Errorf("got %q, want the ConfigMaps counted alone", report)
	}
}

func TestExplainWritesVerdictsForPrograms(t *testing.T) {
	out, _, code := injector(t, "explain", goodPod+"---\n"+badPod, "-o", "json")
	var got []map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != notAtAll || len(got) != 2 {
		t.Fatalf("got exit code %d, %v and %s, want 2 and two verdicts", code, err, out)
	}
	if v := got[0]; v["verdict"] != "injected" || v["name"] != "web" || v["port"] != 8080.0 || v["line"] != 1.0 {
		t.Errorf("got %v, want the pod injected on 8080", v)
	}
	if v := got[1]; v["verdict"] != "refused" || v["reason"] != "bad-option" {
		t.Errorf("got %v, want it refused", v)
	}
}

func TestInPlaceWritesTheFilesThatChange(t *testing.T) {
	dir := t.TempDir()
	web, other, link := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "other.yaml"), filepath.Join(t.TempDir(), "link.yaml")
	write(t, web, goodPod)
	write(t, other, "kind: ConfigMap\n")
	harness.NoError(t, os.Chmod(web, 0o640))
	harness.NoError(t, os.Symlink(web, link))
	before, err := os.Stat(other)
	harness.NoError(t, err)
	out, _, code := injector(t, "inject", "", "-f", link, "-f", other, "-in-place")
	if code != done || out != "" || !strings.Contains(read(t, web), "queue-proxy:dev") {
		t.Errorf("got exit code %d, %q and\n%s\nwant the file injected", code, out, read(t, web))
	}
	if info, err := os.Stat(web); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got the mode %v (%v), want that of before", info.Mode(), err)
	}
	if after, err := os.Stat(other); err != nil || !os.SameFile(before, after) {
		t.Errorf("got the other file written (%v), want it left", err)
	}
	if _, _, code := injector(t, "uninject", "", "-f", dir, "-in-place"); code != done || read(t, web) != goodPod {
		t.Errorf("got exit code %d and\n%s\nwant what it was", code, read(t, web))
	}
	if left, err := filepath.Glob(dir + "/.injector*"); err != nil || len(left) > 0 {
		t.Errorf("got %q left (%v), want nothing", left, err)
	}
}

// A file that cannot be written leaves the others as they were, and is named.
func TestInPlaceWritesAllFilesOrNone(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, first, goodPod)
	write(t, second, goodPod)
	harness.NoError(t, os.Chmod(second, 0o444))
	_, report, code := injector(t, "inject", "", "-f", dir, "-in-place")
	if want := "injector: " + second + ": it is read-only\n"; code != notAtAll || !strings.HasSuffix(report, want) {
		t.Errorf("got exit code %d and %q, want 2 and %q", code, report, want)
	}
	if read(t, first) != goodPod || read(t, second) != goodPod {
		t.Errorf("got\n%s\nand\n%s\nwant both as they were", read(t, first), read(t, second))
	}
	if left, err := filepath.Glob(dir + "/.injector*"); err != nil || len(left) > 0 {
		t.Errorf("got %q left (%v), want nothing", left, err)
	}
}

func TestAnOutputFolderHasAllFiles(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	harness.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o777))
	write(t, filepath.Join(dir, "sub", "web.yaml"), goodPod)
	write(t, filepath.Join(dir, "c.yaml"), "kind: ConfigMap\n")
	if _, report, code := injector(t, "inject", "", "-f", dir, "-output-dir", to); code != done {
		t.Fatalf("got exit code %d: %s", code, report)
	}
	harness.Equal(t, read(t, filepath.Join(to, "c.yaml")), "kind: ConfigMap\n", "(the file as it was)")
	if got := read(t, filepath.Join(to, "sub", "web.yaml")); !strings.Contains(got, "queue-proxy:dev") || read(t, filepath.Join(dir, "sub", "web.yaml")) != goodPod {
		t.Errorf("got\n%s\nwant it injected there, and left here", got)
	}
	if _, _, code := injector(t, "inject", "", "-f", dir+"/c.yaml", "-f", dir+"/c.yaml", "-output-dir", to); code != notAtAll {
		t.Errorf("got exit code %d, want 2: two files would be written to one", code)
	}
}

// The image that make image builds is on no node but the builder's.
func TestAnImageMustBeChosen(t *testing.T) {
	zeros := "queue-proxy@sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		args []string
		in   string
		code int
	}{
		{[]string{"inject"}, goodPod, notAtAll},
		{[]string{"inject", "--image", zeros}, goodPod, notAtAll},
		{[]string{"inject", "--image", "queue-proxy:dev"}, goodPod, done},
		{[]string{"inject"}, strings.Replace(goodPod, "{name: web}", `{name: web, annotations: {queue-proxy.dev/image: "own:1"}}`, 1), done},
		{[]string{"inject"}, "kind: ConfigMap\n", done},
		{[]string{"inject", "-o", "diff"}, goodPod, differs},
		{[]string{"explain"}, goodPod, done},
		{[]string{"serve"}, "", notAtAll},
		{[]string{"serve", "--image", zeros}, "", notAtAll},
	} {
		out, report, code := runs(nil, c.in, c.args...)
		if code != c.code || code == notAtAll && (!strings.Contains(report, "image: which one?") || out != "") {
			t.Errorf("%q: got exit code %d, %q and %q, want %d", c.args, code, out, report, c.code)
		}
	}
}

func TestFlagsThatExcludeOneAnotherAreErrors(t *testing.T) {
	for _, args := range [][]string{
		{"-in-place"}, {"-f", "-", "-in-place"}, {"-f", "x", "-in-place", "-output-dir", "y"}, {"-f", "x", "-in-place", "-o", "diff"}, {"-on-refusal", "deny"},
	} {
		if _, report, code := injector(t, "inject", "", args...); code != notAtAll || !strings.Contains(report, "-") {
			t.Errorf("%q: got exit code %d and %q, want 2 and what is wrong", args, code, report)
		}
	}
}

// A real shell is asked: what it would offer behind a beginning.
func TestTheShellCompletesCommandsAndFlags(t *testing.T) {
	script, _, code := injector(t, "completion", "", "bash")
	if code != done {
		t.Fatalf("got exit code %d, want 0", code)
	}
	for words, want := range map[string]string{
		"injector unin": "uninject", "injector inject -on-": "-on-refusal", "injector inject --on-": "--on-refusal", "injector explain -ste": "-step", "injector serve -self": "-self-managed",
		"injector completion f": "fish", "injector help ex": "explain", "injector inject --concur": "--concurrency", "injector inject -on-refusal s": "skip", "injector serve -on-refusal a": "allow",
		"injector explain -o t": "text", "injector inject -o d": "diff", "injector status -": "-f -help",
	} {
		list := strings.Fields(words)
		ask := script + "\nCOMP_WORDS=(" + words + ")\nCOMP_CWORD=" + strconv.Itoa(len(list)-1) + "\n_injector\necho \"${COMPREPLY[@]}\"\n"
		out, err := exec.Command("bash", "-c", ask).CombinedOutput()
		if err != nil || string(out) != want+"\n" {
			t.Errorf("%s: got %q (%v), want %q", words, out, err, want)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		if out, _, code := injector(t, "completion", "", shell); code != done || !strings.Contains(out, "on-refusal") {
			t.Errorf("%s: got exit code %d and %q, want the flags", shell, code, out)
		}
	}
	if _, _, code := injector(t, "completion", "", "csh"); code != notAtAll {
		t.Errorf("got exit code %d for an unknown shell, want 2", code)
	}
}

// help of each command says what it is for, how it is called, and, but for the shortest, shows
// it; a page of manual is made of it.
func TestHelpHasADescriptionEveryFlagAndAnExample(t *testing.T) {
	dir := t.TempDir()
	if out, report, code := injector(t, "man", "", dir); code != done || out != "" || report != "" {
		t.Fatalf("man: got exit code %d, %q and %q, want pages alone", code, out, report)
	}
	for _, name := range append(commandNames(), "") {
		text := help(name)
		page := read(t, filepath.Join(dir, strings.TrimSuffix("injector-"+strings.TrimSuffix(name, "help"), "-")+".1"))
		if !strings.HasPrefix(text, "injector ") || !strings.Contains(text, "\nUsage:\n\n  injector ") || !strings.Contains(text, "\nExample") {
			t.Errorf("help %s: got\n%s\nwant a description, the usage and an example", name, text)
		}
		for line := range strings.Lines(text) {
			if len(strings.TrimSuffix(line, "\n")) > 80 || strings.Contains(line, "\t") {
				t.Errorf("help %s: got the line %q, want one that fits a terminal", name, line)
			}
		}
		for _, section := range []string{".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n", ".SH EXAMPLES\n"} {
			if !strings.Contains(page, section) {
				t.Errorf("page of %q: got no %q", name, section)
			}
		}
		if flags := flagsOf(name); flags != nil {
			flags.VisitAll(func(f *flag.Flag) {
				if !strings.Contains(text, "\n  -"+f.Name) || !strings.Contains(page, "\n.B "+strings.ReplaceAll("-"+f.Name, "-", `\-`)) {
					t.Errorf("help and page of %s: got no -%s", name, f.Name)
				}
			})
		}
		if !strings.Contains(overview, "\n  injector "+name) {
			t.Errorf("got help without %s", name)
		}
	}
	if _, report, code := injector(t, "man", ""); code != notAtAll || !strings.Contains(report, "which folder?") {
		t.Errorf("man without a folder: got exit code %d and %q, want 2", code, report)
	}
}

func TestHelpOfACommandIsWhatItSaysBehindTheFlag(t *testing.T) {
	for _, name := range commandNames() {
		help, report, code := runs(nil, "", "help", name)
		if code != done || help == "" || report != "" {
			t.Errorf("help %s: got exit code %d, %q and %q, want help", name, code, help, report)
		}
		behind, _, code := runs(nil, "", name, "--help")
		harness.Equal(t, code, done, name, "--help: exit code")
		harness.Equal(t, behind, help, name, "--help", "(what help prints)")
	}
	if _, report, code := injector(t, "help", "", "injetc"); code != notAtAll || !strings.Contains(report, "injetc") {
		t.Errorf("got exit code %d and %q for an unknown command, want 2", code, report)
	}
}
