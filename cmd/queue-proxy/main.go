// The queue-proxy is the sidecar that stands in front of a user's container.
//
//	queue-proxy [serve]           serve until the pod ends
//	queue-proxy why [-o json]     say whether the pod is ready, and why not; exit 0 or 1
//	queue-proxy why --limit       say which limit on concurrency would have been right
//	queue-proxy config [-o json]  print the settings in force and where each came from
//	queue-proxy version           print the version
//	queue-proxy completion SHELL  print a script for the shell
//	queue-proxy help [command]    say more
//
// Its settings are environment variables: docs/configuration.md. The flags
// -probe-period and -probe-timeout are the exec probes of Knative 0.8 to 0.25.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/sidecar"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// whyTimeout bounds `queue-proxy why`: the sidecar asks the user container once
// more before it answers.
const whyTimeout = 5 * time.Second

// terminationLog is where the kubelet looks for a container's last words.
const terminationLog = "/dev/termination-log"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code: 0 for what was asked for, 1 for what could not be
// done, 2 for a command line that asks for nothing we know.
func run(args []string, stdout, stderr io.Writer) int {
	line, err := parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "queue-proxy: %v\nRun '%s' for usage.\n", err, strings.TrimSpace("queue-proxy help "+line.topic))
		return 2
	}
	switch line.command {
	case "help":
		fmt.Fprint(stdout, help(line.topic))
		return 0
	case "version":
		fmt.Fprintf(stdout, "queue-proxy %s (commit %s)\n", version, commit)
		return 0
	case "completion":
		script, err := program().Script(line.shell)
		if err != nil {
			return fail(stderr, err)
		}
		fmt.Fprint(stdout, script)
		return 0
	case packing:
		if err := pages().Write(line.folder); err != nil {
			return fail(stderr, err)
		}
		return 0
	}
	return runConfigured(line, stdout, stderr)
}

// runConfigured is run for the commands that need settings.
func runConfigured(line commandLine, stdout, stderr io.Writer) int {
	c, err := config.Load()
	switch {
	case err != nil && line.command == "serve":
		return refuse(stderr, err)
	case err != nil:
		return fail(stderr, err)
	}
	switch line.command {
	case "config":
		if line.asJSON {
			c.WriteJSON(stdout)
		} else {
			c.Write(stdout)
		}
		return 0
	case "why":
		ctx, cancel := context.WithTimeout(context.Background(), whyTimeout)
		defer cancel()
		if line.limit {
			if err := sidecar.WhyLimit(ctx, c.StatusPort.V, line.asJSON, stdout); err != nil {
				return fail(stderr, err)
			}
			return 0
		}
		ready, err := sidecar.Why(ctx, c.StatusPort.V, line.asJSON, stdout)
		if err != nil {
			return fail(stderr, err)
		}
		if !ready {
			return 1
		}
		return 0
	case probing:
		if err := line.ask.run(c.Port.V); err != nil {
			return fail(stderr, err)
		}
		return 0
	}
	if err := serve(c); err != nil {
		return refuse(stderr, err)
	}
	return 0
}

// serve runs the sidecar until a signal says that the pod is ending. A second
// signal is somebody who does not want to wait.
func serve(c *config.Config) error {
	if !c.Profiling.V {
		runtime.MemProfileRate = 0 // its books grow with each new stack, by megabytes under load
	}
	started := time.Now()
	log, level := sidecar.NewLogger(c)
	defer log.Sync()
	defer zap.RedirectStdLog(log)() // net/http writes of an unsolicited response there, whose text a peer chooses
	ctx, end := context.WithCancel(context.Background())
	defer end()
	// A write to a standard output that nobody reads any more is an error like any
	// other, and must not end us as Go has it (docs/promises.md 3.9).
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		end()
		<-signals
		os.Exit(1)
	}()
	return sidecar.Run(ctx, c, sidecar.Process{Version: version, Commit: commit, Started: started, Log: log, Level: level})
}

// fail says what could not be done.
func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, err)
	return 1
}

// refuse says why the sidecar does not serve, also where `kubectl describe pod`
// shows it.
func refuse(stderr io.Writer, err error) int {
	if f, openErr := os.OpenFile(terminationLog, os.O_WRONLY|os.O_APPEND, 0); openErr == nil {
		fmt.Fprintln(f, err)
		f.Close()
	}
	return fail(stderr, err)
}
