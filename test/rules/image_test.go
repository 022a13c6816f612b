package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Docker guesses the registry of a short name, podman does not.
func TestTheDockerfileNamesImagesWithTheirRegistry(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	stages := map[string]bool{"scratch": true, "${BUILDER}": true}
	for _, m := range regexp.MustCompile(`(?m)^FROM .*? AS (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		stages[m[1]] = true
	}
	seen := 0
	for _, m := range regexp.MustCompile(`(?m)^(?:FROM (?:--\S+ )?|ARG BUILDER=|.*--build-arg BUILDER=|.*--from=)(\S+)`).FindAllStringSubmatch(string(text), -1) {
		if stages[m[1]] {
			continue
		}
		seen++
		if registry, _, found := strings.Cut(m[1], "/"); !found || !strings.Contains(registry, ".") {
			t.Errorf("Dockerfile: got the image %s, want it with its registry", m[1])
		}
	}
	if seen == 0 {
		t.Error("got no image, want the builder's; has it another name?")
	}
}
