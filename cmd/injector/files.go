package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
)

// An input is the original content of a file.
type input struct {
	name string
	text []byte
	path string // path below the output directory
}

// read parses the files and directories in from, or the standard input if from is empty. The files
// of a directory are sorted by name.
func (c *command) read(from []string) ([]input, []*manifest.File, error) {
	if len(from) == 0 {
		from = []string{"-"}
	}
	var inputs []input
	for _, path := range from {
		if path == "-" {
			text, err := io.ReadAll(c.stdin)
			if err != nil {
				return nil, nil, fmt.Errorf("standard input: %w", err)
			}
			inputs = append(inputs, input{"<stdin>", text, "stdin.yaml"})
			continue
		}
		found, err := readPath(path)
		if err != nil {
			return nil, nil, err
		}
		inputs = append(inputs, found...)
	}
	var files []*manifest.File
	for _, in := range inputs {
		files = append(files, manifest.Parse(in.name, in.text))
	}
	return inputs, files, nil
}

func readPath(path string) ([]input, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		text, err := os.ReadFile(path)
		return []input{{path, text, filepath.Base(path)}}, err
	}
	var inputs []input
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(path, name)
		inputs = append(inputs, input{name, text, below})
		return err
	})
	if err == nil && len(inputs) == 0 {
		err = fmt.Errorf("%s: directory contains no .yaml, .yml or .json file", path)
	}
	return inputs, err
}

// print writes the files to the standard output. It sets the exit code if a difference is not
// empty.
func (c *command) print(output string, inputs []input, files []*manifest.File) error {
	var out bytes.Buffer
	for i, f := range files {
		switch output {
		case "diff":
			out.WriteString(unified(inputs[i].name, inputs[i].text, f.Text()))
		case "json":
			text, err := f.JSON()
			if err != nil {
				return err
			}
			out.Write(text)
		default:
			text := f.Text()
			if out.Len() > 0 && f.Documents() > 0 {
				if !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
					out.WriteByte('\n')
				}
				if !bytes.HasPrefix(text, []byte("---")) {
					out.WriteString("---\n")
				}
			}
			out.Write(text)
		}
	}
	if output == "diff" && out.Len() > 0 {
		c.code = max(c.code, differs)
	}
	_, err := c.stdout.Write(out.Bytes())
	return err
}

// unified returns the difference between two texts of a file in the unified format, which patch
// reads.
func unified(name string, before, after []byte) string {
	_, text, _ := strings.Cut(string(diff.Diff(name, before, name, after)), "\n") // without the line of a diff command
	return text
}

// writeFiles writes all files to a directory. If folder is "", it replaces the input files that
// have changed.
func writeFiles(dir string, inputs []input, files []*manifest.File) error {
	seen := map[string]string{}
	for _, in := range inputs {
		to := in.name
		if dir != "" {
			to = filepath.Join(dir, in.path)
		}
		if other := seen[to]; other != "" {
			return fmt.Errorf("%s: %s and %s have the same output path", to, other, in.name)
		}
		seen[to] = in.name
	}
	if dir == "" {
		return replaceFiles(inputs, files)
	}
	for i, f := range files {
		to := filepath.Join(dir, inputs[i].path)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(to, f.Text(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// replaceFiles replaces the files that have changed. It replaces no file if one of the new files
// cannot be written.
func replaceFiles(inputs []input, files []*manifest.File) error {
	var news, olds []string
	defer func() {
		for _, name := range news { // fails if the file was renamed
			_ = os.Remove(name)
		}
	}()
	for i, f := range files {
		if bytes.Equal(inputs[i].text, f.Text()) {
			continue
		}
		to, err := filepath.EvalSymlinks(inputs[i].name)
		if err != nil {
			return err
		}
		name, err := writeTemp(to, f.Text())
		if err != nil {
			return fmt.Errorf("%s: %w", inputs[i].name, err)
		}
		news, olds = append(news, name), append(olds, to)
	}
	for i, name := range news {
		if err := os.Rename(name, olds[i]); err != nil {
			return err
		}
	}
	return nil
}

// writeTemp writes a text to a new file in the directory of name. The new file has the mode and,
// if permitted, the owner of the existing file. It returns an error if the existing file is
// read-only.
func writeTemp(name string, text []byte) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o200 == 0 {
		return "", errors.New("the file is read-only")
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".injector-*")
	if path, is := errors.AsType[*fs.PathError](err); is {
		return "", fmt.Errorf("create file in the same directory: %w", path.Err)
	} else if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()))
	keepOwner(f, info)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
