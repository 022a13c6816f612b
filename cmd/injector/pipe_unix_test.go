//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Reading a pipe without a writer would block.
func TestPipesInDirectoryAreIgnored(t *testing.T) {
	dir := t.TempDir()
	harness.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte("kind: Pod\n"), 0o600))
	harness.NoError(t, os.Symlink("web.yaml", filepath.Join(dir, "link.yaml")))
	harness.NoError(t, os.Symlink(dir, filepath.Join(dir, "self.yaml")))
	harness.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
	inputs, err := readPath(dir, maxInput)
	harness.NoError(t, err)
	var names []string
	for _, in := range inputs {
		names = append(names, in.path)
	}
	harness.Equal(t, names, []string{"link.yaml", "web.yaml"})
}
