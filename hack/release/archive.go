package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// An entry is a file in an archive.
type entry struct {
	name string
	mode fs.FileMode
	text []byte
}

// packTar returns a compressed tar archive of the entries. made is the modification time of all
// entries. The result depends only on the arguments.
func packTar(entries []entry, made time.Time) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(e.text)), ModTime: made, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}

// packZip is like packTar, but returns a zip archive.
func packZip(entries []entry, made time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: made}
		h.SetMode(e.mode)
		f, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(e.text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

const sums = "SHA256SUMS"

// writeSums writes the checksums of all files in a directory in the format of sha256sum.
func writeSums(folder string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, f := range files {
		if f.Name() == sums {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(text), f.Name())
	}
	return os.WriteFile(filepath.Join(folder, sums), []byte(b.String()), 0o644)
}
