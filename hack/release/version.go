package main

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// tag matches the versions that can be released: semantic versions with the prefix "v".
var tag = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?$`)

// unreleased is the heading of the changelog section for the next version.
const unreleased = "Not released yet"

// notes returns the changelog section of a version, or the unreleased section. The heading of a
// version has the form "## v1.2.3, 2026-12-01".
func notes(changelog, version string) (string, error) {
	for _, section := range strings.Split("\n"+changelog, "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		name, date, _ := strings.Cut(heading, ", ")
		if name != version {
			continue
		}
		if name != unreleased && !regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`).MatchString(date) {
			return "", fmt.Errorf("CHANGELOG.md: %q has no date: want ## %s, YYYY-MM-DD", heading, version)
		}
		if text = strings.TrimSpace(text); text == "" {
			return "", fmt.Errorf("CHANGELOG.md: the section %q is empty", heading)
		}
		return text + "\n", nil
	}
	return "", fmt.Errorf("CHANGELOG.md: there is no section ## %s", version)
}

// checkTree returns an error if the checkout has uncommitted changes or if its commit does not have
// the tag version.
func checkTree(root, version string) error {
	status, err := output(gitIn(root, "status", "--porcelain"))
	if err != nil {
		return err
	}
	if len(status) > 0 {
		return fmt.Errorf("the working tree contains uncommitted changes:\n%s", status)
	}
	tags, err := output(gitIn(root, "tag", "--points-at", "HEAD"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(tags)) {
		if name == version {
			return nil
		}
	}
	return errors.New("the commit has no tag " + version)
}

// link matches a relative link.
var link = regexp.MustCompile(`\]\(([^):]+)\)`)

// withLinks replaces relative links with links to the files at the tag, because release notes
// are displayed outside the repository.
func withLinks(text, version string) string {
	return link.ReplaceAllString(text, "](https://"+module+"/blob/"+version+"/$1)")
}

// module is the module path and the address of the repository.
const module = "github.com/queue-proxy/queue-proxy"

func gitIn(root string, args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"-C", root}, args...)...)
}
