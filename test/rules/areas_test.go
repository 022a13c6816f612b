package rules

import (
	"slices"
	"strings"
	"testing"
)

// areas lists the directories directly below pkg, and pkg/observation/bound, which transport and fair
// import. A package may import packages of the same area and of the areas after it.
var areas = []string{
	"sidecar", "inject", "plugin", "config", "observe", "probe", "proxy", "observation", "transport", "certs", "fair", "observation/bound",
	"message",
}

// engines lists the directories below pkg/transport that contain connections and protocols.
var engines = []string{"pkg/transport/netconn", "pkg/transport/http1", "pkg/transport/http2", "pkg/transport/rewrite"}

// separate lists directories that an area must not import although they belong to a later area.
var separate = map[string][]string{
	"inject":      {"pkg/observe", "pkg/transport"},
	"plugin":      {"pkg/observe", "pkg/probe", "pkg/proxy", "pkg/transport"},
	"observe":     slices.Concat(engines, []string{"pkg/probe", "pkg/proxy"}),
	"probe":       engines,
	"proxy":       engines,
	"observation": engines,
	"transport":   {"pkg/certs", "pkg/message"},
}

// area returns the area of a directory of the plan, or "" if it is not below pkg.
func area(path string) string {
	rest, _ := strings.CutPrefix(path, "pkg/")
	if rest == path {
		return ""
	}
	if slices.Contains(areas, rest) {
		return rest
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func TestImportsFollowAreas(t *testing.T) {
	for _, f := range plan {
		from := slices.Index(areas, area(f.path))
		if area(f.path) == "" {
			continue
		}
		if from < 0 {
			t.Errorf("%s: got area %q, want one of %q", f.path, area(f.path), areas)
			continue
		}
		for _, to := range f.may {
			if slices.Index(areas, area(to)) < from {
				t.Errorf("%s imports %s, but a package may import only packages of the same area or of later areas", f.path, to)
			}
			if slices.ContainsFunc(separate[area(f.path)], func(dir string) bool { return strings.HasPrefix(to+"/", dir+"/") }) {
				t.Errorf("%s imports %s, want no imports of %q", f.path, to, separate[area(f.path)])
			}
		}
	}
}

func TestNumberOfPackagesIsLimited(t *testing.T) {
	const most = 30
	packages := slices.DeleteFunc(slices.Clone(plan), func(f folder) bool { return area(f.path) == "" })
	if len(packages) > most {
		t.Errorf("got %d packages below pkg, want at most %d", len(packages), most)
	}
}
