package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// commandNames are the commands, as people call them.
func commandNames() []string {
	return []string{"inject", "uninject", "explain", "status", "serve", "policy", "options", "completion", "version", "help"}
}

// flagsOf are the flags of a command, as they are written.
func flagsOf(name string) []string {
	flags := newFlags(name)
	switch name {
	case "inject", "uninject", "explain":
		flags = new(filing).flags(name)
	case "serve":
		flags = new(serving).flags(nil)
	case "status":
		flags.String("f", "", "")
	case "policy":
	default:
		return nil
	}
	if name != "uninject" && name != "status" {
		optionFlags(flags, inject.Options{})
	}
	var all []string
	flags.VisitAll(func(f *flag.Flag) { all = append(all, "-"+f.Name) })
	return all
}

// completion writes the script by which a shell completes our commands and flags.
func (c *command) completion(args []string) (int, error) {
	if len(args) != 1 {
		return notAtAll, fmt.Errorf("completion: which shell? bash, zsh or fish")
	}
	var script strings.Builder
	switch args[0] {
	case "zsh":
		script.WriteString("autoload -U +X bashcompinit && bashcompinit\n")
		bashCompletion(&script)
	case "bash":
		bashCompletion(&script)
	case "fish":
		fmt.Fprintf(&script, "complete -c injector -n __fish_use_subcommand -f -a '%s'\n", strings.Join(commandNames(), " "))
		for _, name := range commandNames() {
			for _, f := range flagsOf(name) {
				fmt.Fprintf(&script, "complete -c injector -n '__fish_seen_subcommand_from %s' -o %s\n", name, strings.TrimPrefix(f, "-"))
			}
		}
	default:
		return notAtAll, fmt.Errorf("completion %q: bash, zsh or fish", args[0])
	}
	_, err := io.WriteString(c.stdout, script.String())
	return done, err
}

func bashCompletion(script *strings.Builder) {
	script.WriteString("_injector() {\n  local words='" + strings.Join(commandNames(), " ") + "'\n  if [ \"$COMP_CWORD\" -gt 1 ]; then\n    case \"${COMP_WORDS[1]}\" in\n")
	for _, name := range commandNames() {
		if flags := flagsOf(name); len(flags) > 0 {
			fmt.Fprintf(script, "      %s) words='%s' ;;\n", name, strings.Join(flags, " "))
		}
	}
	script.WriteString("      completion) words='bash zsh fish' ;;\n      *) words='' ;;\n    esac\n  fi\n" +
		"  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\ncomplete -o default -F _injector injector\n")
}
