package rules

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// A check that cannot fail checks nothing: each one is shown a tree that is
// broken in one place.

// parse parses files given as path and text into a tree.
func parse(t *testing.T, files map[string]string) tree {
	t.Helper()
	tr := tree{module: "example.com/m", fset: token.NewFileSet()}
	for path, text := range files {
		f, err := parser.ParseFile(tr.fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		tr.sources = append(tr.sources, source{path: path, parsed: f})
	}
	return tr
}

// oneComplaint fails unless there is exactly one complaint, and it has all words.
func oneComplaint(t *testing.T, got []string, words ...string) {
	t.Helper()
	if len(got) != 1 || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(got[0], w) }) {
		t.Errorf("got %q, want one sentence with %q", got, words)
	}
}

func none(t *testing.T, got []string) {
	t.Helper()
	if len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
}

func TestAnImportUpwardsIsRefused(t *testing.T) {
	up := map[string]string{"pkg/queue/serve.go": `package queue; import _ "example.com/m/pkg/http1"`}
	oneComplaint(t, wrongImports(parse(t, up)), "pkg/queue/serve.go", "pkg/http1", "pkg/header")

	down := map[string]string{"pkg/queue/serve.go": `package queue; import _ "example.com/m/pkg/header"`}
	none(t, wrongImports(parse(t, down)))

	inTest := map[string]string{"pkg/queue/serve_test.go": `package queue_test; import _ "example.com/m/pkg/http1"`}
	none(t, wrongImports(parse(t, inTest)))
}

func TestAPackageThatIsNotInThePlanIsRefusedOnce(t *testing.T) {
	oneComplaint(t, wrongImports(parse(t, map[string]string{
		"pkg/util/a.go": "package util",
		"pkg/util/b.go": "package util",
	})), "pkg/util", "test/rules/plan_test.go")
}

func TestTheBlackBoxSuiteMayNotLookInside(t *testing.T) {
	oneComplaint(t, wrongImports(parse(t, map[string]string{
		"test/conformance/x_test.go": `package conformance; import _ "example.com/m/pkg/header"`,
	})), "test/conformance/x_test.go", "pkg/header")
	none(t, wrongImports(parse(t, map[string]string{
		"test/conformance/x_test.go": `package conformance; import _ "example.com/m/test/app/sample"`,
	})))
}

func TestAnOutsideModuleBesideItsImporterIsRefused(t *testing.T) {
	for _, c := range []struct{ name, path, imported, want string }{
		{"another folder's module", "pkg/queue/a.go", "github.com/kelseyhightower/envconfig", "pkg/config"},
		{"a module without an importer", "pkg/queue/a.go", "github.com/pkg/errors", "no importer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := wrongImporters(parse(t, map[string]string{c.path: `package p; import _ "` + c.imported + `"`}))
			oneComplaint(t, got, c.path, c.imported, c.want)
		})
	}
	none(t, wrongImporters(parse(t, map[string]string{
		"pkg/config/config.go":     `package config; import _ "github.com/kelseyhightower/envconfig"`,
		"pkg/probe/corev1_test.go": `package probe; import _ "k8s.io/api/core/v1"`,
		"test/app/main.go":         `package main; import _ "github.com/coder/websocket"`,
	})))
}

func TestAHeavyModuleIsFoundBehindAnother(t *testing.T) {
	tr := tree{module: "example.com/m"}
	imports := map[string][]string{
		"example.com/m/cmd/queue-proxy": {"fmt", "go.opencensus.io/trace"},
		"go.opencensus.io/trace":        {"google.golang.org/grpc/codes"},
		// The standard library's own copy is not the module.
		"fmt": {"vendor/golang.org/x/net/http2/hpack"},
	}
	oneComplaint(t, heavyLinks(tr, []string{"cmd/queue-proxy"}, imports),
		"example.com/m/cmd/queue-proxy -> go.opencensus.io/trace -> google.golang.org/grpc/codes")
}

func TestWhatAPackageRemembersIsFound(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an init func", `func init() {}`, "init func"},
		{"a client", `var client = &http.Client{}`, "client"},
		{"a pool", `var pool = sync.Pool{}`, "pool"},
		{"a lock", `var mu sync.Mutex`, "no value"},
		{"a counter", `var n int`, "no value"},
		{"a number that should be a const", `var n = 5`, "const"},
		{"a clock", `var now = time.Now`, "now"},
		{"a table that is assigned to", `var table = []int{1}; func f() { table = nil }`, "assigned"},
		{"a table whose element is assigned to", `var table = []int{1}; func f() { table[0] = 2 }`, "assigned"},
		{"a map that is deleted from", `var table = map[int]int{1: 1}; func f() { delete(table, 1) }`, "assigned"},
		{"a struct whose field is counted up", `type s struct{ n int }; var a = s{}; func f() { a.n++ }`, "assigned"},
		{"a map to be filled", `var cache = make(map[string]int)`, "neither"},
		{"an error that is assigned to", `var errA = errors.New("a"); func f() { errA = nil }`, "assigned"},
	} {
		t.Run(c.name, func(t *testing.T) {
			oneComplaint(t, memories(parse(t, map[string]string{"pkg/queue/a.go": "package queue; " + c.text})), "pkg/queue/a.go", c.want)
		})
	}
}

func TestATableWrittenInAnotherFileOrPackageIsFound(t *testing.T) {
	oneComplaint(t, memories(parse(t, map[string]string{
		"pkg/queue/a.go": `package queue; var table = []int{1}`,
		"pkg/queue/b.go": `package queue; func f() { table[0]++ }`,
	})), "pkg/queue/a.go", "table")
	oneComplaint(t, memories(parse(t, map[string]string{
		"pkg/header/a.go": `package header; var Table = []int{1}`,
		"pkg/queue/b.go":  `package queue; import "example.com/m/pkg/header"; func f() { header.Table[0] = 2 }`,
	})), "pkg/header/a.go", "Table")
}

func TestErrorsAndTablesMayBePackageVariables(t *testing.T) {
	for _, text := range []string{
		`var ErrFull = errors.New("full")`,
		`var errGone = &fault{"gone"}`,
		`var _ error = (*fault)(nil)`,
		`var words = map[string]int{"a": 1}`,
		`var crlf = []byte("\r\n")`,
		`var token = func() (t [256]bool) { return t }()`,
		`var token = tokens(); func tokens() [256]bool { return [256]bool{} }`,
		`var number = regexp.MustCompile("[0-9]+")`,
		`var past = time.Unix(1, 0)`,
		"//go:embed page.html\nvar page string",
		`var words = []string{"a"}; func f() { words := []string{}; words[0] = "b"; _ = words }`,
		`var words = []string{"a"}; type s struct{ words int }; func (x *s) f() { x.words = 1 }`,
	} {
		none(t, memories(parse(t, map[string]string{"pkg/queue/a.go": "package queue\n" + text})))
	}
	none(t, memories(parse(t, map[string]string{"cmd/queue-proxy/main.go": `package main; var version = "dev"`})))
	none(t, memories(parse(t, map[string]string{"pkg/queue/a_test.go": `package queue; var seen int; func init() {}`})))
}
