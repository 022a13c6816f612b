package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/completion"
	"github.com/queue-proxy/queue-proxy/pkg/spelling"
)

// A commandLine is what somebody asks for.
type commandLine struct {
	command string // one of commandNames, or probing
	topic   string // of help: a command, or "" for all of them
	asJSON  bool   // of why and config
	arg     string // of completion: a shell; of man: a folder
	ask     execProbe
}

// packing is the command that writes manual pages. It is for who packs the program, and in no
// list of commands.
const packing = "man"

// probing is the command that the flags of the exec probes stand for.
const probing = "probe"

// commandNames are the commands by which people call them.
func commandNames() []string {
	return []string{"serve", "why", "config", "version", "completion", "help"}
}

// formats are what -o may say.
func formats() []string { return []string{"text", "json"} }

// flags are those of the program without a command. showVersion is set where one of them asks for it.
func (line *commandLine) flags(showVersion *bool) *flag.FlagSet {
	flags := newFlags()
	flags.Func("probe-period", "", setSpan(&line.ask.period))
	flags.Func("probe-timeout", "", setSpan(&line.ask.timeout))
	flags.BoolVar(showVersion, "version", false, "")
	flags.BoolVar(showVersion, "v", false, "")
	return flags
}

// flagsOf are those of a command.
func (line *commandLine) flagsOf(name string) *flag.FlagSet {
	flags := newFlags()
	if name == "why" || name == "config" {
		flags.Func("o", "", func(format string) error {
			if !slices.Contains(formats(), format) {
				return errors.New("want text or json")
			}
			line.asJSON = format == "json"
			return nil
		})
	}
	return flags
}

// program is what a shell is to know of us.
func program() completion.Program {
	line := new(commandLine)
	p := completion.Program{Name: "queue-proxy", Flags: line.flags(new(bool))}
	for _, name := range commandNames() {
		p.Commands = append(p.Commands, completion.Command{Name: name, Flags: line.flagsOf(name), Values: map[string][]string{"o": formats()}})
	}
	return p
}

// parse reads a command line. Where the error is not nil, the topic is the help that
// its writer should read.
func parse(args []string) (commandLine, error) {
	line := commandLine{command: "serve", ask: execProbe{period: -1, timeout: -1}}
	showVersion := false
	flags := line.flags(&showVersion)
	switch err := parseFlags(flags, args); {
	case errors.Is(err, flag.ErrHelp):
		line.command = "help"
		return line, nil
	case err != nil:
		return line, err
	case showVersion:
		line.command = "version"
		return line, nil
	case flags.NArg() > 0:
		return line.parseCommand(flags.Arg(0), flags.Args()[1:])
	case line.ask.wanted():
		line.command = probing
	}
	return line, nil
}

// parseCommand reads a command and what stands behind it.
func (line commandLine) parseCommand(name string, args []string) (commandLine, error) {
	if !slices.Contains(commandNames(), name) && name != packing {
		return line, spelling.UnknownWord("command", name, commandNames())
	}
	if line.command = name; name != "help" && name != packing {
		line.topic = name
	}
	flags := line.flagsOf(name)
	switch err := parseFlags(flags, args); {
	case errors.Is(err, flag.ErrHelp):
		line.command, line.topic = "help", name
		return line, nil
	case err != nil:
		return line, fmt.Errorf("%s: %w", name, err)
	}
	rest := flags.Args()
	switch {
	case name == packing && len(rest) != 1:
		return line, errors.New("man: which folder?")
	case name == "completion" && (len(rest) == 0 || !slices.Contains(completion.Shells(), rest[0])):
		return line, fmt.Errorf("completion: which shell? %s", strings.Join(completion.Shells(), ", "))
	case name == "help" && len(rest) > 0 && !slices.Contains(commandNames(), rest[0]):
		return line, spelling.UnknownWord("command", rest[0], commandNames())
	case name == "help" && len(rest) > 0:
		line.topic, rest = rest[0], rest[1:]
	case name == packing || name == "completion":
		line.arg, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 {
		return line, fmt.Errorf("%s: unexpected argument %q", name, rest[0])
	}
	return line, nil
}

// newFlags returns flags that print nothing themselves.
func newFlags() *flag.FlagSet {
	flags := flag.NewFlagSet("queue-proxy", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	return flags
}

// parseFlags is flags.Parse with a hint at the flag that was meant.
func parseFlags(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return err
	}
	// The argument that could not be read is the last one that was taken.
	taken := args[len(args)-flags.NArg()-1]
	name, _, _ := strings.Cut(strings.TrimLeft(taken, "-"), "=")
	if !strings.HasPrefix(taken, "-") || name == "" || flags.Lookup(name) != nil {
		return err
	}
	var known []string
	flags.VisitAll(func(f *flag.Flag) { known = append(known, "-"+f.Name) })
	return spelling.UnknownWord("flag", "-"+name, known)
}
