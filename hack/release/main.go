// Command release creates the files of a release.
//
//	release install -image REF -webhook-image REF [-version V] [-out DIR]
//	        create one manifest for each installation
//	release make -version V -commit C -epoch SECONDS -registry R [-dry-run [-short] [-platforms P]] [-image-flags F] [-out DIR]
//	        create the complete release: programs, archives, checksums, images, manifests, chart, notes
//
// The Makefile runs this command in the root directory of the repository. docs/releases.md
// describes the files of a release.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("missing command: want install or make")
	}
	switch args[0] {
	case "install":
		return install(args[1:], stdout)
	case "make":
		r, err := parse(args[1:], stdout)
		if err != nil {
			return err
		}
		return r.make()
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func install(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("release install", flag.ContinueOnError)
	var i images
	flags.StringVar(&i.sidecar, "image", "", "image of the sidecar")
	flags.StringVar(&i.injector, "webhook-image", "", "image of the injector")
	version := flags.String("version", "dev", "version for the first line of each file")
	out := flags.String("out", "bin/install", "output directory")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := writeInstallations(".", *out, *version, i); err != nil {
		return err
	}
	for _, in := range installations() {
		fmt.Fprintf(stdout, "%s/%s\n", *out, in.file)
	}
	return nil
}

func parse(args []string, stdout io.Writer) (*release, error) {
	r := &release{root: ".", stdout: stdout, platforms: platforms()}
	flags := flag.NewFlagSet("release make", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "tag of the release, for example v1.2.3")
	flags.StringVar(&r.commit, "commit", "", "commit of the release")
	epoch := flags.Int64("epoch", 0, "time of the commit in seconds since the Unix epoch, used for the files in the archives")
	flags.StringVar(&r.registry, "registry", "", "registry for the images, for example ghcr.io/organization")
	flags.StringVar(&r.imageFlags, "image-flags", "", "additional flags for the image tool")
	flags.StringVar(&r.out, "out", "bin/release", "output directory")
	flags.BoolVar(&r.dry, "dry-run", false, "write the images to archives instead of the registry, and use the section on unreleased changes if the version has no section")
	flags.BoolVar(&r.short, "short", false, "skip the images and use the build cache for the second build (requires -dry-run)")
	some := flags.String("platforms", "", "platforms of the release, for example linux/arm64,windows/amd64 (requires -dry-run)")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	r.epoch = time.Unix(*epoch, 0).UTC()
	switch {
	case !tag.MatchString(r.version):
		return nil, fmt.Errorf("-version %q: the version must have the form v1.2.3 or v1.2.3-rc.1", r.version)
	case r.registry == "" || r.commit == "":
		return nil, errors.New("-registry and -commit are required")
	case (r.short || *some != "") && !r.dry:
		return nil, errors.New("-short and -platforms require -dry-run")
	case *some != "":
		return r, r.choose(strings.Split(*some, ","))
	}
	return r, nil
}

// choose selects the platforms with the given names.
func (r *release) choose(names []string) error {
	r.platforms = nil
	for _, name := range names {
		at := slices.IndexFunc(platforms(), func(p platform) bool { return p.os+"/"+p.arch == name })
		if at < 0 {
			return fmt.Errorf("-platforms: unknown platform %q", name)
		}
		r.platforms = append(r.platforms, platforms()[at])
	}
	return nil
}

// output runs a command and returns its standard output. Errors include the text that the command wrote to standard
// error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
