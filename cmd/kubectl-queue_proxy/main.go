// The kubectl plugin shows the sidecars of a cluster. kubectl finds the plugin in the PATH by the name of its file,
// kubectl-queue_proxy.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/queue-proxy/queue-proxy/cmd/internal/cli"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// The linker sets these variables.
var (
	version = "dev"
	commit  = "unknown"
)

// Exit codes other than 0. The why command returns the exit code of the program in the container.
const (
	failed     = 1
	badCommand = 2
)

// sidecarProgram is the path of the sidecar's program in its image.
const sidecarProgram = "/ko-app/queue"

func main() {
	klog.SetLogger(klog.Logger{}) // client-go logs errors that it also returns
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()} //nolint:forbidigo // the environment of the terminal; pkg/config reads that of the sidecar
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// program is one run of the plugin.
type program struct {
	stdin          *os.File
	stdout, stderr io.Writer
	environ        []string

	code int // exit code of a command that returns no error
}

// run executes the command line args and returns the exit code. It stops if ctx is canceled.
func (p *program) run(ctx context.Context, args []string) int {
	err := cli.Execute(ctx, p.root(), fmt.Sprintf("%s (commit %s)", version, commit), args)
	switch {
	case errors.Is(err, cli.ErrUsage):
		return badCommand
	case err != nil:
		return failed
	}
	return p.code
}

// why runs queue-proxy why in the container of the sidecar.
func (p *program) why(ctx context.Context, name string, line *commandLine) error {
	client, namespace, err := line.connect()
	if err != nil {
		return err
	}
	pod, err := client.PodOf(ctx, line.kube, namespace, name)
	if err != nil {
		return err
	}
	stdout, stderr := &message.Writer{W: p.stdout}, &message.Writer{W: p.stderr}
	p.code, err = client.Exec(ctx, namespace, pod, line.container, stdout, stderr, sidecarProgram, "why", "-o", line.output)
	return err
}
