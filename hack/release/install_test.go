package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func TestSplitReference(t *testing.T) {
	for _, c := range [][4]string{
		{"queue-proxy:dev", "queue-proxy", "dev", ""},
		{"localhost:5000/queue-proxy", "localhost:5000/queue-proxy", "", ""},
		{"localhost:5000/queue-proxy:1", "localhost:5000/queue-proxy", "1", ""},
		{"r.example/q@sha256:ab", "r.example/q", "", "sha256:ab"},
		{"r.example/q:1@sha256:ab", "r.example/q", "1", "sha256:ab"},
	} {
		name, tag, digest := splitReference(c[0])
		if got := [4]string{c[0], name, tag, digest}; got != c {
			t.Errorf("got %q, want %q", got, c)
		}
	}
}

func TestImageWithoutTagReturnsError(t *testing.T) {
	for _, bad := range []string{"", "queue-proxy", "localhost:5000/queue-proxy", ":1"} {
		if _, err := (images{sidecar: bad, injector: "injector:1"}).kustomization(); err == nil || !strings.Contains(err.Error(), "want a name with a tag or a digest") {
			t.Errorf("%q: got %v, want an error about the missing tag or digest", bad, err)
		}
	}
}

func TestInstallationsContainImages(t *testing.T) {
	out := t.TempDir()
	asked := images{sidecar: "r.example:5000/q:1", injector: "r.example/i:2@sha256:" + strings.Repeat("a", 64)}
	if err := writeInstallations(root, out, "v1.2.3", asked); err != nil {
		t.Fatal(err)
	}
	injector := "r.example/i@sha256:" + strings.Repeat("a", 64) // the tag is omitted, because the digest identifies the image
	want := map[string][]string{
		"install.yaml": {asked.sidecar, injector}, "install-ha.yaml": {asked.sidecar, injector}, "install-cert-manager.yaml": {asked.sidecar, injector},
		"install-policy.yaml": {asked.sidecar}, "install-monitoring.yaml": nil,
	}
	for _, in := range installations() {
		text, err := os.ReadFile(filepath.Join(out, in.file))
		if err != nil {
			t.Fatal(err)
		}
		if got := regexp.MustCompile(`r\.example[\w.:/@]+|sha256:0+`).FindAllString(string(text), -1); !slices.Equal(got, want[in.file]) {
			t.Errorf("%s: got images %q, want %q", in.file, got, want[in.file])
		}
		if first, _, _ := strings.Cut(string(text), "\n"); !strings.Contains(first, "v1.2.3") {
			t.Errorf("%s: got first line %q, want the version in it", in.file, first)
		}
	}
}

// Each overlay in deploy/overlays can be installed with one file.
func TestEveryOverlayHasInstallation(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(root, "deploy/overlays/*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("got %v, %v, want overlays", folders, err)
	}
	for _, folder := range folders {
		if name := "overlays/" + filepath.Base(folder); !slices.ContainsFunc(installations(), func(in installation) bool { return in.folder == name }) {
			t.Errorf("no file for deploy/%s", name)
		}
	}
}
