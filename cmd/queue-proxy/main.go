// The queue-proxy is the sidecar that stands in front of a user's container.
//
//	queue-proxy [serve]     serve until the pod ends
//	queue-proxy config      print the settings in force and where each came from
//	queue-proxy version     print the version
//
// Its settings are environment variables: docs/configuration.md. The flags
// -probe-period and -probe-timeout are the exec probes of Knative 0.8 to 0.25.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/sidecar"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code: 0 for what was asked for, 1 for what could not be
// done, 2 for a command line that asks for nothing we know.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("queue-proxy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var ask execProbe
	flags.Var(&ask.period, "probe-period", "ask the running sidecar whether it is ready, for so many seconds (0: 10), and exit 0 or 1")
	flags.Var(&ask.timeout, "probe-timeout", "the same, with a duration")
	showVersion := flags.Bool("version", false, "print the version")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: queue-proxy [serve | config | version]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	command := flags.Arg(0)
	if *showVersion {
		command = "version"
	}
	if flags.NArg() > 1 || command != "" && command != "serve" && command != "config" && command != "version" {
		fmt.Fprintf(stderr, "queue-proxy: unknown command %q\n", flags.Args())
		flags.Usage()
		return 2
	}
	if command == "version" {
		fmt.Fprintf(stdout, "queue-proxy %s (commit %s)\n", version, commit)
		return 0
	}

	c, err := config.Load()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	switch {
	case command == "config":
		c.Write(stdout)
		return 0
	case ask.wanted():
		if err := ask.run(c.Port); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}
	return serve(c, stderr)
}

// serve runs the sidecar until a signal says that the pod is ending. A second
// signal is somebody who does not want to wait.
func serve(c *config.Config, stderr io.Writer) int {
	log := sidecar.NewLogger(c)
	ctx, end := context.WithCancel(context.Background())
	defer end()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		end()
		<-signals
		os.Exit(1)
	}()
	err := sidecar.Run(ctx, c, log)
	log.Sync()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}
