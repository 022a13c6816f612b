// Package kubectl talks to an API server through the kubectl of whoever runs the program.
//
// kubectl knows the user's kubeconfig, contexts and plugins for authentication, and its flags
// mean what they always mean. k8s.io/client-go would know them too, for 15 MB of code and a
// third of a hundred modules, in the version that we happen to have.
//
// One process for each request would be too much for hundreds of pods, so `kubectl proxy` runs
// beside the program and is asked over plain HTTP. It listens on a Unix socket in a folder
// that the user alone may enter: a port on the loopback address would give all users of the
// machine this user's rights. The proxy passes on only what is asked for here, and reads alone.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// A Command is how kubectl is called.
type Command struct {
	Flags  []string  // of every call, such as --context=test
	Stdin  io.Reader // for plugins for authentication that ask their user
	Stdout io.Writer
	Stderr io.Writer
}

// program is found in the PATH, as kubectl finds its plugins.
const program = "kubectl"

// endWait is how long kubectl may take to end when it is asked to.
const endWait = 3 * time.Second

func (c Command) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append(args, c.Flags...)...)
	cmd.Cancel = func() error {
		if cmd.Process.Signal(syscall.SIGTERM) == nil {
			return nil
		}
		return cmd.Process.Kill() // on systems that have no way to ask
	}
	cmd.WaitDelay = endWait
	return cmd
}

// Exec runs a program in a container of a pod and returns its exit code. The output is written to
// Stdout and Stderr without characters that a terminal interprets. It returns an error if the program
// did not run.
func (c Command) Exec(ctx context.Context, pod, container string, args ...string) (int, error) {
	all := append([]string{"exec", pod, "--container=" + container}, c.Flags...)
	cmd := Command{}.command(ctx, append(append(all, "--"), args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, &printable.Writer{W: c.Stdout}, &printable.Writer{W: c.Stderr}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil // kubectl has said what is wrong, or the program
	}
	return 0, err
}

// Namespace is the namespace of the context: where nothing else is said.
func (c Command) Namespace(ctx context.Context) (string, error) {
	cmd := c.command(ctx, "config", "view", "--minify", "--output=jsonpath={..namespace}")
	var problem tail
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return "", problem.explain("kubectl config view", err)
	}
	if name := strings.TrimSpace(string(out)); name != "" {
		return name, nil
	}
	return "default", nil
}

// Pods are the names of the pods of a namespace, "" for the one of the context.
func (c Command) Pods(ctx context.Context, namespace string) ([]string, error) {
	args := []string{"get", "pods", "--no-headers", "--output=custom-columns=:metadata.name"}
	if namespace != "" {
		args = append(args, "--namespace="+namespace)
	}
	out, err := c.command(ctx, args...).Output()
	return strings.Fields(string(out)), err
}

// mostTail bounds what is kept of a standard error, in bytes.
const mostTail = 4 << 10

// A tail keeps the end of what is written to it. It may be used concurrently.
type tail struct {
	mu   sync.Mutex
	text []byte
	also io.Writer // gets everything as well; nil for none
}

// Write implements io.Writer and does not fail.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.also != nil {
		_, _ = t.also.Write(b)
	}
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-mostTail):]
	return len(b), nil
}

// silence keeps what is written from now on to itself.
func (t *tail) silence() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.also = nil
}

// explain is an error with what was written.
func (t *tail) explain(what string, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := bytes.TrimSpace(t.text); len(text) > 0 && t.also == nil {
		return fmt.Errorf("%s: %s", what, text)
	}
	return fmt.Errorf("%s: %w", what, err)
}
