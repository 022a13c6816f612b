package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the directory of the module.
const root = "../../.."

// noTests lists the patterns of go test -run that intentionally select no test.
var noTests = []string{"^$", "-"}

// derived contains patterns that always match, because a command takes their values from the
// source.
var derived = []string{
	`^$name\$`,  // make fuzz uses a name that make fuzzers prints
	`$FUZZER$$`, // fuzz.yml uses a line that make fuzzers prints
}

// A checker compares selections with the source.
type checker struct {
	t          *testing.T
	complaints []string
	checked    map[string]int      // number of patterns, by the name of the flag or variable
	makefile   map[string][]goTest // go test commands by the arguments of make
}

func newChecker(t *testing.T) *checker {
	return &checker{t: t, checked: map[string]int{}, makefile: map[string][]goTest{}}
}

// pattern compares a pattern with names.
func (c *checker) pattern(file, flag, pattern string, names []string) {
	if slices.Contains(derived, pattern) || flag == "run" && slices.Contains(noTests, pattern) {
		return
	}
	c.checked[flag]++
	if err := missing(pattern, names, "names"); err != nil {
		c.complaints = append(c.complaints, fmt.Sprintf("%s: %s %s: %v", file, flag, pattern, err))
	}
}

// goTests checks go test commands.
func (c *checker) goTests(file string, tests []goTest) {
	for _, g := range tests {
		if len(g.patterns) == 0 {
			continue
		}
		functions, err := testFunctions(filepath.Join(root, g.dir), g.packages, g.tags)
		for flag, pattern := range g.patterns {
			if flag != "run" || !slices.Contains(noTests, pattern) {
				if err != nil && !slices.Contains(derived, pattern) {
					c.complaints = append(c.complaints, fmt.Sprintf("%s: -%s %s: %v", file, flag, pattern, err))
					continue
				}
				c.pattern(file, flag, topLevel(pattern), ofKind(functions, flag))
			}
		}
	}
}

// text checks the commands in the text of a file.
func (c *checker) text(file, text string) {
	tests, makes := readCommands(root, text)
	c.goTests(file, tests)
	for _, m := range makes {
		if rows, ok := m.variables["BENCH_ROWS"]; ok {
			for row := range strings.SplitSeq(rows, ",") {
				c.pattern(file, "BENCH_ROWS", "^"+regexp.QuoteMeta(row)+"$", benchGroups(c.t))
			}
		}
		if pattern, ok := m.variables["FUZZ"]; ok {
			c.pattern(file, "FUZZ", pattern, c.fuzzers())
		}
		if pattern, ok := m.variables["CLUSTER"]; ok && len(m.targets) > 0 {
			c.checked["CLUSTER"]++
			c.goTests(file, c.recipe(m.targets[0], "CLUSTER="+pattern))
		}
	}
}

// recipe returns the go test commands of a target.
func (c *checker) recipe(args ...string) []goTest {
	key := strings.Join(args, " ")
	if _, ok := c.makefile[key]; !ok {
		tests, _ := readCommands(root, dryRun(c.t, args...))
		c.makefile[key] = tests
	}
	return c.makefile[key]
}

// fuzzers returns the lines of make fuzzers.
func (c *checker) fuzzers() []string {
	return strings.Split(strings.TrimSpace(callMake(c.t, "-s", "fuzzers")), "\n")
}

// dryRun returns the commands that make would run, with all variables expanded.
func dryRun(t *testing.T, args ...string) string {
	t.Helper()
	return callMake(t, append([]string{"-n", "IMAGE_TOOL=none"}, args...)...)
}

// callMake runs make in the root, without the variables of a make that runs this test.
func callMake(t *testing.T, args ...string) string {
	t.Helper()
	cmd := makeCommand(t, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("make %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

func makeCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory"}, args...)...)
	cmd.Dir = root
	for _, variable := range os.Environ() {
		switch name, _, _ := strings.Cut(variable, "="); name {
		case "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CLUSTER", "FUZZ":
		default:
			cmd.Env = append(cmd.Env, variable)
		}
	}
	return cmd
}

// benchGroups returns the groups of rows that BENCH_ROWS can select.
func benchGroups(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "test/bench/main.go"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^var groups = \[\]string\{(.*)\}$`).FindSubmatch(text)
	if list == nil {
		t.Fatal("test/bench/main.go: no line begins with var groups")
	}
	var groups []string
	for quoted := range strings.SplitSeq(string(list[1]), ", ") {
		group, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, group)
	}
	return groups
}

var (
	// targets matches a target with a help text.
	targets = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)
	// span matches inline code that is broken across two lines.
	span = regexp.MustCompile("`[^`\n]+\n[^`\n]+`")
	// comment matches a line of a comment in Go.
	comment = regexp.MustCompile(`(?m)^\s*//.*$`)
	// child matches an argument with which a test program starts itself.
	child = regexp.MustCompile(`"-test\.run=(\^\w+\$)"`)
)

// files calls f with the name and the text of each script, workflow, document and Go file in the repository.
func files(t *testing.T, f func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "test/rules/selection"}, name) || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || name == "CHANGELOG.md" { // skip the change log, which contains old names
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch {
		case filepath.Ext(name) == ".go":
			f(name, string(text))
		case filepath.Ext(name) == ".md":
			f(name, span.ReplaceAllStringFunc(string(text), func(s string) string { return strings.ReplaceAll(s, "\n", " ") }))
		case strings.HasPrefix(string(text), "#!"), filepath.Ext(name) == ".yml":
			f(name, string(text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkTree checks all selections in the repository.
func checkTree(t *testing.T) *checker {
	t.Helper()
	c := newChecker(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range targets.FindAllStringSubmatch(string(makefile), -1) {
		c.goTests("make "+m[1], c.recipe(m[1]))
	}
	files(t, func(name, text string) {
		if filepath.Ext(name) != ".go" {
			c.text(name, text)
			return
		}
		c.text(name, strings.Join(comment.FindAllString(text, -1), "\n"))
		for _, m := range child.FindAllStringSubmatch(text, -1) {
			c.goTests(name, []goTest{{dir: filepath.Dir(name), patterns: map[string]string{"run": m[1]}}})
		}
	})
	return c
}

func TestEverySelectionMatches(t *testing.T) {
	c := checkTree(t)
	for _, complaint := range c.complaints {
		t.Error(complaint)
	}
	// The checks must find these numbers of patterns, because a check that finds no pattern
	// reports no failure.
	for flag, want := range map[string]int{"run": 12, "bench": 1, "CLUSTER": 5, "FUZZ": 1, "BENCH_ROWS": 2} {
		if got := c.checked[flag]; got < want {
			t.Errorf("got %d patterns of %s, want at least %d", got, flag, want)
		}
	}
}

func TestWrongSelectionsAreReported(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"go test -run 'TestScan|TestNoSuch' ./pkg/transport/http1/wire", "TestNoSuch"},
		{"step x 5 go test -tags e2e -run=^TestPrometheusNoSuch ./pkg/observe/metrics", "TestPrometheusNoSuch"},
		{"go test -run '^TestPrometheus' ./pkg/observe/metrics", "TestPrometheus"}, // without a tag, the file with the test is excluded
		{"go test -bench NoSuch ./pkg/proxy", "NoSuch"},
		{"go test -fuzz FuzzNoSuch ./pkg/transport/http1/wire", "FuzzNoSuch"},
		{"go test -run Test ./nosuch", "no test files"},
		{`go test -run "$NAME" ./pkg/transport/http1/wire`, "NAME"},
		{"step make fuzz FUZZ='/(wire|nosuch) '", "/nosuch "},
		{"make cluster CLUSTER='Zero|NoSuch'", "NoSuch"},
		{"make cluster CLUSTER=ComparisonWithKnativeImage", "ComparisonWith"}, // this test requires make cluster-full
		{"BENCH_ROWS=tls,nosuch make bench", "nosuch"},
	} {
		check := newChecker(t)
		check.text("file", c.text)
		if len(check.complaints) == 0 || !strings.Contains(check.complaints[0], c.want) {
			t.Errorf("%s: got %q, want an error that contains %q", c.text, check.complaints, c.want)
		}
	}
}

// A target that accepts a pattern from the user checks the pattern before its first command, because test/cluster/setup
// takes half an hour.
func TestClusterPatternIsCheckedBeforeSetup(t *testing.T) {
	for _, target := range []string{"cluster", "cluster-full"} {
		t.Run(target, func(t *testing.T) {
			first, _, _ := strings.Cut(dryRun(t, target, "CLUSTER=NoSuch"), "\n")
			words := simpleCommands(first)[0]
			check := slices.Index(words, "./test/rules/selection")
			if check < 0 {
				t.Fatalf("got %q as the first line, want the check of CLUSTER", first)
			}
			t.Chdir(root)
			if err := run(words[check+1:], nil); err == nil || !strings.Contains(err.Error(), `"NoSuch"`) {
				t.Errorf("got %v from %q, want an error with NoSuch", err, first)
			}
		})
	}
}

func TestFuzzPatternWithoutMatchFails(t *testing.T) {
	out, err := makeCommand(t, "fuzz", "FUZZ=wire FuzzChunks|NoSuch", "FUZZTIME=1x").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `"NoSuch"`) {
		t.Errorf("got %v and\n%s\nwant an error with NoSuch", err, out)
	}
}
