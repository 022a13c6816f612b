// Command chart generates the templates of the Helm chart in deploy/chart from the output of
// kustomize for deploy/overlays and deploy/monitoring, so that each manifest exists only once. A
// difference between two overlays becomes a condition. insertions.go lists the fields that depend on
// the values of the chart.
//
// To generate the templates, run one of these commands in the root directory of the repository:
//
//	go run ./hack/chart
//	go test ./hack/chart -update
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// templates is the directory of the templates, relative to the root directory of the repository.
const templates = "deploy/chart/queue-proxy-injector/templates"

func main() {
	files, err := generate(".")
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(templates, name), []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// generate returns the templates by file name.
func generate(root string) (map[string]string, error) {
	built := map[string][]object{}
	for _, folder := range []string{"overlays/self-managed", "overlays/cert-manager", "overlays/ha", "overlays/policy", "monitoring"} {
		cmd := exec.Command(filepath.Join(root, "hack/kustomize"), "build", filepath.Join(root, "deploy", folder))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", folder, err, stderr.Bytes())
		}
		if built[folder], err = parse(text); err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
	}
	return write(built)
}
