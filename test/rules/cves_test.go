package rules

import (
	"go/ast"
	"go/version"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unusedParsers are packages of the standard library with advisories in test/rules/cves.md. They parse
// protocols that the programs do not use.
var unusedParsers = []string{"net/textproto", "mime/multipart", "net/mail", "net/http/cookiejar", "net/http/httputil"}

func TestPackagesWithAdvisoriesAreNotImported(t *testing.T) {
	for name, file := range productionFiles(t) {
		for _, i := range file.Imports {
			if path := strings.Trim(i.Path.Value, `"`); slices.Contains(unusedParsers, path) {
				t.Errorf("%s imports %s, which test/rules/cves.md excludes", name, path)
			}
		}
	}
}

// proxyUsers are the identifiers of net/http that use the proxy of the environment.
var proxyUsers = []string{"ProxyFromEnvironment", "DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm"}

func TestOnlyExportersUseProxyOfEnvironment(t *testing.T) {
	users := map[string]bool{}
	for name, file := range productionFiles(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := selector.X.(*ast.Ident); ok && of.Name == "http" && slices.Contains(proxyUsers, selector.Sel.Name) {
					users[filepath.Dir(name)] = true
				}
			}
			return true
		})
	}
	if len(users) != 1 || !users["pkg/observe/export"] {
		t.Errorf("packages that use a proxy: got %v, want only pkg/observe/export", users)
	}
}

func TestLinterReportsUnhandledErrors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	_, enabled, _ := strings.Cut(string(text), "\n  enable:\n")
	enabled, _, _ = strings.Cut(enabled, "\n  settings:\n")
	if !strings.Contains(enabled, "    - errcheck\n") {
		t.Errorf("got linters\n%s\nwant errcheck", enabled)
	}
}

var (
	fixedIn = regexp.MustCompile(`Go (1\.\d+\.\d+)`)
	builtBy = regexp.MustCompile(`(?m)^ARG BUILDER=\S+/golang:(1\.\d+\.\d+)-`)
)

func TestImagesAreBuiltWithoutKnownAdvisories(t *testing.T) {
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	m := builtBy.FindSubmatch(dockerfile)
	if m == nil {
		t.Fatal("Dockerfile: no Go version found")
	}
	got := "go" + string(m[1])
	rows := fixedIn.FindAllStringSubmatch(documents(t)[filepath.Join(root, cvesFile)], -1)
	for _, row := range rows {
		if want := "go" + row[1]; version.Compare(got, want) < 0 {
			t.Errorf("Dockerfile: got %s, want at least %s, which contains a fix from test/rules/cves.md", got, want)
		}
	}
	if len(rows) == 0 {
		t.Error("test/rules/cves.md: no Go version found")
	}
}
