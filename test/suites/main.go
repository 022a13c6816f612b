//go:build linux

// The suites program runs public test suites without a proxy, through the sidecar and
// through HAProxy, and compares the results.
//
// A suite is a set of named cases. The program fails if a case passes without a proxy and
// fails with the sidecar. It prints the names of these cases.
//
// The connectrpc runner starts this program as the server or the client under test. wrap.go
// contains these subcommands.
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
	// SIGPIPE is not in this list because a relay can write to a closed connection.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "suites:", err)
	os.Exit(1)
}

// command runs the subcommand in args: "server" starts a server under test, and "client" starts a
// client under test. Without a subcommand, it runs the suites.
func command(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "server":
			return serveUnderTest(ctx, args[1:])
		case "client":
			return callUnderTest(ctx, args[1:])
		}
	}
	return runAll(ctx, args)
}
