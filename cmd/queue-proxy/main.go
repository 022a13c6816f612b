// Command queue-proxy is the sidecar that receives the requests for a user container. The help text
// describes the commands. Environment variables configure the sidecar. See docs/configuration.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
	"github.com/queue-proxy/queue-proxy/pkg/sidecar"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// The linker sets these variables.
var (
	version = "dev"
	commit  = "unknown"
)

// whyTimeout is the time limit of the why command. The sidecar probes the user container again
// before it responds.
const whyTimeout = 5 * time.Second

// terminationLog is the file from which the kubelet reads the termination message.
const terminationLog = "/dev/termination-log"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs the program with args and returns the exit code: 0 for success, 1 for an error, and 2
// for an invalid command line.
func run(args []string, stdout, stderr io.Writer) int {
	line, err := parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "queue-proxy: %v\nRun 'queue-proxy help' for usage.\n", err)
		return 2
	}
	ok := true
	switch line.command {
	case "help":
		fmt.Fprint(stdout, usage)
	case "version":
		fmt.Fprintf(stdout, "queue-proxy %s (commit %s)\n", version, commit)
	default:
		ok, err = runConfigured(line, stdout)
	}
	if err != nil {
		if line.command == "why" {
			err = fmt.Errorf("queue-proxy: %w", err)
		}
		fmt.Fprintln(stderr, err)
		if line.command == "serve" {
			writeTerminationMessage(err)
		}
	}
	if err != nil || !ok {
		return 1
	}
	return 0
}

// runConfigured runs a command that needs settings. It returns false if the pod is not ready.
func runConfigured(line commandLine, stdout io.Writer) (bool, error) {
	c, err := config.Load()
	if err != nil {
		return false, err
	}
	switch line.command {
	case "config":
		if line.asJSON {
			c.WriteJSON(stdout, line.changed, sidecar.Warnings(c))
		} else {
			c.Write(stdout, line.changed, sidecar.Warnings(c))
		}
		return true, nil
	case "why":
		return why(line, c.StatusPort.V, stdout)
	case probing:
		return true, line.probe.run(c.Port.V)
	}
	return true, serve(c)
}

// why prints whether the pod is ready, and returns this result.
func why(line commandLine, statusPort int, stdout io.Writer) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), whyTimeout)
	defer cancel()
	return status.Why(ctx, netconn.LoopbackClient(), statusPort, line.asJSON, stdout)
}

// serve runs the sidecar until it receives a termination signal. A second signal stops the process
// immediately.
func serve(c *config.Config) error {
	if !c.Profiling.V {
		runtime.MemProfileRate = 0 // disable the memory profile, which stores each stack and requires megabytes of memory under load
	}
	started := time.Now()
	log, level, warnings := sidecar.NewLogger(c)
	defer log.Sync()
	defer zap.RedirectStdLog(log)() // net/http logs unsolicited responses there, with content that a peer controls
	ctx, end := context.WithCancel(context.Background())
	defer end()
	// By default, a write to a closed standard output causes SIGPIPE, and the Go runtime exits. With
	// this call, the write only returns an error (docs/promises.md 3.9).
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores SIGHUP
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		log.Info("received a signal", signalName(<-signals))
		end()
		log.Warn("received a second signal; aborting the remaining requests", signalName(<-signals))
		_ = log.Sync()
		os.Exit(1)
	}()
	return sidecar.Run(ctx, c, sidecar.Process{Version: version, Commit: commit, Started: started, Log: log, Level: level, Warnings: warnings})
}

// signalName returns the log field for a termination signal.
func signalName(s os.Signal) zap.Field {
	name := map[os.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGHUP: "SIGHUP"}[s]
	return zap.String("signal", name)
}

// writeTerminationMessage writes err to the termination log, which kubectl describe pod shows.
func writeTerminationMessage(err error) {
	if f, openErr := os.OpenFile(terminationLog, os.O_WRONLY|os.O_APPEND, 0); openErr == nil {
		fmt.Fprintln(f, err)
		f.Close()
	}
}
