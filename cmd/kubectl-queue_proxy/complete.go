package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/completion"
	"github.com/queue-proxy/queue-proxy/pkg/top"
)

// shellProgram is what a shell is to know of us, under the name of the file.
func shellProgram() completion.Program {
	p := completion.Program{Name: fileName}
	for _, name := range commandNames() {
		c := completion.Command{Name: name, Flags: new(commandLine).flagsOf(name), Values: valuesOf()}
		if name == "completion" {
			c.Args = shells()
		}
		p.Commands = append(p.Commands, c)
	}
	return p
}

// valuesOf are what flags may say, of those that may say one of a few things.
func valuesOf() map[string][]string {
	return map[string][]string{"o": formats(), "output": formats(), "sort": top.Keys()}
}

// forKubectl is the file by which kubectl completes what is typed behind its own name.
const forKubectl = `#!/bin/sh
# Save this in the PATH as kubectl_complete-queue_proxy, executable.
exec kubectl-queue_proxy __complete "$@"
`

// completion prints a script.
func (p *program) completion(shell string) error {
	script := forKubectl
	if shell != "kubectl" {
		var err error
		if script, err = shellProgram().Script(shell); err != nil {
			return err
		}
	}
	_, err := io.WriteString(p.stdout, script)
	return err
}

// podTime bounds the wait of somebody who presses the tab key.
const podTime = 2 * time.Second

// Directives to the shell, which kubectl's completion understands (cobra's).
const (
	noFiles  = ":4"
	filesToo = ":0"
)

// dashes are before the name of a flag: as many as it has letters, at most two.
const dashes = "--"

// completing is the command by which [forKubectl] calls us.
const completing = "__complete"

// complete writes what may stand in place of the last word of a command line, one for each
// line, and a directive.
func (p *program) complete(ctx context.Context, args []string) int {
	offers, directive, last := commandNames(), noFiles, ""
	if n := len(args); n > 0 {
		last = args[n-1]
	}
	if n := len(args); n > 1 {
		offers, directive = p.offers(ctx, args[0], args[1:n-1], last)
	}
	for _, o := range offers {
		if strings.HasPrefix(o, last) {
			fmt.Fprintln(p.stdout, o)
		}
	}
	fmt.Fprintln(p.stdout, directive)
	return done
}

// offers are the words for the last place of a command line, and what the shell is to do
// with them.
func (p *program) offers(ctx context.Context, command string, before []string, last string) (words []string, directive string) {
	line := new(commandLine)
	flags := line.flagsOf(command)
	if n := len(before); n > 0 && strings.HasPrefix(before[n-1], "-") {
		name := strings.TrimLeft(before[n-1], "-")
		if takesValue(flags, name) {
			if name == "kubeconfig" {
				return nil, filesToo
			}
			return valuesOf()[name], noFiles
		}
	}
	if strings.HasPrefix(last, "-") {
		var all []string
		flags.VisitAll(func(f *flag.Flag) { all = append(all, dashes[:min(len(dashes), len(f.Name))]+f.Name) })
		return append(all, "--help"), noFiles
	}
	switch words, err := positional(flags, before); {
	case err != nil || len(words) > 0:
	case command == "completion":
		return shells(), noFiles
	case command == "help":
		return commandNames(), noFiles
	case command == "why":
		ctx, cancel := context.WithTimeout(ctx, podTime)
		defer cancel()
		pods, _ := p.kubectl(*line).Pods(ctx, line.namespace) // without an answer there is nothing to offer
		return pods, noFiles
	}
	return nil, noFiles
}
