package main

import (
	"bufio"
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
	path string // path of the file below the output directory
}

// maxInput is the maximum total length of all files in bytes. The output of kubectl for
// the pods of a large cluster is about half as long.
const maxInput = 128 << 20

// sizeOf returns the length of all files in bytes.
func sizeOf(inputs []input) int {
	n := 0
	for _, in := range inputs {
		n += len(in.text)
	}
	return n
}

// errInputTooLarge is the error for input that exceeds maxInput.
var errInputTooLarge = fmt.Errorf("the input exceeds the limit of %d MiB; split it into several invocations", maxInput>>20)

// readAll reads a file. It returns errInputTooLarge if the file is longer than limit bytes.
func readAll(from io.Reader, limit int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = errInputTooLarge
	}
	return text, err
}

// readFile is like readAll, but opens the file with the given name.
func readFile(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() <= int64(limit) {
		return os.ReadFile(name) // os.ReadFile allocates the buffer once, with the size of the file
	}
	text, err := readAll(f, limit)
	if err != nil && !isPathError(err) {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return text, err
}

func isPathError(err error) bool {
	_, is := errors.AsType[*fs.PathError](err)
	return is
}

// read parses the files and directories in from, or the standard input if from is empty. The files
// of a directory are sorted by name.
func (c *command) read(from []string) ([]input, []*manifest.File, error) {
	if len(from) == 0 {
		from = []string{"-"}
	}
	c.announceTerminal(from)
	var inputs []input
	for _, path := range from {
		if path == "-" {
			text, err := readAll(c.stdin, maxInput-sizeOf(inputs))
			if err != nil {
				return nil, nil, fmt.Errorf("standard input: %w", err)
			}
			inputs = append(inputs, input{"<stdin>", text, "stdin.yaml"})
			continue
		}
		found, err := readPath(path, maxInput-sizeOf(inputs))
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

// announceTerminal prints a message if a command waits for input that a user has to type.
func (c *command) announceTerminal(from []string) {
	f, is := c.stdin.(*os.File)
	if !is || !slices.Contains(from, "-") {
		return
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	if null, err := os.Stat(os.DevNull); err != nil || !os.SameFile(info, null) {
		printLine(c.stderr, "reading standard input")
	}
}

// readPath reads a file, or the regular files of a directory. It returns an error if the total length
// exceeds limit bytes.
func readPath(path string, limit int) ([]input, error) {
	if strings.HasPrefix(path, "https://") || strings.HasPrefix(path, "http://") {
		return nil, fmt.Errorf("--filename: %q: must be a file or a directory; download the URL first", path)
	}
	info, err := os.Stat(path)
	if failed, is := errors.AsType[*fs.PathError](err); is {
		return nil, &fs.PathError{Op: "open", Path: path, Err: failed.Err} // the same message as for a file in a directory
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		text, err := readFile(path, limit)
		return []input{{path, text, filepath.Base(path)}}, err
	}
	var inputs []input
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			return err
		}
		if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() { // opening a pipe would block
			return err
		}
		text, err := readFile(name, limit-sizeOf(inputs))
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

// print writes the files to the standard output. It sets the exit code to differs if output is
// "diff" and a file would change.
func (c *command) print(output string, inputs []input, files []*manifest.File) error {
	if output == "yaml" {
		return c.printYAML(files)
	}
	var out bytes.Buffer // write to a buffer first, so that the output is empty if an error occurs
	for i, f := range files {
		if output == "diff" {
			out.WriteString(unified(inputs[i].name, inputs[i].text, f.Text()))
			continue
		}
		text, err := f.JSON()
		if err != nil {
			return err
		}
		out.Write(text)
	}
	if output == "diff" && out.Len() > 0 {
		c.code = max(c.code, differs)
	}
	_, err := c.stdout.Write(out.Bytes())
	return err
}

// printYAML writes the files to the standard output, with a --- line between two files.
func (c *command) printYAML(files []*manifest.File) error {
	out := bufio.NewWriterSize(c.stdout, 1<<20)
	last := new(lastByte)
	both := io.MultiWriter(out, last)
	for _, f := range files {
		if last.written && !f.IsEmpty() {
			if last.value != '\n' {
				_, _ = io.WriteString(both, "\n") // the following Flush returns the error
			}
			if !f.HasMark() {
				_, _ = io.WriteString(both, "---\n")
			}
		}
		if _, err := f.WriteTo(both); err != nil {
			return err
		}
	}
	return out.Flush()
}

// A lastByte is a writer that stores the last byte of the output.
type lastByte struct {
	value   byte
	written bool
}

func (l *lastByte) Write(text []byte) (int, error) {
	if len(text) > 0 {
		l.value, l.written = text[len(text)-1], true
	}
	return len(text), nil
}

// unified returns the difference between two versions of a file in the unified format, which the
// program patch supports.
func unified(name string, before, after []byte) string {
	_, text, _ := strings.Cut(string(diff.Diff(name, before, name, after)), "\n") // omit the first line, which contains a diff command
	return text
}

// writeFiles writes all files to dir. If dir is "", it replaces the input files that have
// changed.
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
		for _, name := range news { // the removal fails if the file was already renamed
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

// writeTemp writes a text to a new file in the directory of the named file. The new file has the
// mode and, if permitted, the owner of the named file. It returns an error if the named file is
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
