package conformance

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// namespaceVariable is the environment variable that contains allTests or the name of the test that runs in a
// network namespace.
const namespaceVariable = "CONFORMANCE_NAMESPACE"

// allTests means that all tests of the process run in a network namespace in which lo is up.
const allTests = "all"

// namespaceTimeout is the maximum duration of a test in a network namespace.
const namespaceTimeout = 2 * time.Minute

// inNamespace reports whether the test runs in its own network namespace. If it does not,
// inNamespace runs the test in a new process with a new network namespace and returns false.
// The new process first runs the shell commands in setup. The interface lo is initially down.
func inNamespace(t *testing.T, setup string) bool {
	t.Helper()
	if os.Getenv(namespaceVariable) == t.Name() {
		if out, err := exec.Command("sh", "-ec", setup).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", setup, err, out)
		}
		return true
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), namespaceTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), namespaceVariable+"="+t.Name(), "QUEUE_PROXY="+queueProxy)
	c.SysProcAttr = networkNamespace()
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("run the test in a network namespace: %v\n%s", err, out)
	}
	return false
}
