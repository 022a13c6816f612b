package certs

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestReadSmallFileFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	harness.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("12345"), 0o600))
	for _, link := range [][2]string{{"a", "b"}, {"b", "c"}} {
		harness.NoError(t, os.Symlink(link[0], filepath.Join(dir, link[1])))
	}
	for _, max := range []int64{5, 6} {
		if got, err := readSmallFile(filepath.Join(dir, "c"), max); string(got) != "12345" || err != nil {
			t.Errorf("at most %d bytes: got %q, %v, want the whole file", max, got, err)
		}
	}
	_, err := readSmallFile(filepath.Join(dir, "c"), 4)
	if want := filepath.Join(dir, "c") + ": larger than 4 bytes"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReadSmallFileReportsMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if _, err := readSmallFile(path, 1); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "open "+path) {
		t.Errorf("got %v, want an error because %s does not exist", err, path)
	}
}

func TestReadSmallFileRejectsIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, socket := filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	harness.NoError(t, syscall.Mkfifo(pipe, 0o600))
	l, err := net.Listen("unix", socket)
	harness.NoError(t, err)
	defer l.Close()
	harness.NoError(t, os.Symlink(pipe, filepath.Join(dir, "link")))
	for path, kind := range map[string]string{
		pipe: "named pipe", filepath.Join(dir, "link"): "named pipe", socket: "socket",
		"/dev/zero": "device", "/dev/tty": "device", dir: "directory",
	} {
		_, err := readSmallFile(path, 1)
		if want := path + ": not a regular file (" + kind + ")"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
