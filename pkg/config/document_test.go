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
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// go test ./pkg/config -update writes the generated parts of the files.
var update = flag.Bool("update", false, "write the generated parts of the files")

const (
	guide   = "../../docs/configuration.md"
	example = "../../config/queue-proxy.env"
)

func TestGuideContainsGeneratedTable(t *testing.T) {
	const begin, end = "<!-- table -->\n", "<!-- /table -->\n"
	got := contents(t, guide)
	head, rest, ok := strings.Cut(got, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: markers %q and %q not found", guide, begin, end)
	}
	same(t, guide, got, head+begin+markdown()+end+tail)
}

func TestExampleIsGenerated(t *testing.T) {
	same(t, example, contents(t, example), exampleText())
}

func TestExampleContainsDefaults(t *testing.T) {
	text := contents(t, example)
	everything := strings.ReplaceAll(text, "\n#"+servingPrefix, "\n"+servingPrefix)
	for name, environ := range map[string][]EnvVar{
		"unchanged":              assignments(t, text),
		"with Knative variables": append(assignments(t, everything), EnvVar{"ON_KNATIVE", "false"}),
	} {
		c := readAll(t, environ)
		harness.Equal(t, settings(c), settings(Default()), name)
		harness.Equal(t, c.Warnings(false), nil, name, "warnings")
	}
	harness.Equal(t, len(assignments(t, everything)), len(new(Config).fields()), "variables")
}

func TestGuideExamplesAreValid(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```env\n(.*?)```").FindAllStringSubmatch(contents(t, guide), -1)
	harness.Equal(t, len(blocks), 2, "examples")
	for _, block := range blocks {
		c := readAll(t, assignments(t, block[1]))
		harness.Equal(t, c.Warnings(false), nil, block[1], "warnings")
		harness.Equal(t, c.OnKnative.V, false, block[1], "on Knative")
	}
}

func TestGuideShowsCurrentErrors(t *testing.T) {
	_, err := Read([]EnvVar{{"CONTAINER_CONCURRENCY", "-1"}, {"QUEUE_TIMEOUT_SECONDS", "5 s"}})
	if err == nil {
		t.Fatal("got no error, want two lines")
	}
	for line := range strings.Lines(err.Error() + "\n") {
		harness.Contains(t, contents(t, guide), "      "+line, "guide without", line)
	}
}

// misspeltInGuide is a misspelled variable in the guide.
const misspeltInGuide = "QUEUE_DETPH"

func TestGuideShowsCurrentWarning(t *testing.T) {
	warnings := read(t, misspeltInGuide, "50").Warnings(false)
	if len(warnings) != 1 || !strings.Contains(contents(t, guide), "      warning: "+warnings[0]+"\n") {
		t.Errorf("warning %q is missing in the guide", warnings)
	}
}

func TestGuideContainsOnlyKnownVariables(t *testing.T) {
	known := map[string]bool{servingPrefix: true, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": true, misspeltInGuide: true}
	for _, name := range everyName() {
		known[name] = true
	}
	for _, name := range regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]*\b`).FindAllString(contents(t, guide), -1) {
		if !known[name] {
			t.Errorf("%s in %s is not the name of a setting", name, guide)
		}
	}
}

// Only the tag of a setting contains the name of the setting. Messages use the method Name.
func TestStringLiteralsContainNoSettingNames(t *testing.T) {
	word := regexp.MustCompile(`[A-Z][A-Z0-9]*(_[A-Z0-9]+)+`)
	for _, dir := range []string{".", "../sidecar", "../observe/tracing", "../observe/accesslog", "../observe/metrics"} {
		for _, literal := range literals(t, dir) {
			for _, name := range word.FindAllString(literal, -1) {
				if slices.Contains(everyName(), name) {
					t.Errorf("%s: got literal %q, want a call of the Name method of the setting", dir, literal)
				}
			}
		}
	}
}

func TestSettingsHaveValidTags(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sections() {
		for _, f := range s.fields {
			for _, name := range f.names() {
				if name == "" || seen[name] {
					t.Errorf("name %q is empty or not unique", name)
				}
				seen[name] = true
			}
			tag := func(key string) string { return f.tag.Get(key) }
			if n, ok := f.setting.(interface{ bounds() (int64, int64) }); ok {
				if low, high := n.bounds(); low >= high {
					t.Errorf("%s: got bounds %d and %d, want a minimum and a maximum", f.names(), low, high)
				}
			}
			if !strings.HasSuffix(tag("desc"), ".") {
				t.Errorf("%s: got %q, want a sentence", f.names(), tag("desc"))
			}
			if tag("default") != "" && tag("derived") != "" {
				t.Errorf("%s: got default %q and derived %q, want only one", f.names(), tag("default"), tag("derived"))
			}
		}
	}
}

// The variables in this test change all derived settings.
func TestDerivedSettingsHaveTag(t *testing.T) {
	c := read(t, "CONTAINER_CONCURRENCY", "7", "SERVING_NAMESPACE", "n", "REVISION_TIMEOUT_SECONDS", "9", "OBSERVABILITY_CONFIG", prometheusAt("10.0.0.1:9191"))
	unset := Default().fields()
	for i, f := range c.fields() {
		depends := f.at().unset() && f.String() != unset[i].String()
		if depends && f.tag.Get("derived") == "" {
			t.Errorf("%s: the default %s depends on other settings; use the tag derived", f.Name(), f)
		}
	}
}

// shortAllowed shortens the descriptions of allowed values. The guide explains them before the tables.
var shortAllowed = strings.NewReplacer(
	"a duration such as 30s or 250ms", "duration",
	", from 0 to 876000h", "",
	", from 1ms to 876000h", ", at least 1ms",
	"an integer in seconds, or", "seconds or",
	"an integer in milliseconds, or", "milliseconds or",
	"an integer from ", "",
	"an integer of ", "",
	"a number from ", "",
	"a port from ", "",
	"true or false", "",
	"a comma-separated list", "list",
	"a string", "",
	"a Kubernetes core/v1 Probe in JSON, or an array of probes if ENABLE_MULTI_CONTAINER_PROBES=true", "a core/v1 Probe in JSON",
	"an integer greater than or equal to 0", "0 or more",
	"one of ", "",
)

// A section is a field of Config with its settings.
type section struct {
	title, note string
	fields      []*field
}

func sections() (all []section) {
	fields := new(Config).fields()
	for t := range reflect.TypeFor[Config]().Fields() {
		if title := t.Tag.Get("section"); title != "" {
			n := len(fieldTypes(t, false))
			all = append(all, section{title, t.Tag.Get("note"), fields[:n]})
			fields = fields[n:]
		}
	}
	return all
}

// markdown returns the tables of the settings. The notes of two sections describe the omitted variables: the
// variables for one signal of OpenTelemetry, and the TLS variables of the metrics port.
func markdown() string {
	var b strings.Builder
	lists := map[string]string{} // maps each long list of allowed values to the first variable with this list
	everything := everyName()
	for _, s := range sections() {
		fmt.Fprintf(&b, "\n### %s\n\n", s.title)
		if s.note != "" {
			fmt.Fprintf(&b, "%s\n\n", code(s.note, "`"))
		}
		known := map[string]bool{}
		for _, f := range s.fields {
			known[f.Name()] = true
		}
		b.WriteString("| variable | default | allowed | meaning |\n|---|---|---|---|\n")
		for _, f := range s.fields {
			if all := allSignals.Replace(f.Name()); all != f.Name() && known[all] {
				continue
			}
			if slices.Contains(everything, requestPort.Replace(f.Name())) && requestPort.Replace(f.Name()) != f.Name() {
				continue
			}
			name, desc := "`"+strings.Join(f.names(), "`, else `")+"`", code(f.tag.Get("desc"), "`")
			allowed := shortAllowed.Replace(f.allowed())
			if first := lists[allowed]; first != "" {
				allowed = "as `" + first + "`"
			} else if strings.Count(allowed, ",") > 2 {
				lists[allowed] = f.Name()
			}
			row := fmt.Sprintf("| %s | %s | %s | %s |\n", name, defaultText(f), allowed, desc)
			b.WriteString(strings.ReplaceAll(row, "  |", " |"))
		}
	}
	b.WriteString("\n")
	return b.String()
}

const otlpPrefix = "OTEL_EXPORTER_OTLP_"

// requestPort converts the name of a TLS variable of the metrics port to the name for the request ports.
var requestPort = strings.NewReplacer("METRICS_PROMETHEUS_TLS_", "QUEUE_PROXY_TLS_")

// allSignals converts the name of a variable for one signal to the name for all signals.
var allSignals = strings.NewReplacer(otlpPrefix+"METRICS_", otlpPrefix, otlpPrefix+"TRACES_", otlpPrefix)

// defaultText returns the default of a setting in Markdown, or "" if the setting is unset by default.
func defaultText(f *field) string {
	if text := f.tag.Get("derived"); text != "" {
		return code(text, "`")
	}
	if text := f.tag.Get("default"); text != "" {
		return "`" + text + "`"
	}
	return ""
}

func exampleText() string {
	var b strings.Builder
	b.WriteString(`# All settings of queue-proxy with their defaults. An empty value is the same as an unset variable.
# This file is generated from pkg/config. docs/configuration.md describes the settings.
#
# The variables with the prefix ` + servingPrefix + ` are commented out, because they change some defaults to
# those for Knative.
`)
	for _, s := range sections() {
		fmt.Fprintf(&b, "\n## %s\n", s.title)
		for _, f := range s.fields {
			fmt.Fprintf(&b, "\n# %s\n# Allowed: %s.\n", code(f.tag.Get("desc"), ""), f.allowed())
			if text := f.tag.Get("derived"); text != "" {
				fmt.Fprintf(&b, "# Default: %s.\n", code(text, ""))
			}
			if names := f.names(); len(names) > 1 {
				fmt.Fprintf(&b, "# Other names: %s.\n", strings.Join(names[1:], ", "))
			}
			if isServing(f.Name()) {
				b.WriteString("#")
			}
			fmt.Fprintf(&b, "%s=%s\n", f.Name(), f.tag.Get("default"))
		}
	}
	return b.String()
}

// code replaces single quotes with quote, because a struct tag cannot contain backticks.
func code(text, quote string) string {
	return regexp.MustCompile(`(^|[ (])'([^' ]+)'`).ReplaceAllString(text, "${1}"+quote+"${2}"+quote)
}

// assignments parses an env file, which contains lines NAME=value, comments and empty lines.
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
			t.Fatalf("line %q is not in the form NAME=value", line)
		}
		if !slices.Contains(everyName(), name) {
			t.Errorf("%s is not the name of a setting", name)
		}
		environ = append(environ, EnvVar{name, value})
	}
	return environ
}

// literals returns the string literals of a package, without struct tags and tests.
func literals(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: got files %v, error %v, want the files of a package", dir, files, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		harness.NoError(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				n.Tag = nil
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					all = append(all, n.Value)
				}
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
		return "" // the file will be created
	}
	harness.NoError(t, err)
	return string(text)
}

func same(t *testing.T, file, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	if *update {
		harness.NoError(t, os.WriteFile(file, []byte(want), fs.FileMode(0o644)))
		return
	}
	t.Errorf("%s is not up to date; run go test ./pkg/config -update", file)
}
