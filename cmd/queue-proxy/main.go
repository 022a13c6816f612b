// The queue-proxy is the sidecar that receives the requests for a user container. Its help text describes the commands.
// Settings are environment variables: docs/configuration.md.
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
	"github.com/queue-proxy/queue-proxy/pkg/sidecar"
	"github.com/queue-proxy/queue-proxy/pkg/status"
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

// run runs the command line args and returns the exit code: 0 if it succeeds, 1 if it fails, 2 if the command line is
// invalid.
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
		fmt.Fprintln(stderr, err)
		if line.command == "serve" {
			lastWords(err)
		}
	}
	if err != nil || !ok {
		return 1
	}
	return 0
}

// runConfigured runs the commands that need settings. It returns false if the pod is not ready.
func runConfigured(line commandLine, stdout io.Writer) (bool, error) {
	c, err := config.Load()
	if err != nil {
		return false, err
	}
	switch line.command {
	case "config":
		if line.asJSON {
			c.WriteJSON(stdout)
		} else {
			c.Write(stdout)
		}
		return true, nil
	case "why":
		return why(line, c.StatusPort.V, stdout)
	case probing:
		return true, line.probe.run(c.Port.V)
	}
	return true, serve(c)
}

// why prints whether the pod is ready, and returns true if it is.
func why(line commandLine, statusPort int, stdout io.Writer) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), whyTimeout)
	defer cancel()
	return status.Why(ctx, statusPort, line.asJSON, stdout)
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
	if !signal.Ignored(syscall.SIGHUP) { // as it is under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		log.Info("received a signal", signalName(<-signals))
		end()
		log.Warn("received a second signal, exiting without waiting for requests", signalName(<-signals))
		_ = log.Sync()
		os.Exit(1)
	}()
	return sidecar.Run(ctx, c, sidecar.Process{Version: version, Commit: commit, Started: started, Log: log, Level: level})
}

// signalName returns the log field for a signal that ends the sidecar.
func signalName(s os.Signal) zap.Field {
	name := map[os.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGHUP: "SIGHUP"}[s]
	return zap.String("signal", name)
}

// lastWords says why the sidecar does not serve where `kubectl describe pod` shows it.
func lastWords(err error) {
	if f, openErr := os.OpenFile(terminationLog, os.O_WRONLY|os.O_APPEND, 0); openErr == nil {
		fmt.Fprintln(f, err)
		f.Close()
	}
}
