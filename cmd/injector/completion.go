package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/completion"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// commandNames are the commands, as people call them.
func commandNames() []string {
	return []string{"inject", "uninject", "explain", "status", "serve", "policy", "options", "completion", "version", "help"}
}

// program is what a shell is to know of us.
func program() completion.Program {
	p := completion.Program{Name: "injector"}
	for _, name := range commandNames() {
		p.Commands = append(p.Commands, completion.Command{Name: name, Flags: flagsOf(name), Values: valuesOf(name)})
	}
	return p
}

// flagsOf are the flags of a command, nil for none.
func flagsOf(name string) *flag.FlagSet {
	var flags *flag.FlagSet
	switch name {
	case "inject", "uninject", "explain", "status":
		flags = new(filing).flags(name)
	case "serve":
		flags = new(serving).flags(nil)
	case "policy":
		flags = newFlags(name)
	default:
		return nil
	}
	if name != "uninject" && name != "status" {
		optionFlags(flags, inject.Options{})
	}
	return flags
}

// completion prints the script by which a shell completes our commands and flags.
func (c *command) completion(args []string) error {
	flags := newFlags("completion")
	if err := c.parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("completion: which shell? %s", strings.Join(completion.Shells(), ", "))
	}
	script, err := program().Script(flags.Arg(0))
	if err != nil {
		return fmt.Errorf("completion: %w", err)
	}
	_, err = io.WriteString(c.stdout, script)
	return err
}
