package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// An installation is a manifest for kubectl apply and the directory below deploy/ from which
// kustomize builds it.
type installation struct {
	file, folder string
}

func installations() []installation {
	return []installation{
		{"install.yaml", "overlays/self-managed"},
		{"install-ha.yaml", "overlays/ha"},
		{"install-cert-manager.yaml", "overlays/cert-manager"},
		{"install-policy.yaml", "overlays/policy"},
		{"install-monitoring.yaml", "monitoring"},
	}
}

// images are references to both images, such as ghcr.io/queue-proxy/queue-proxy@sha256:...
type images struct {
	sidecar, injector string
}

// kustomization returns deploy/images/kustomization.yaml with these images.
func (i images) kustomization() (string, error) {
	var b strings.Builder
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nimages:\n")
	for _, image := range [][2]string{{"queue-proxy-injector", i.injector}, {"queue-proxy", i.sidecar}} {
		name, tag, digest := splitReference(image[1])
		if name == "" || tag == "" && digest == "" {
			return "", fmt.Errorf("image %q: want a name with a tag or a digest", image[1])
		}
		fmt.Fprintf(&b, "  - name: %s\n    newName: %s\n", image[0], name)
		if digest != "" { // a digest takes precedence over a tag
			fmt.Fprintf(&b, "    digest: %q\n", digest)
		} else {
			fmt.Fprintf(&b, "    newTag: %q\n", tag)
		}
	}
	return b.String(), nil
}

// splitReference splits an image reference. A colon before a slash belongs to a port.
func splitReference(reference string) (name, tag, digest string) {
	name, digest, _ = strings.Cut(reference, "@")
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name, tag = name[:at], name[at+1:]
	}
	return name, tag, digest
}

// writeInstallations builds all installations with the given images and writes them to out. It sets
// the images in a copy of deploy/.
func writeInstallations(root, out, version string, i images) error {
	text, err := i.kustomization()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "install")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, os.DirFS(filepath.Join(root, "deploy"))); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "images/kustomization.yaml"), []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, in := range installations() {
		built, err := output(exec.Command(filepath.Join(root, "hack/kustomize"), "build", filepath.Join(work, in.folder)))
		if err != nil {
			return fmt.Errorf("%s: %w", in.file, err)
		}
		head := fmt.Sprintf("# queue-proxy %s: deploy/%s, built by kustomize.\n", version, in.folder)
		if err := os.WriteFile(filepath.Join(out, in.file), append([]byte(head), built...), 0o644); err != nil {
			return err
		}
	}
	return nil
}
