package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// go test ./pkg/config -update writes the parts of these files that are made from the
// table.
var update = flag.Bool("update", false, "rewrite the files that are made from the table")

const (
	guide   = "../../docs/configuration.md"
	example = "../../config/queue-proxy.env"
)

func TestGuideHasTheTable(t *testing.T) {
	const begin, end = "<!-- table -->\n", "<!-- /table -->\n"
	got := contents(t, guide)
	head, rest, ok := strings.Cut(got, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: got no marks of the table, want %q and %q", guide, begin, end)
	}
	same(t, guide, got, head+begin+markdown()+end+tail)
}

func TestExampleHasEveryVariable(t *testing.T) {
	same(t, example, contents(t, example), exampleText())
}

func TestExampleIsTheDefault(t *testing.T) {
	text := contents(t, example)
	everything := strings.ReplaceAll(text, "\n#"+servingPrefix, "\n"+servingPrefix)
	for name, environ := range map[string][]EnvVar{
		"as it is":       assignments(t, text),
		"with Knative's": append(assignments(t, everything), EnvVar{knativeName, "false"}),
	} {
		c, err := Read(environ)
		if err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
			continue
		}
		if got, want := settings(c), settings(Default()); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
		if got := c.Warnings(); len(got) > 0 {
			t.Errorf("%s: got warnings %q, want none", name, got)
		}
	}
	if got, want := len(assignments(t, everything)), len(rowsOf(table(new(Config)))); got != want {
		t.Errorf("got %d variables, want all %d", got, want)
	}
}

func TestGuideExamplesAreAllowed(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```env\n(.*?)```").FindAllStringSubmatch(contents(t, guide), -1)
	if got, want := len(blocks), 3; got != want {
		t.Fatalf("got %d examples, want %d", got, want)
	}
	for _, block := range blocks {
		c, err := Read(assignments(t, block[1]))
		if err != nil {
			t.Errorf("got %v, want no error from\n%s", err, block[1])
			continue
		}
		if got := c.Warnings(); len(got) > 0 {
			t.Errorf("got warnings %q, want none from\n%s", got, block[1])
		}
		if c.OnKnative {
			t.Errorf("got an example on Knative, want none:\n%s", block[1])
		}
	}
}

func TestGuideShowsErrorsAsTheyAre(t *testing.T) {
	_, err := Read([]EnvVar{{concurrencyName, "-1"}, {queueTimeoutName, "soon"}})
	if err == nil {
		t.Fatal("got no error, want two lines")
	}
	for line := range strings.Lines(err.Error() + "\n") {
		if text := contents(t, guide); !strings.Contains(text, "      "+line) {
			t.Errorf("got a guide without %q, want the line as it is", line)
		}
	}
}

// misspeltInGuide is the guide's example of a misspelt variable.
const misspeltInGuide = "QUEUE_DETPH"

func TestGuideShowsAWarningAsItIs(t *testing.T) {
	warnings := read(t, misspeltInGuide, "50").Warnings()
	if len(warnings) != 1 || !strings.Contains(contents(t, guide), "      warning: "+warnings[0]+"\n") {
		t.Errorf("got a guide without %q, want the line as it is", warnings)
	}
}

func TestGuideNamesNoUnknownVariable(t *testing.T) {
	known := map[string]bool{servingPrefix: true, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": true, misspeltInGuide: true}
	for _, name := range everyName() {
		known[name] = true
	}
	for _, name := range regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]*\b`).FindAllString(contents(t, guide), -1) {
		if !known[name] {
			t.Errorf("got %s in %s, want names of the table", name, guide)
		}
	}
}

// Every name is a literal once: all else says it through the table or a constant.
func TestNoNameIsSpeltTwice(t *testing.T) {
	spelt := map[string]int{}
	for _, literal := range literals(t) {
		for _, word := range regexp.MustCompile(`[A-Z0-9_]+`).FindAllString(literal, -1) {
			spelt[word]++
		}
	}
	for _, name := range everyName() {
		if got := spelt[name]; got != 1 {
			t.Errorf("%s: got %d times in the code, want once", name, got)
		}
	}
}

func TestEveryRowSaysWhatItMeans(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range table(new(Config)) {
		for _, r := range s.rows {
			for _, name := range r.names() {
				if seen[name] {
					t.Errorf("%s: got two rows, want one", name)
				}
				seen[name] = true
			}
			if !strings.HasSuffix(r.text, ".") {
				t.Errorf("%s: got %q, want a sentence", r.name, r.text)
			}
			if (r.derive == nil) != (r.rule == "") {
				t.Errorf("%s: got rule %q, want one exactly where a value is derived", r.name, r.rule)
			}
			if r.derive != nil && r.def != "" {
				t.Errorf("%s: got the default %q and a rule, want one of them", r.name, r.def)
			}
		}
	}
}

func markdown() string {
	var b strings.Builder
	for _, s := range table(new(Config)) {
		fmt.Fprintf(&b, "\n### %s\n\n", s.title)
		if s.note != "" {
			fmt.Fprintf(&b, "%s\n\n", s.note)
		}
		b.WriteString("| variable | default | allowed | meaning |\n|---|---|---|---|\n")
		for _, r := range s.rows {
			name := "`" + r.name + "`"
			for _, other := range r.also {
				name += ", else `" + other + "`"
			}
			def, allowed := "", ""
			if !r.unused() {
				def, allowed = "unset", r.allowed
			}
			if r.def != "" {
				def = "`" + r.def + "`"
			}
			if r.rule != "" {
				def = r.rule
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, def, allowed, r.text)
		}
	}
	b.WriteString("\n")
	return b.String()
}

func exampleText() string {
	var b strings.Builder
	b.WriteString(`# Every setting of queue-proxy with its default. Empty is unset.
# Made from pkg/config by its tests; docs/configuration.md explains.
#
# Those that begin with ` + servingPrefix + ` are commented out, because any of them is a
# sign of Knative.
`)
	for _, s := range table(new(Config)) {
		if s.rows[0].unused() {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n", s.title)
		for _, r := range s.rows {
			fmt.Fprintf(&b, "\n# %s\n# Allowed: %s.\n", plainText(r.text), plainText(r.allowed))
			if r.rule != "" {
				fmt.Fprintf(&b, "# Default: %s.\n", plainText(r.rule))
			}
			if r.also != nil {
				fmt.Fprintf(&b, "# Also read from: %s.\n", strings.Join(r.also, ", "))
			}
			if isServing(r.name) {
				b.WriteString("#")
			}
			fmt.Fprintf(&b, "%s=%s\n", r.name, r.def)
		}
	}
	return b.String()
}

func plainText(markdown string) string { return strings.ReplaceAll(markdown, "`", "") }

// assignments reads an env file: NAME=value on a line, comments, empty lines.
func assignments(t *testing.T, text string) []EnvVar {
	t.Helper()
	var environ []EnvVar
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("got the line %q, want NAME=value", line)
		}
		if !slices.Contains(everyName(), name) {
			t.Errorf("got %s, want a name of the table", name)
		}
		environ = append(environ, EnvVar{name, value})
	}
	return environ
}

// literals are the strings of this package's code, tests not included.
func literals(t *testing.T) []string {
	t.Helper()
	var all []string
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("got files %v, %v, want this package's", files, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, text)
			}
			return true
		})
	}
	return all
}

func contents(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) && *update {
		return "" // it is about to be written
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func same(t *testing.T, file, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), fs.FileMode(0o644)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s: got a file that differs from the table, want what go test ./pkg/config -update writes", file)
}
