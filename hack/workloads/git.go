package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the size of the largest file that is parsed, in bytes. A manifest of several MB contains only
// CustomResourceDefinitions.
const maxFile = 2 << 20

// Files that are not deployed: tests, their data, vendored code, and examples of errors.
var excluded = regexp.MustCompile(`(^|/)(\.[^/]*|vendor|node_modules|third_party|[^/]*testdata|test-data|tests?|testing|e2e[^/]*|fixtures?|integration|conformance|bench(mark)?s?|i18n|locales?|(?i:backups?))/|[^/]*patch[^/]*$`)

// An object is a Kubernetes object in a file.
type object struct {
	path  string // of the file in the repository
	value map[string]any
}

// objects returns the Kubernetes objects in the YAML files of a repository. Documents with a syntax error, such as
// templates, are ignored.
func (r repository) objects(clones string) ([]object, error) {
	_, short, _ := strings.Cut(r.name, "/")
	dir := filepath.Join(clones, filepath.FromSlash(short))
	tree, err := git(dir, "ls-tree", "-r", "--long", r.commit)
	if err != nil {
		return nil, fmt.Errorf("%w; to create the clone, run: git clone --no-checkout https://%s %s", err, r.name, filepath.Join("DIRECTORY", short))
	}
	var all []object
	for line := range strings.Lines(string(tree)) {
		// The format is "mode type hash size\tpath".
		meta, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		ext := filepath.Ext(path)
		if ext != ".yaml" && ext != ".yml" && ext != ".json" || excluded.MatchString(path) {
			continue
		}
		fields := strings.Fields(meta)
		var size int
		if _, err := fmt.Sscan(fields[3], &size); err != nil || size > maxFile {
			continue
		}
		text, err := git(dir, "cat-file", "blob", fields[2])
		if err != nil {
			continue // a partial clone may not contain the file
		}
		if bytes.Contains(text, []byte("kind")) {
			all = append(all, read(path, text)...)
		}
	}
	return all, nil
}

// git runs a git command in a directory and returns its output.
func git(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("git %s: %s", strings.Join(args, " "), bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

var separator = regexp.MustCompile(`(?m)^---.*$`)

// read returns the objects of a file, including the items of lists.
func read(path string, text []byte) []object {
	var all []object
	for _, document := range separator.Split(string(text), -1) {
		var value map[string]any
		if yaml.Unmarshal([]byte(document), &value) != nil || value["kind"] == nil {
			continue
		}
		items, isList := value["items"].([]any)
		if !isList {
			items = []any{value}
		}
		for _, item := range items {
			if v, ok := item.(map[string]any); ok {
				all = append(all, object{path, v})
			}
		}
	}
	return all
}
