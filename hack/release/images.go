package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// names returns the names of the images in the Dockerfile and the registry.
func names() []string { return []string{"queue-proxy", "queue-proxy-injector"} }

// buildImages builds both images for all platforms. For each image, it pushes a manifest list to
// the registry, or writes it to an archive in a dry run. It returns references by digest.
func (r *release) buildImages() (images, error) {
	local := func(name string) string { return "localhost/release/" + name + ":" + r.version }
	for _, name := range names() {
		// A manifest list of an earlier run can exist, and buildah would add images to it.
		_, _ = output(exec.Command("buildah", "manifest", "rm", local(name)))
		if _, err := output(exec.Command("buildah", "manifest", "create", local(name))); err != nil {
			return images{}, err
		}
	}
	for _, p := range r.platforms {
		if !p.sidecar {
			continue
		}
		r.printf("images of %s/%s", p.os, p.arch)
		// Some builders leave these arguments empty.
		flags := fmt.Sprintf("--platform %[1]s/%[2]s --build-arg TARGETOS=%[1]s --build-arg TARGETARCH=%[2]s --build-arg BUILDPLATFORM=linux/%[3]s %[4]s",
			p.os, p.arch, runtime.GOARCH, r.imageFlags)
		cmd := exec.Command("make", "--no-print-directory", "-C", r.root, "image", "IMAGE_TOOL=buildah", "VERSION="+r.version, "COMMIT="+r.commit,
			"IMAGE="+local(names()[0])+"-"+p.arch, "WEBHOOK_IMAGE="+local(names()[1])+"-"+p.arch, "IMAGE_FLAGS="+flags)
		if _, err := output(cmd); err != nil {
			return images{}, err
		}
		for _, name := range names() {
			add := exec.Command("buildah", "manifest", "add", "--os", p.os, "--arch", p.arch, local(name), "containers-storage:"+local(name)+"-"+p.arch)
			if _, err := output(add); err != nil {
				return images{}, err
			}
		}
	}
	sidecar, err := r.pushImage(names()[0], local(names()[0]))
	if err != nil {
		return images{}, err
	}
	injector, err := r.pushImage(names()[1], local(names()[1]))
	if err != nil {
		return images{}, err
	}
	return images{sidecar: sidecar, injector: injector}, r.writeDigests(sidecar, injector)
}

// writeDigests writes the image digests in the format of a workflow output.
func (r *release) writeDigests(references ...string) error {
	var b strings.Builder
	for i, reference := range references {
		_, _, digest := splitReference(reference)
		fmt.Fprintf(&b, "%s=%s\n", names()[i], digest)
	}
	return os.WriteFile(filepath.Join(r.out, "digests"), []byte(b.String()), 0o644)
}

// pushImage pushes a manifest list. It signs the image unless this is a dry run.
func (r *release) pushImage(name, list string) (string, error) {
	reference := r.registry + "/" + name
	to := "docker://" + reference + ":" + r.version
	if r.dry {
		folder := filepath.Join(r.out, "oci")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return "", err
		}
		file := filepath.Join(folder, name+".tar")
		if err := os.RemoveAll(file); err != nil { // buildah does not overwrite an archive
			return "", err
		}
		to = "oci-archive:" + file + ":" + reference + ":" + r.version
	}
	digestFile := filepath.Join(r.out, name+".digest")
	if _, err := output(exec.Command("buildah", "manifest", "push", "--all", "--digestfile", digestFile, list, to)); err != nil {
		return "", err
	}
	digest, err := os.ReadFile(digestFile)
	if err != nil {
		return "", err
	}
	reference += "@" + strings.TrimSpace(string(digest))
	if r.dry {
		return reference, nil
	}
	return reference, r.sign(name, reference)
}

// sign signs an image with the identity of the workflow, and attests the bill of materials of the
// linux/amd64 program. The archives contain the bills of materials for all platforms.
func (r *release) sign(name, reference string) error {
	if _, err := output(exec.Command("cosign", "sign", "--yes", "--recursive", reference)); err != nil {
		return err
	}
	program := map[string]string{"queue-proxy": "queue-proxy", "queue-proxy-injector": "injector"}[name]
	document := filepath.Join(r.out, "build", "linux-amd64", program+".cdx.json")
	_, err := output(exec.Command("cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", document, reference))
	return err
}
