//go:build linux

// The endurance program runs real clients and real servers at full rate, without a proxy,
// through the sidecar and through HAProxy, and compares the failures.
//
// A row of the table is an application, one or more client loads, and options; rows.go
// declares all rows. Every application and every client is a separate process, so that a
// crash affects only one row. The program, its proxies and its peers run in a separate
// network namespace.
//
// A failure is a status other than the status that the peer returns, wrong content, or a
// missing trailer. A row fails if there are failures with the sidecar that do not occur
// without a proxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals(os.Args[1:])...)
	defer stop()
	err := command(ctx, os.Args[1:])
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return
	case !errors.Is(err, errReported):
		fmt.Fprintln(os.Stderr, "endurance:", err)
	}
	os.Exit(1)
}

// endSignals returns the signals that end the program. For the comparison, they include
// SIGPIPE, which reports that the output is closed. Applications and client loads ignore
// SIGPIPE, because a write to a connection that the peer has reset also causes this signal.
func endSignals(args []string) []os.Signal {
	end := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if len(args) > 1 && (args[0] == "app" || args[0] == "client") {
		return end
	}
	return append(end, syscall.SIGPIPE)
}

// command runs the subcommand in args: "app" starts an application, and "client" starts a client
// load. Without a subcommand, it runs the comparison.
func command(ctx context.Context, args []string) error {
	if len(args) > 1 {
		switch args[0] {
		case "app":
			return serveApplication(ctx, args[1], args[2:])
		case "client":
			return runLoad(ctx, args[1], args[2:])
		}
	}
	return compare(ctx, args)
}
