package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// usage is the help text.
const usage = `queue-proxy is a sidecar that receives the requests for an application in the same pod. It limits
the number of concurrent requests and queues the rest, checks whether the application is ready, and
drains before the pod ends.

Usage:
  queue-proxy [serve]                run the sidecar; serve is the default command
  queue-proxy why [-o text|json]     print the readiness of the pod and the result of each probe
  queue-proxy config [-o text|json]  print the settings with sources and warnings;
                                     with -changed, omit settings that have their defaults
  queue-proxy version                print the version (also -v, -version)
  queue-proxy help                   print the help (also -h, -help)

Flags for the exec probes of Knative 0.8 to 0.25:
  -probe-period TIME, -probe-timeout TIME
        wait until the running sidecar is ready, or until the time expires; TIME is a duration or
        a number of seconds; 0 means 10s; a flag with a negative value is ignored

The settings are environment variables. The command 'queue-proxy config' lists the settings. The
file docs/configuration.md describes the settings.

The default ports are:
  8012  requests, HTTP/1.1 and HTTP/2
  8112  requests over TLS
  8022  preStop hooks
  8008  status page on the loopback address
  9090  statistics for the autoscaler
  9091  metrics

SIGTERM, SIGINT and SIGHUP start the drain. A second signal stops the process immediately, with
exit code 1.

Exit codes:
  0  The command succeeded, or the pod is ready.
  1  The command failed, or the pod is not ready.
  2  The command line is invalid.

Examples:
  USER_PORT=3000 CONTAINER_CONCURRENCY=10 queue-proxy
  kubectl exec POD -c queue-proxy -- /ko-app/queue why -o json
`

// commandLine is a parsed command line.
type commandLine struct {
	command string // one of commandNames or probing
	asJSON  bool   // whether why and config print JSON
	changed bool   // whether config omits settings with default values
	probe   execProbe
}

// probing is the command that is selected by the flags of an exec probe.
const probing = "probe"

// commandNames returns the commands that a user can specify.
func commandNames() []string { return []string{"serve", "why", "config", "version", "help"} }

// parse parses the arguments of the program.
func parse(args []string) (commandLine, error) {
	line := commandLine{command: "serve", probe: execProbe{period: -1, timeout: -1}}
	flags := newFlags()
	flags.Func("probe-period", "", parseTime(&line.probe.period))
	flags.Func("probe-timeout", "", parseTime(&line.probe.timeout))
	showVersion := flags.Bool("version", false, "")
	flags.BoolVar(showVersion, "v", false, "")
	err := flags.Parse(args)
	name := flags.Arg(0)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return commandLine{command: "help"}, nil
	case err != nil:
		return line, describeFlagError(flags, err)
	case *showVersion:
		return commandLine{command: "version"}, nil
	case name == "" && line.probe.given():
		line.command = probing
		return line, nil
	case name == "":
		return line, nil
	case !slices.Contains(commandNames(), name):
		return line, message.UnknownWord("command", name, commandNames())
	}
	line.command = name
	return line.parseCommand(flags.Args()[1:])
}

// parseCommand parses the arguments after the command. The argument of the help command is the name of a command.
func (line commandLine) parseCommand(args []string) (commandLine, error) {
	flags := newFlags()
	if line.command == "why" || line.command == "config" {
		flags.Func("o", "", func(format string) error {
			line.asJSON = format == "json"
			if !line.asJSON && format != "text" {
				return errors.New("must be one of text, json")
			}
			return nil
		})
	}
	if line.command == "config" {
		flags.BoolVar(&line.changed, "changed", false, "")
	}
	err := flags.Parse(args)
	rest := flags.Args()
	switch {
	case errors.Is(err, flag.ErrHelp):
		line.command = "help"
		return line, nil
	case err != nil:
		return line, fmt.Errorf("%s: %w", line.command, describeFlagError(flags, err))
	case line.command == "help" && len(rest) > 0:
		if !slices.Contains(commandNames(), rest[0]) {
			return line, fmt.Errorf("help: %w", message.UnknownWord("command", rest[0], commandNames()))
		}
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return line, fmt.Errorf("%s: unexpected argument %q", line.command, rest[0])
	}
	return line, nil
}

// describeFlagError returns an error in the form that all programs use. The error for an unknown flag contains the name
// of a similar flag. The errors of package flag have no types.
func describeFlagError(flags *flag.FlagSet, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: "); ok {
		var known []string
		flags.VisitAll(func(f *flag.Flag) { known = append(known, "-"+f.Name) })
		return message.UnknownWord("flag", name, known)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: "); ok {
		return fmt.Errorf("%s: a value is required", name)
	}
	// The texts are `invalid value "x" for flag -o: problem` and `invalid boolean value "x" for -v: parse error`.
	_, rest, _ := strings.Cut(text, "value ")
	value, quoteErr := strconv.QuotedPrefix(rest)
	if quoteErr != nil {
		return err
	}
	_, rest, _ = strings.Cut(rest[len(value):], " -")
	name, problem, _ := strings.Cut(rest, ": ")
	if problem == "parse error" {
		problem = "must be true or false"
	}
	return fmt.Errorf("-%s: %s: %s", name, value, problem)
}

// newFlags returns a flag set that does not print error messages.
func newFlags() *flag.FlagSet {
	flags := flag.NewFlagSet("queue-proxy", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	return flags
}
