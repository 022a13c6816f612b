//go:build cluster

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// The images of this checkout. The node contains all images, so it does not pull any.
const (
	sidecarImage  = "localhost/queue-proxy:dev"
	injectorImage = "localhost/queue-proxy-injector:dev"
	appImage      = "dev.local/sample-app:dev" // the registry is dev.local, because Knative does not resolve the tags of images in dev.local
	readmeImage   = "registry.example/queue-proxy:1"
)

// importImages imports the images that `make image` built, and the pause image, into
// containerd.
func (m *machine) importImages() error {
	built, err := filepath.Abs("../../bin/cluster")
	if err != nil {
		return err
	}
	for program, ref := range map[string]string{"pause": "localhost/pause:dev", "app": appImage} {
		if err := m.importProgram(built+"/"+program, ref, "/"+program); err != nil {
			return err
		}
	}
	for _, name := range []string{"queue-proxy", "queue-proxy-injector"} {
		if _, err := run(nil, "ctr", "-n", "k8s.io", "images", "import", built+"/images/"+name+".tar"); err != nil {
			return fmt.Errorf("%w (run test/cluster/setup)", err)
		}
	}
	_, err = run(nil, "ctr", "-n", "k8s.io", "images", "tag", sidecarImage, readmeImage)
	return err
}

// importProgram imports an image with one static program into containerd.
func (m *machine) importProgram(program, ref, as string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return m.importFiles(ref, as, map[string][]byte{strings.TrimPrefix(as, "/"): text})
}

// importFiles imports an image with executable files and a directory /tmp into containerd. The
// entrypoint is one of the files.
func (m *machine) importFiles(ref, entrypoint string, files map[string][]byte) error {
	layer, err := tarball(files, "tmp")
	if err != nil {
		return err
	}
	diff := fmt.Sprintf("%x", sha256.Sum256(layer))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": "65532:65532", "Entrypoint": []string{entrypoint}, "Env": []string{"PATH=/:/ko-app"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + diff}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{diff + ".tar"}}})
	if err != nil {
		return err
	}
	archive, err := tarball(map[string][]byte{"config.json": config, diff + ".tar": layer, "manifest.json": manifest})
	if err != nil {
		return err
	}
	file := filepath.Join(m.state, "images", diff+".tar")
	if err := os.WriteFile(file, archive, 0o644); err != nil {
		return err
	}
	_, err = run(nil, "ctr", "-n", "k8s.io", "images", "import", file)
	return errors.Join(err, os.Remove(file))
}

// tarball returns an archive that contains executable files, their directories, and directories
// that are writable for all users.
func tarball(files map[string][]byte, folders ...string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range folders {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o1777}); err != nil {
			return nil, err
		}
	}
	for name, text := range files {
		if dir, _, ok := strings.Cut(name, "/"); ok {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
