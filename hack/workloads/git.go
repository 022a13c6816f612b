package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the maximum size of a parsed file in bytes. Manifests of several MB contain only
// CustomResourceDefinitions.
const maxFile = 2 << 20

// excluded matches the paths of files that are not deployed, such as tests, test data, vendored
// code and examples of errors.
var excluded = regexp.MustCompile(`(^|/)(\.[^/]*|vendor|node_modules|third_party|[^/]*testdata|test-data|tests?|testing|e2e[^/]*|fixtures?|integration|conformance|bench(mark)?s?|i18n|locales?|(?i:backups?))/|[^/]*patch[^/]*$`)

// An object is a Kubernetes object in a file.
type object struct {
	path  string // path of the file in the repository
	value map[string]any
}

// objects returns the Kubernetes objects in the YAML and JSON files of a repository. It ignores
// documents with syntax errors, such as templates.
func (r repository) objects(clones string) ([]object, error) {
	_, short, _ := strings.Cut(r.name, "/")
	dir := filepath.Join(clones, filepath.FromSlash(short))
	tree, err := git(dir, "ls-tree", "-r", "--long", r.commit)
	if err != nil {
		return nil, fmt.Errorf("%w; to create the clone, run: git clone --no-checkout https://%s %s", err, r.name, filepath.Join("DIRECTORY", short))
	}
	var names []string
	var hashes bytes.Buffer
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
		names = append(names, path)
		fmt.Fprintln(&hashes, fields[2])
	}
	var all []object
	next := 0
	err = blobs(dir, &hashes, func(text []byte) {
		if bytes.Contains(text, []byte("kind")) {
			all = append(all, read(names[next], text)...)
		}
		next++
	})
	return all, err
}

// blobs calls the function each with the content of every object in a list of hashes. The content
// is empty if a partial clone does not contain the object.
func blobs(dir string, hashes io.Reader, each func([]byte)) error {
	cmd := exec.Command("git", "-C", dir, "cat-file", "--batch")
	cmd.Stdin = hashes
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n') // a line has the form "hash type size", or "hash missing"
		if err != nil {
			break
		}
		var text []byte
		if fields := strings.Fields(line); len(fields) == 3 {
			size, err := strconv.Atoi(fields[2])
			if err != nil {
				return fmt.Errorf("git cat-file: line %q: %w", line, err)
			}
			text = make([]byte, size+1) // one more byte for a newline
			if _, err := io.ReadFull(r, text); err != nil {
				return fmt.Errorf("git cat-file: %w", err)
			}
			text = text[:size]
		}
		each(text)
	}
	return cmd.Wait()
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

// read returns the objects of a file. Lists are replaced with their items.
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
