package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
)

// plugin is the program of the kubectl plugin.
const plugin = "kubectl-queue_proxy"

// writeKrew writes the manifest of the kubectl plugin for the package manager krew. The manifest contains the checksums
// of the archives for all platforms.
func (r *release) writeKrew() error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: queue-proxy
spec:
  version: %s
  homepage: https://%s
  shortDescription: Inspect queue-proxy sidecars
  description: |
    The command top shows the readiness, the load, the response times and the last failure of the
    queue-proxy sidecars of a cluster.
  platforms:
`, r.version, module)
	for _, p := range r.platforms {
		archive, _ := r.archive(p, plugin)
		text, err := os.ReadFile(r.asset(archive))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, `  - selector:
      matchLabels: {os: %s, arch: %s}
    uri: https://%s/releases/download/%s/%s
    sha256: %x
    bin: %s
`, p.os, p.arch, module, r.version, archive, sha256.Sum256(text), p.file(plugin))
	}
	return os.WriteFile(r.asset("krew.yaml"), []byte(b.String()), 0o644)
}
