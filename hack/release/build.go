package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A platform is an operating system and architecture.
type platform struct {
	os, arch string

	// sidecar reports whether the sidecar supports the platform, which must be Linux. Images are
	// built only for these platforms.
	sidecar bool
}

func platforms() []platform {
	return []platform{
		{"linux", "amd64", true},
		{"linux", "arm64", true},
		{"linux", "ppc64le", true},
		{"linux", "s390x", true},
		{"darwin", "amd64", false},
		{"darwin", "arm64", false},
		{"windows", "amd64", false},
		{"windows", "arm64", false},
	}
}

// conformance is the name of the program that contains the tests of test/conformance.
const conformance = "queue-proxy-conformance"

// commands returns the names of the programs below cmd/ that support the platform. It ignores the
// directory internal, which contains packages.
func (p platform) commands(root string) ([]string, error) {
	folders, err := os.ReadDir(filepath.Join(root, "cmd"))
	var names []string
	for _, f := range folders {
		if f.IsDir() && f.Name() != "internal" && (p.sidecar || f.Name() != "queue-proxy") {
			names = append(names, f.Name())
		}
	}
	return names, err
}

// programs returns the names of all programs that support the platform.
func (p platform) programs(root string) ([]string, error) {
	names, err := p.commands(root)
	if p.sidecar {
		names = append(names, conformance)
	}
	return names, err
}

// file returns the file name of a program.
func (p platform) file(program string) string {
	if p.os == "windows" {
		return program + ".exe"
	}
	return program
}

// A builder builds programs with the Makefile of a tree, which contains the compiler flags.
type builder struct {
	root, version, commit string

	// cache is the directory of the Go build cache. If it is empty, the default is used.
	cache string
}

// build builds the programs for a platform and writes them to out.
func (b builder) build(p platform, out string) error {
	commands, err := p.commands(b.root)
	if err != nil {
		return err
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := b.makeFor(p, "build", "OUT="+out+"/", "PROGRAMS=./cmd/"+strings.Join(commands, " ./cmd/")); err != nil || !p.sidecar {
		return err
	}
	return b.makeFor(p, "conformance-program", "OUT="+out+"/")
}

// makeFor runs a target of the Makefile for a platform.
func (b builder) makeFor(p platform, args ...string) error {
	args = append([]string{"--no-print-directory", "-C", b.root, "VERSION=" + b.version, "COMMIT=" + b.commit}, args...)
	cmd := exec.Command("make", args...)
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch) //nolint:forbidigo // make and go need the environment
	if b.cache != "" {
		cmd.Env = append(cmd.Env, "GOCACHE="+b.cache)
	}
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
	}
	return nil
}

// rebuild builds the programs for a platform in a copy of the repository. It returns an error if
// they differ from the programs of the first build, which are in the directory first.
func rebuild(b builder, p platform, first string) error {
	work, err := os.MkdirTemp("", "rebuild")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	tree := filepath.Join(work, "tree")
	if err := copyTree(b.root, tree); err != nil {
		return err
	}
	b.root = tree
	if err := b.build(p, filepath.Join(work, "out")); err != nil {
		return err
	}
	programs, err := p.programs(tree)
	if err != nil {
		return err
	}
	for _, program := range programs {
		one, err := os.ReadFile(filepath.Join(first, p.file(program)))
		if err != nil {
			return err
		}
		two, err := os.ReadFile(filepath.Join(work, "out", p.file(program)))
		if err != nil {
			return err
		}
		if !bytes.Equal(one, two) {
			return fmt.Errorf("%s/%s: two builds of %s differ", p.os, p.arch, program)
		}
	}
	return nil
}

// copyTree copies all files that Git tracks, and untracked files that it does not ignore.
func copyTree(from, to string) error {
	list, err := output(gitIn(from, "ls-files", "-z", "--cached", "--others", "--exclude-standard"))
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // the file is removed, but the removal is not committed
		}
		if err != nil {
			return err
		}
		path := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
