package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A release creates the files of one version in the directory out. The directory assets contains the
// release assets, NOTES.md contains the release notes, and oci contains the images of a dry run.
type release struct {
	root, out       string
	version, commit string
	epoch           time.Time
	registry        string
	imageFlags      string
	dry, short      bool
	platforms       []platform
	stdout          io.Writer
}

func (r *release) printf(format string, args ...any) { fmt.Fprintf(r.stdout, format+"\n", args...) }

func (r *release) asset(name string) string { return filepath.Join(r.out, "assets", name) }

// make runs all steps of a release. Cheap checks run first, and nothing is pushed before all
// programs are built twice.
func (r *release) make() error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(r.out, "assets"), 0o755); err != nil {
		return err
	}
	for _, step := range []func() error{r.writeNotes, r.buildPrograms, r.buildAgain, r.packPrograms, r.writeKrew, r.publish, r.checkSums} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) writeNotes() error {
	changelog, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	text, err := notes(string(changelog), r.version)
	if err != nil && r.dry {
		r.printf("notes: using the section on unreleased changes")
		text, err = notes(string(changelog), unreleased)
	}
	if err != nil {
		return err
	}
	if !r.dry {
		if err := checkTree(r.root, r.version); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(r.out, "NOTES.md"), []byte(withLinks(text, r.version)), 0o644)
}

func (r *release) folder(p platform) string { return filepath.Join(r.out, "build", p.os+"-"+p.arch) }

func (r *release) buildPrograms() error {
	for _, p := range r.platforms {
		r.printf("programs of %s/%s", p.os, p.arch)
		if err := (builder{root: r.root, version: r.version, commit: r.commit}).build(p, r.folder(p)); err != nil {
			return err
		}
	}
	return nil
}

// buildAgain builds all programs again in another directory and compares the results. If r.short is
// false, it uses an empty build cache.
func (r *release) buildAgain() error {
	b := builder{root: r.root, version: r.version, commit: r.commit}
	if !r.short {
		cache, err := os.MkdirTemp("", "cache")
		if err != nil {
			return err
		}
		defer os.RemoveAll(cache)
		b.cache = cache
	}
	for _, p := range r.platforms {
		if err := rebuild(b, p, r.folder(p)); err != nil {
			return err
		}
		r.printf("programs for %s/%s: the two builds are identical", p.os, p.arch)
	}
	return nil
}

// packPrograms creates an archive for each program with its bill of materials, manual pages and
// license.
func (r *release) packPrograms() error {
	cmd, err := r.makeManuals()
	if err != nil {
		return err
	}
	if _, err := output(cmd); err != nil {
		return err
	}
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	for _, p := range r.platforms {
		programs, err := p.programs(r.root)
		if err != nil {
			return err
		}
		for _, program := range programs {
			if err := r.packProgram(p, program, licence); err != nil {
				return err
			}
		}
	}
	return nil
}

// manuals returns the directory for the manual pages and the programs that print them. It is not
// bin, because the programs in bin have a different version.
func (r *release) manuals() string { return filepath.Join(r.out, "manual") }

// makeManuals returns the command that writes the manual pages to manuals()/man.
func (r *release) makeManuals() (*exec.Cmd, error) {
	out, err := filepath.Abs(r.manuals())
	return exec.Command("make", "--no-print-directory", "-C", r.root, "man", "OUT="+out+"/", "VERSION="+r.version, "COMMIT="+r.commit), err
}

// packProgram writes the archive of a program for one platform.
func (r *release) packProgram(p platform, program string, licence []byte) error {
	path := filepath.Join(r.folder(p), p.file(program))
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	document, err := output(exec.Command("go", "run", "./hack/sbom", path, r.version))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.folder(p), program+".cdx.json"), document, 0o644); err != nil {
		return err
	}
	entries := []entry{{"LICENSE", 0o644, licence}, {p.file(program), 0o755, text}, {program + ".cdx.json", 0o644, document}}
	pages, err := manual(filepath.Join(r.manuals(), "man"), program)
	if err != nil {
		return err
	}
	entries = append(entries, pages...)
	name, pack := r.archive(p, program)
	packed, err := pack(entries, r.epoch)
	if err != nil {
		return err
	}
	return os.WriteFile(r.asset(name), packed, 0o644)
}

// archive returns the file name of a program's archive for a platform, and the function that
// creates archives of this type.
func (r *release) archive(p platform, program string) (name string, pack func([]entry, time.Time) ([]byte, error)) {
	extension, pack := ".tar.gz", packTar
	if p.os == "windows" {
		extension, pack = ".zip", packZip
	}
	return strings.Join([]string{program, r.version, p.os, p.arch}, "-") + extension, pack
}

// manual returns the manual pages of a program and its commands. There are no manual pages for the
// sidecar and the conformance suite.
func manual(folder, program string) ([]entry, error) {
	if program == "queue-proxy" || program == conformance {
		return nil, nil
	}
	page := strings.ReplaceAll(program, "_", "-") // the page is named as in "man kubectl-queue-proxy"
	names, err := filepath.Glob(filepath.Join(folder, page+`[.\-]*`))
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: no manual of %s", folder, program)
	}
	var pages []entry
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		pages = append(pages, entry{"man/" + filepath.Base(name), 0o644, text})
	}
	return pages, err
}

// publish pushes the images and writes the files that refer to them by digest.
func (r *release) publish() error {
	zeros := "@sha256:" + strings.Repeat("0", 64)
	i := images{sidecar: r.registry + "/queue-proxy" + zeros, injector: r.registry + "/queue-proxy-injector" + zeros}
	if r.short {
		r.printf("images: skipped; the manifests contain all-zero digests")
	} else {
		var err error
		if i, err = r.buildImages(); err != nil {
			return err
		}
	}
	if err := writeInstallations(r.root, filepath.Join(r.out, "assets"), r.version, i); err != nil {
		return err
	}
	name, packed, err := packChart(r.root, r.version, i, r.epoch)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.asset(name), packed, 0o644); err != nil {
		return err
	}
	return writeSums(filepath.Join(r.out, "assets"))
}

// checkSums verifies the checksums with sha256sum.
func (r *release) checkSums() error {
	cmd := exec.Command("sha256sum", "--check", "--strict", "--quiet", sums)
	cmd.Dir = filepath.Join(r.out, "assets")
	if _, err := output(cmd); err != nil {
		return err
	}
	files, err := os.ReadDir(cmd.Dir)
	r.printf("%s: %d files, checksums verified", cmd.Dir, len(files))
	return err
}
