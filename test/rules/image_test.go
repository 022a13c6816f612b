package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Podman and Buildah do not add a registry to an image name.
func TestBaseImageHasRegistry(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^ARG BUILDER=[\w-]+\.[\w.-]+/`).Match(text) {
		t.Error("Dockerfile: got the image BUILDER without a registry")
	}
}
