package conformance

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// namespaceVariable contains the name of the test that runs in a network namespace.
const namespaceVariable = "CONFORMANCE_NAMESPACE"

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
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 { // an unprivileged user is root in a new user namespace
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("run the test in a network namespace: %v\n%s", err, out)
	}
	return false
}
