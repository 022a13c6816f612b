// Package rules checks the rules of the repository that no linter checks: the packages of the
// sidecar, package variables, and references in documents. Linters check all other rules, for
// example imports (depguard). plan_test.go contains the plan of the imports.
package rules

import (
	"go/token"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.." // directory of the module, relative to this package
	module = "github.com/queue-proxy/queue-proxy"
)

// TestPlanContainsEachPackage exists because depguard does not check a package without a rule.
func TestPlanContainsEachPackage(t *testing.T) {
	packages := strings.Fields(goCommand(t, "list", "-e", "-f", "{{if .GoFiles}}{{.ImportPath}}{{end}}", "./pkg/...", "./cmd/...", "./hack/..."))
	for _, name := range packages {
		_, path, _ := strings.Cut(name, module+"/")
		if !slices.ContainsFunc(plan, func(f folder) bool { return f.path == path }) {
			t.Errorf("no entry for %s and the imports of the package in plan_test.go", path)
		}
	}
	if len(packages) < 20 {
		t.Errorf("got %d packages, want at least 20", len(packages))
	}
}

// TestPackagesOutsideImportNoProductionCode exists because the linters do not read files with a build
// tag.
func TestPackagesOutsideImportNoProductionCode(t *testing.T) {
	for _, path := range outside {
		for name, file := range parse(t, token.NewFileSet(), path+"/...") {
			for _, i := range file.Imports {
				imported := strings.Trim(i.Path.Value, `"`)
				if rest, ours := strings.CutPrefix(imported, module+"/"); ours && !strings.HasPrefix(rest, "test/") {
					t.Errorf("%s imports %s, want no imports of pkg or cmd", name, rest)
				}
			}
		}
	}
}

func TestSidecarDependencies(t *testing.T) {
	packages := sidecarPackages(t)
	for name := range packages {
		if slices.ContainsFunc(heavy, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			t.Errorf("the sidecar must not link %s; see go list -deps ./cmd/queue-proxy and go mod why -m", name)
		}
	}
	modules := slices.Collect(maps.Values(packages))
	for _, name := range required {
		if !slices.Contains(modules, name) {
			t.Errorf("the sidecar does not link the required module %s", name)
		}
	}
}

// sidecarPackages returns the packages that the sidecar links on Linux and the module of each,
// without the standard library and this module.
func sidecarPackages(t *testing.T) map[string]string {
	t.Helper()
	list := goCommand(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{$.ImportPath}} {{.Path}}{{end}}{{end}}", "./cmd/queue-proxy")
	modules := map[string]string{}
	for line := range strings.Lines(list) {
		if name, path, found := strings.Cut(strings.TrimSpace(line), " "); found {
			modules[name] = path
		}
	}
	return modules
}

// goCommand returns the output of the go command in the root directory. The command runs for Linux and
// without cgo, like the build of the images.
func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
