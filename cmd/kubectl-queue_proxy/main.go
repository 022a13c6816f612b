// The kubectl plugin shows the sidecars of a cluster. kubectl finds it in the PATH by its
// file's name, kubectl-queue_proxy.
//
//	kubectl queue-proxy top               show all sidecars of a namespace, live
//	kubectl queue-proxy why POD           say whether a pod is ready, and why not
//	kubectl queue-proxy version           print the version
//	kubectl queue-proxy completion SHELL  print a script for the shell
//	kubectl queue-proxy help [command]    say more
//
// It runs kubectl itself for all that it needs of a cluster, so that kubeconfig, contexts and
// plugins for authentication are the user's own: package kubectl says how, and why. Nothing is
// installed in the cluster, and no right is needed but list of pods and get of pods/proxy, or,
// for why, create of pods/exec.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/kubectl"
	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// Exit codes; why passes on those of the sidecar's program.
const (
	done       = 0
	failed     = 1
	badCommand = 2
)

// Names of the program: of its file, and as people call it.
const (
	fileName = "kubectl-queue_proxy"
	calledAs = "kubectl queue-proxy"
)

// inImage is the path of the sidecar's program in its image.
const inImage = "/ko-app/queue"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	p.terminal, p.plain = os.Getenv("TERM"), os.Getenv("NO_COLOR") != "" //nolint:forbidigo // the plugin's own, read once; pkg/config reads the sidecar's
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// A program is one run.
type program struct {
	stdin          *os.File
	stdout, stderr io.Writer
	terminal       string // its kind
	plain          bool   // no colours are wanted
}

// run does what a command line says and returns the exit code. It ends early when ctx does.
func (p *program) run(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == completing {
		return p.complete(ctx, args[1:])
	}
	line, err := parse(args)
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: %v\nRun '%s' for usage.\n", calledAs, err, strings.TrimSpace(calledAs+" help "+line.topic))
		return badCommand
	}
	code := done
	switch line.command {
	case "why":
		code, err = p.why(ctx, line)
	case "top":
		err = p.top(ctx, line)
	case "version":
		fmt.Fprintf(p.stdout, "%s %s (commit %s)\n", fileName, version, commit)
	case "completion":
		err = p.completion(line.args[0])
	case packing:
		err = pages().Write(line.args[0])
	case "help":
		fmt.Fprint(p.stdout, help(line.topic))
	}
	if err != nil {
		if ctx.Err() == nil { // else who has ended it knows why
			fmt.Fprintf(p.stderr, "%s: %s\n", calledAs, printable.Lines(err.Error()))
		}
		return failed
	}
	return code
}

// why asks the sidecar of one pod, in its container.
func (p *program) why(ctx context.Context, line commandLine) (int, error) {
	k := p.kubectl(line)
	if line.namespace != "" {
		k.Flags = append(k.Flags, "--namespace="+line.namespace)
	}
	args := []string{inImage, "why"}
	if line.output != "" {
		args = append(args, "-o", line.output)
	}
	return k.Exec(ctx, line.args[0], line.container, args...)
}

func (p *program) kubectl(line commandLine) kubectl.Command {
	return kubectl.Command{Flags: line.passed, Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr}
}
