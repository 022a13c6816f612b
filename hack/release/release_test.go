package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const changelog = `# Changes

## Not released yet

### Texts

* One.

## v1.2.3, 2026-12-01

* Two.

## v1.2.2

* Three.

## v1.2.1, 2026-11-01

`

func TestNotesReturnsVersionSection(t *testing.T) {
	for version, want := range map[string]string{unreleased: "### Texts\n\n* One.\n", "v1.2.3": "* Two.\n"} {
		if got, err := notes(changelog, version); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", version, got, err, want)
		}
	}
	for version, want := range map[string]string{
		"v1.2.2": "has no date", "v1.2.1": "is empty", "v1.2": "there is no section ## v1.2", "v9.9.9": "there is no section",
	} {
		if got, err := notes(changelog, version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, %v, want an error with %q", version, got, err, want)
		}
	}
}

func TestNotesLinksUseTag(t *testing.T) {
	got := withLinks("[a](docs/a.md#b), [c](https://c.test/d)", "v1.2.3")
	if want := "[a](https://github.com/queue-proxy/queue-proxy/blob/v1.2.3/docs/a.md#b), [c](https://c.test/d)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestChangelogHasUnreleasedSection(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := notes(string(text), unreleased); err != nil {
		t.Errorf("got %v, want the unreleased section", err)
	}
}

func TestParseRejectsInvalidVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.2.3": true, "v0.1.0-rc.1": true, "1.2.3": false, "v1.2": false, "v01.2.3": false, "v1.2.3+meta": false, "v1.2.3-": false, "": false, "v1.2.3 ": false,
	} {
		_, err := parse([]string{"-version", version, "-registry", "ghcr.io/o", "-commit", "c"}, io.Discard)
		if got := err == nil; got != want {
			t.Errorf("%q: got accepted %v (%v), want %v", version, got, err, want)
		}
	}
}

func TestPartialReleaseRequiresDryRun(t *testing.T) {
	whole := []string{"-version", "v1.2.3", "-registry", "r", "-commit", "c"}
	for _, part := range [][]string{{"-short"}, {"-platforms", "linux/arm64"}, {"-dry-run", "-platforms", "linux/riscv64"}} {
		if _, err := parse(append(slices.Clone(whole), part...), io.Discard); err == nil {
			t.Errorf("%q: got no error, want one", part)
		}
	}
	r, err := parse(append(whole, "-dry-run", "-platforms", "linux/s390x,windows/arm64"), io.Discard)
	if err != nil || !slices.Equal(r.platforms, []platform{{"linux", "s390x", true}, {"windows", "arm64", false}}) {
		t.Errorf("got %v, %v, want both platforms", r, err)
	}
}

// repository creates a repository with one commit.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "f"}, {"-c", "user.name=n", "-c", "user.email=e@x.test", "commit", "-qm", "m"}, {"tag", "v1.2.3"}} {
		if _, err := output(gitIn(dir, args...)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCheckTreeRequiresCleanTag(t *testing.T) {
	dir := repository(t)
	if err := checkTree(dir, "v1.2.3"); err != nil {
		t.Errorf("got %v, want no error for a tagged commit", err)
	}
	if err := checkTree(dir, "v1.2.4"); err == nil || !strings.Contains(err.Error(), "no tag v1.2.4") {
		t.Errorf("got %v, want an error about the tag", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkTree(dir, "v1.2.3"); err == nil || !strings.Contains(err.Error(), "uncommitted changes") {
		t.Errorf("got %v, want an error about uncommitted changes", err)
	}
}

func TestCopyTreeUsesGitFiles(t *testing.T) {
	from, to := repository(t), t.TempDir()
	for name, text := range map[string]string{"f": "2", "new": "3", ".gitignore": "ignored\n", "ignored": "4"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTree(from, to); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"f": "2", "new": "3", "ignored": ""} {
		if got, _ := os.ReadFile(filepath.Join(to, name)); string(got) != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestArchivesAreReproducible(t *testing.T) {
	entries := []entry{{"a", 0o755, []byte("1")}, {"b/c", 0o644, []byte("2")}}
	made := time.Unix(1_700_000_000, 0).UTC()
	for name, pack := range map[string]func([]entry, time.Time) ([]byte, error){"tar": packTar, "zip": packZip} {
		one, err := pack(entries, made)
		if err != nil {
			t.Fatal(err)
		}
		if two, err := pack(entries, made); err != nil || !bytes.Equal(one, two) {
			t.Errorf("%s: archives differ (%v)", name, err)
		}
	}
	packed, err := packTar(entries, made)
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("tar", "--list", "--verbose", "--gzip", "--utc", "--file", "-")
	list.Stdin = bytes.NewReader(packed)
	got, err := output(list)
	if err != nil || !strings.Contains(string(got), "-rwxr-xr-x 0/0") || !strings.Contains(string(got), "2023-11-14 22:13 b/c") {
		t.Errorf("got %s, %v, want the file modes and the commit time", got, err)
	}
}

func TestManualContainsOnlyProgramPages(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"injector.1", "injector-inject.1", "injectors.1", "kubectl-queue-proxy.1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := manual(dir, "injector")
	if err != nil || len(pages) != 2 || pages[0].name != "man/injector-inject.1" || pages[1].name != "man/injector.1" {
		t.Errorf("got %v, %v, want both pages of the injector", pages, err)
	}
	if pages, err := manual(dir, "kubectl-queue_proxy"); err != nil || len(pages) != 1 {
		t.Errorf("got %v, %v, want the page of the plugin", pages, err)
	}
	for _, program := range []string{"queue-proxy", conformance} {
		if pages, err := manual(dir, program); err != nil || len(pages) != 0 {
			t.Errorf("%s: got %v, %v, want no pages", program, pages, err)
		}
	}
	if _, err := manual(dir, "top"); err == nil {
		t.Error("got no error for a program without a manual page")
	}
}

// A dry run must not overwrite the programs in bin, because they have a different version.
func TestManualPagesDoNotOverwritePrograms(t *testing.T) {
	r := &release{root: root, out: t.TempDir(), version: "v1.2.3", commit: "c"}
	cmd, err := r.makeManuals()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append(cmd.Args, "--dry-run")
	got, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	got = bytes.ReplaceAll(got, []byte(r.out), []byte("OUT"))
	if !bytes.Contains(got, []byte("-o OUT/manual/ ")) || bytes.Contains(got, []byte("bin/")) {
		t.Errorf("got commands\n%s\nwant no file in bin", got)
	}
}

func TestKrewManifestContainsChecksums(t *testing.T) {
	r := &release{out: t.TempDir(), version: "v1.2.3", platforms: []platform{{"linux", "arm64", true}, {"windows", "amd64", false}}}
	if err := os.Mkdir(filepath.Join(r.out, "assets"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubectl-queue_proxy-v1.2.3-linux-arm64.tar.gz", "kubectl-queue_proxy-v1.2.3-windows-amd64.zip"} {
		if err := os.WriteFile(r.asset(name), []byte("archive"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.writeKrew(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(r.asset("krew.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const sum = "0eb3e36bfb24dcd9bb1d1bece1531216b59539a8fde17ee80224af0653c92aa3"
	for _, want := range []string{
		"  version: v1.2.3\n",
		"matchLabels: {os: linux, arch: arm64}\n    uri: https://github.com/queue-proxy/queue-proxy/releases/download/v1.2.3/kubectl-queue_proxy-v1.2.3-linux-arm64.tar.gz\n    sha256: " + sum + "\n    bin: kubectl-queue_proxy\n",
		"matchLabels: {os: windows, arch: amd64}\n",
		"    bin: kubectl-queue_proxy.exe\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("got no %q in\n%s", want, got)
		}
	}
}

func TestChecksumsPassSha256sum(t *testing.T) {
	r := &release{out: t.TempDir(), stdout: io.Discard}
	folder := filepath.Join(r.out, "assets")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "a"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeSums(folder); err != nil {
		t.Fatal(err)
	}
	if err := r.checkSums(); err != nil {
		t.Errorf("got %v, want valid checksums", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "a"), []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.checkSums(); err == nil {
		t.Error("got no error for a changed file")
	}
}

func TestPackChartSetsVersionAndImages(t *testing.T) {
	i := images{sidecar: "r.example/q@sha256:" + strings.Repeat("1", 64), injector: "r.example/i:2"}
	name, packed, err := packChart(root, "v1.2.3-rc.1", i, time.Unix(0, 0))
	if err != nil || name != "queue-proxy-injector-1.2.3-rc.1.tgz" {
		t.Fatalf("got %s, %v, want queue-proxy-injector-1.2.3-rc.1.tgz", name, err)
	}
	dir := t.TempDir()
	extract := exec.Command("tar", "--extract", "--gzip", "--directory", dir)
	extract.Stdin = bytes.NewReader(packed)
	if _, err := output(extract); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"Chart.yaml":                "\nversion: 1.2.3-rc.1\nappVersion: 1.2.3-rc.1\n",
		"values.yaml":               "  injector: r.example/i:2\n  sidecar: " + i.sidecar + "\n",
		"values.schema.json":        `"additionalProperties": false`,
		".helmignore":               "*",
		"templates/deployment.yaml": "kind: Deployment",
		"templates/NOTES.txt":       "rollout restart",
		"files/rules.yaml":          "alert: ",
		"files/dashboard.json":      `"panels"`,
	} {
		path := filepath.Join(dir, chartName, file)
		got, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: got %.200s, %v, want %q in it", file, got, err, want)
		}
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: got %v, want a regular file", file, err)
		}
	}
}

// In a checkout, the images of the chart are the images in deploy/images.
func TestChartImagesMatchOverlays(t *testing.T) {
	values, err := os.ReadFile(filepath.Join(root, chartFolder, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	component, err := os.ReadFile(filepath.Join(root, "deploy/images/kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range chartImage.FindAllString(string(values), -1) {
		name, _, digest := splitReference(strings.Fields(m)[1])
		if want := "newName: " + name + "\n    digest: " + digest + "\n"; !strings.Contains(string(component), want) {
			t.Errorf("got %s in the chart, want the images in deploy/images:\n%s", m, component)
		}
	}
}

func TestSidecarIsOnlyBuiltForLinux(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(root, "cmd/*/main.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range platforms() {
		got, err := p.programs(root)
		if err != nil {
			t.Fatal(err)
		}
		want := len(folders) + 1 // one additional program: the conformance suite
		if p.os != "linux" {
			want -= 2
		}
		if len(got) != want || slices.Contains(got, "queue-proxy") != (p.os == "linux") || slices.Contains(got, conformance) != (p.os == "linux") {
			t.Errorf("%s/%s: got %q, want %d programs, with the sidecar and the conformance suite only on Linux", p.os, p.arch, got, want)
		}
	}
}
