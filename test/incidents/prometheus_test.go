//go:build !e2e

package incidents

import "testing"

// startPrometheus does nothing, because the prometheus command is only required for end-to-end tests.
func startPrometheus(*testing.T) {}
