package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// go test ./cmd/injector -update writes the outputs and reports. Review the changes to
// them.
var update = flag.Bool("update", false, "update the golden outputs")

const golden = "../../pkg/inject/testdata/pairs"

// A pair is an input and its expected output. The directory of a pair contains these files:
//
//	in.yaml or in.json    the input
//	out.yaml or out.json  the output; does not exist if an object is refused
//	report                the output on the standard error
//	args                  optional arguments, one argument on each line
//	policy                "same" if the admission policy has the same result, or "excluded: " and the
//	                      reason if the admission policy ignores the pods (test/admission checks this file)
type pair struct {
	name, in, out, report string // directory of the pair, and paths of the files in it
	given, made           string // contents of in and out; made is "" if an object is refused
	args                  []string
}

func pairs(t *testing.T) []pair {
	t.Helper()
	folders, err := os.ReadDir(golden)
	harness.NoError(t, err)
	var all []pair
	for _, f := range folders {
		dir := filepath.Join(golden, f.Name())
		p := pair{name: f.Name(), in: filepath.Join(dir, "in.yaml"), out: filepath.Join(dir, "out.yaml"), report: filepath.Join(dir, "report")}
		if _, err := os.Stat(p.in); err != nil {
			p.in, p.out = filepath.Join(dir, "in.json"), filepath.Join(dir, "out.json")
		}
		p.given = read(t, p.in)
		if made, err := os.ReadFile(p.out); err == nil {
			p.made = string(made)
		}
		if args, err := os.ReadFile(filepath.Join(dir, "args")); err == nil {
			p.args = strings.Fields(string(args))
		}
		all = append(all, p)
	}
	if got, want := len(all), 40; got < want {
		t.Fatalf("got %d pairs, want at least %d", got, want)
	}
	return all
}

// chosen is an environment with an image, which inject requires.
var chosen = []string{"INJECTOR_IMAGE=queue-proxy:dev"}

// injected returns the pairs without refused objects.
func injected(t *testing.T) []pair {
	t.Helper()
	return slices.DeleteFunc(pairs(t), func(p pair) bool { return p.made == "" })
}

// runs runs the command line with an environment and a standard input.
func runs(environ []string, in string, args ...string) (out, report string, code int) {
	var stdout, stderr bytes.Buffer
	code = run(args, environ, strings.NewReader(in), &stdout, &stderr)
	return stdout.String(), strings.ReplaceAll(stderr.String(), "<stdin>", "in"), code
}

// injector runs a command with the environment in chosen.
func injector(t *testing.T, command, in string, args ...string) (out, report string, code int) {
	t.Helper()
	return runs(chosen, in, append([]string{command}, args...)...)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	harness.NoError(t, err)
	return string(text)
}

func TestGoldenPairs(t *testing.T) {
	for _, p := range pairs(t) {
		t.Run(p.name, func(t *testing.T) {
			out, report, code := injector(t, "inject", p.given, p.args...)
			if *update {
				write(t, p.report, report)
				_ = os.Remove(p.out)
				if code == done {
					write(t, p.out, out)
				}
				return
			}
			wantCode := done
			if p.made == "" {
				wantCode = failed
			}
			harness.Equal(t, code, wantCode, report, "exit code")
			if out != p.made {
				t.Errorf("%s: got\n%s\nwant\n%s\ndifference:\n%s", p.out, out, p.made, unified(p.out, []byte(p.made), []byte(out)))
			}
			harness.Equal(t, report, read(t, p.report), p.report)
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	harness.NoError(t, os.WriteFile(name, []byte(text), 0o644))
}

func TestGoldenPairsContainPolicyResult(t *testing.T) {
	same := 0
	for _, p := range pairs(t) {
		mark := strings.TrimSpace(read(t, filepath.Join(golden, p.name, "policy")))
		reason, excluded := strings.CutPrefix(mark, "excluded: ")
		switch {
		case mark == "same" && strings.Contains(read(t, p.report), ": injected: "):
			same++
		case mark != "same" && (!excluded || reason == ""):
			t.Errorf("%s: got policy %q, want same, or excluded: and a reason", p.name, mark)
		}
	}
	if want := 25; same < want {
		t.Errorf("got %d injected pairs with the same policy result, want at least %d", same, want)
	}
}
