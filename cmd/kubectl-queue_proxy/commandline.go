package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/completion"
	"github.com/queue-proxy/queue-proxy/pkg/spelling"
	"github.com/queue-proxy/queue-proxy/pkg/top"
)

// A commandLine is what somebody asks for.
type commandLine struct {
	command string   // one of commandNames
	topic   string   // of help: a command, or "" for all of them
	args    []string // behind the command: a pod, or a shell
	passed  []string // flags for kubectl

	namespace string // "" is that of the context
	container string
	output    string // "" is text

	// of top
	everywhere bool // all namespaces
	selector   string
	sort       string
	once       bool
	interval   time.Duration
	window     time.Duration
}

// commandNames are the commands by which people call them.
func commandNames() []string { return []string{"top", "why", "version", "completion", "help"} }

// packing is the command that writes manual pages. It is for who packs the program, and in no
// list of commands.
const packing = "man"

// formats are what -o may say.
func formats() []string { return []string{"text", "json"} }

// Bounds of flags: no API server is asked all the time, and what is kept of each sidecar is
// bounded.
const (
	usualInterval, leastInterval = 2 * time.Second, time.Second
	usualWindow, longestWindow   = 15 * time.Second, 5 * time.Minute
)

// passedOn are kubectl's own flags, which mean what they mean there.
func passedOn() []string {
	return []string{"context", "kubeconfig", "cluster", "user", "as", "as-group"}
}

// flagsOf are those of a command.
func (line *commandLine) flagsOf(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is one line, and help a page
	flags.Usage = func() {}
	if name != "top" && name != "why" {
		return flags
	}
	text := func(to *string, usual string, names ...string) {
		for _, n := range names {
			flags.StringVar(to, n, usual, "")
		}
	}
	text(&line.namespace, "", "n", "namespace")
	text(&line.container, "queue-proxy", "c", "container")
	for _, n := range []string{"o", "output"} {
		flags.Func(n, "", func(format string) error {
			line.output = format
			return oneOf(format, formats())
		})
	}
	for _, n := range passedOn() {
		flags.Func(n, "", func(value string) error {
			line.passed = append(line.passed, "--"+n+"="+value)
			return nil
		})
	}
	if name == "top" {
		for _, n := range []string{"A", "all-namespaces"} {
			flags.BoolVar(&line.everywhere, n, false, "")
		}
		text(&line.selector, "", "l", "selector")
		line.sort = top.Keys()[0]
		flags.Func("sort", "", func(key string) error {
			line.sort = key
			return oneOf(key, top.Keys())
		})
		flags.BoolVar(&line.once, "once", false, "")
		flags.DurationVar(&line.interval, "interval", usualInterval, "")
		flags.DurationVar(&line.window, "window", usualWindow, "")
	}
	return flags
}

func oneOf(word string, known []string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return fmt.Errorf("want one of %s", strings.Join(known, ", "))
}

// parse reads a command line. Where the error is not nil, the topic is the help that its
// writer should read.
func parse(args []string) (commandLine, error) {
	line := commandLine{command: "help"}
	if len(args) == 0 || slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		return line, nil
	}
	name := args[0]
	if name == "-v" || name == "-version" || name == "--version" {
		name = "version"
	}
	if !slices.Contains(commandNames(), name) && name != packing {
		return line, spelling.UnknownWord("command", name, commandNames())
	}
	line.command, line.topic = name, name
	flags := line.flagsOf(name)
	rest, err := positional(flags, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		line.command = "help"
		return line, nil
	case err == nil:
		line.args = rest
		err = line.check()
	}
	if err != nil {
		return line, fmt.Errorf("%s: %w", name, err)
	}
	return line, nil
}

// positional reads flags wherever they stand, as kubectl does, and returns the words between.
// Behind -- all are words.
func positional(flags *flag.FlagSet, args []string) (words []string, err error) {
	for len(args) > 0 {
		arg, n := args[0], 1
		if arg == "--" {
			return append(words, args[1:]...), nil
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !strings.HasPrefix(arg, "-"):
		case takesValue(flags, name) && !hasValue:
			n = min(2, len(args))
		case flags.Lookup(name) == nil && len(arg) > 2 && takesValue(flags, arg[1:2]): // -njson: people are used to it
			args, n = append([]string{arg[:2], arg[2:]}, args[1:]...), 2
		}
		if err := flags.Parse(args[:n]); err != nil {
			return nil, err
		}
		words, args = append(words, flags.Args()...), args[n:]
	}
	return words, nil
}

// takesValue reports whether there is a flag of that name, with a value.
func takesValue(flags *flag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	if f == nil {
		return false
	}
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return !ok || !b.IsBoolFlag()
}

// check returns what is wrong with a command line as a whole. The topic of help is moved to
// its place.
func (line *commandLine) check() error {
	most := map[string]int{"why": 1, "completion": 1, "help": 1, packing: 1}[line.command]
	if len(line.args) > most {
		return fmt.Errorf("unexpected argument %q", line.args[most])
	}
	switch line.command {
	case "help":
		line.topic = ""
		if len(line.args) > 0 {
			if !slices.Contains(commandNames(), line.args[0]) {
				return spelling.UnknownWord("command", line.args[0], commandNames())
			}
			line.topic = line.args[0]
		}
	case "why":
		if len(line.args) == 0 {
			return errors.New("which pod?")
		}
	case packing:
		if len(line.args) == 0 {
			return errors.New("which folder?")
		}
	case "completion":
		if len(line.args) == 0 {
			return fmt.Errorf("which shell? %s", strings.Join(shells(), ", "))
		}
		return oneOf(line.args[0], shells())
	case "top":
		switch {
		case line.everywhere && line.namespace != "":
			return errors.New("-A and -n: one of them")
		case line.interval < leastInterval:
			return fmt.Errorf("--interval %v: at least %v", line.interval, leastInterval)
		case line.window < line.interval || line.window > longestWindow:
			return fmt.Errorf("--window %v: from the interval, %v, to %v", line.window, line.interval, longestWindow)
		}
	}
	return nil
}

// shells are those that completion has a script for; kubectl's is for the plugin under the
// name kubectl queue-proxy.
func shells() []string { return append(completion.Shells(), "kubectl") }
