package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
)

// An input is one file as it was read.
type input struct {
	name string
	text []byte
	path string // below the output folder: what -f named, or what is below it
}

// read reads files, the files of folders in the order of their names, and the standard
// input, which is also what is read when nothing is named.
func (c *command) read(from []string) ([]input, error) {
	if len(from) == 0 {
		from = []string{"-"}
	}
	var inputs []input
	for _, path := range from {
		if path == "-" {
			text, err := io.ReadAll(c.stdin)
			if err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
			inputs = append(inputs, input{"<stdin>", text, "stdin.yaml"})
			continue
		}
		found, err := readPath(path)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, found...)
	}
	return inputs, nil
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
		err = fmt.Errorf("%s: no .yaml, .yml or .json file in it", path)
	}
	return inputs, err
}

// print writes the files as they are now.
func (c *command) print(output string, inputs []input, files []*manifest.File) (int, error) {
	var out bytes.Buffer
	for i, f := range files {
		switch output {
		case "diff":
			out.WriteString(unified(inputs[i].name, inputs[i].text, f.Text()))
		case "json":
			text, err := f.JSON()
			if err != nil {
				return notAtAll, err
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
	if _, err := c.stdout.Write(out.Bytes()); err != nil {
		return notAtAll, err
	}
	if output == "diff" && out.Len() > 0 {
		return differs, nil
	}
	return done, nil
}

// writeFiles writes files back where they differ, or all of them below a folder.
func writeFiles(folder string, inputs []input, files []*manifest.File) error {
	seen := map[string]string{}
	for _, in := range inputs {
		to := in.name
		if folder != "" {
			to = filepath.Join(folder, in.path)
		}
		if other := seen[to]; other != "" {
			return fmt.Errorf("%s: %s and %s would both be written there", to, other, in.name)
		}
		seen[to] = in.name
	}
	for i, f := range files {
		in := inputs[i]
		if folder == "" {
			if bytes.Equal(in.text, f.Text()) {
				continue
			}
			if err := replaceFile(in.name, f.Text()); err != nil {
				return err
			}
			continue
		}
		to := filepath.Join(folder, in.path)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(to, f.Text(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile writes a file anew, all of it or nothing. What a link points to is written, and
// keeps its mode.
func replaceFile(name string, text []byte) error {
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".injector-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone if it was renamed
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
