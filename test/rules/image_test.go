package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The image name must contain a registry, because Podman and Buildah do not add one.
func TestBaseImageHasRegistry(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	withRegistry := regexp.MustCompile(`^[\w-]+\.[\w.-]+/`)
	known := []string{"scratch", "${BUILDER}"}
	images := regexp.MustCompile(`(?m)^(?:ARG BUILDER=|FROM (?:--\S+ )?)(\S+)(?: AS (\S+))?$`).FindAllStringSubmatch(string(text), -1)
	for _, m := range images {
		if image := m[1]; !slices.Contains(known, image) && !withRegistry.MatchString(image) {
			t.Errorf("Dockerfile: image %s has no registry", image)
		}
		known = append(known, m[2])
	}
	if len(images) < 3 {
		t.Errorf("Dockerfile: got %d images, want the image of the builder and of the stages", len(images))
	}
}
