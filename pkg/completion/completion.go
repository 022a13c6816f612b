// Package completion writes the scripts by which a shell completes the commands and flags of a
// program.
package completion

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

// Shells are those that there are scripts for.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// A Program is what a shell is to know of one. Commands that say nothing else of themselves
// take the names of commands, if they are called help, and [Shells], if completion.
type Program struct {
	Name     string
	Flags    *flag.FlagSet // before a command; nil for none
	Commands []Command
}

// A Command is the first word behind a program's name, and what may follow it.
type Command struct {
	Name   string
	Args   []string            // words that it takes; none where it takes files, or nothing, but see Program
	Flags  *flag.FlagSet       // nil for none
	Values map[string][]string // of flags that take one of a few, by the flag's name
}

// Script is what the shell reads. The error names the shells that there are.
func (p Program) Script(shell string) (string, error) {
	switch shell {
	case "bash":
		return p.bash(), nil
	case "zsh":
		// What makes zsh understand bash's scripts needs its own completion.
		return "(( $+functions[compdef] )) || { autoload -U compinit && compinit }\nautoload -U bashcompinit && bashcompinit\n" + p.bash(), nil
	case "fish":
		return p.fish(), nil
	}
	return "", fmt.Errorf("%q: no shell that is known here; %s", shell, strings.Join(Shells(), ", "))
}

// all are the commands, and first what may stand instead of one.
func (p Program) all() []Command {
	first := Command{Flags: p.Flags}
	for _, c := range p.Commands {
		first.Args = append(first.Args, c.Name)
	}
	all := append([]Command{first}, p.Commands...)
	usual := map[string][]string{"help": first.Args, "completion": Shells()}
	for i, c := range all {
		if c.Args == nil {
			all[i].Args = usual[c.Name]
		}
	}
	return all
}

// bash is the script of bash. bash makes three words of -flag=value, and zsh one. A flag may be
// written with two dashes as well.
func (p Program) bash() string {
	function := "_" + strings.ReplaceAll(p.Name, "-", "_")
	var values, words strings.Builder
	for _, c := range p.all() {
		var flags, free []string
		for _, f := range flagsOf(c) {
			flags = append(flags, "-"+f.name)
			label := fmt.Sprintf("'%s -%s'", c.Name, f.name)
			switch {
			case len(f.values) > 0:
				fmt.Fprintf(&values, "    %s) list='%s' ;;\n", label, strings.Join(f.values, " "))
			case f.takesValue:
				free = append(free, label)
			}
		}
		if len(free) > 0 { // any word, such as a file's name
			fmt.Fprintf(&values, "    %s) ;;\n", strings.Join(free, "|"))
		}
		if len(c.Args)+len(flags) > 0 {
			fmt.Fprintf(&words, "        '%s') list='%s' flags='%s' ;;\n", c.Name, strings.Join(c.Args, " "), strings.Join(flags, " "))
		}
	}
	return function + `() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}" start= list= flags=
  if [ "$word" = = ]; then
    word=
  elif [ "$before" = = ]; then
    before="${COMP_WORDS[COMP_CWORD-2]}"
  else
    case "$word" in -*=*) before="${word%%=*}" start="${word%%=*}=" word="${word#*=}" ;; esac
  fi
  if [ "$COMP_CWORD" = 1 ]; then command=; fi
  case "$command" in -*) command= ;; esac
  case "$command ${before/#--/-}" in
` + values.String() + `    *)
      case "$command" in
` + words.String() + `      esac
      case "$word$list" in -*|'') list="$flags" ;; esac
      case "$word" in --*) list="-${list// -/ --}" ;; esac
      ;;
  esac
  COMPREPLY=($(compgen -P "$start" -W "$list" -- "$word"))
}
complete -o default -F ` + function + " " + p.Name + "\n"
}

// fish is the script of fish.
func (p Program) fish() string {
	var script strings.Builder
	for _, c := range p.all() {
		line := fmt.Sprintf("complete -c %s -n '__fish_seen_subcommand_from %s'", p.Name, c.Name)
		if c.Name == "" {
			line = fmt.Sprintf("complete -c %s -n __fish_use_subcommand", p.Name)
		}
		if len(c.Args) > 0 {
			fmt.Fprintf(&script, "%s -f -a '%s'\n", line, strings.Join(c.Args, " "))
		}
		for _, f := range flagsOf(c) {
			kind := fmt.Sprintf("-o %s -l %s", f.name, f.name)
			if len(f.name) == 1 {
				kind = "-s " + f.name
			}
			switch {
			case len(f.values) > 0:
				kind += fmt.Sprintf(" -x -a '%s'", strings.Join(f.values, " "))
			case f.takesValue:
				kind += " -r"
			}
			fmt.Fprintf(&script, "%s %s\n", line, kind)
		}
	}
	return script.String()
}

// A known flag of a command.
type known struct {
	name       string
	takesValue bool
	values     []string // one of these; none for any
}

// flagsOf are the flags of a command in the order of their names, with the one that package flag
// adds.
func flagsOf(c Command) []known {
	if c.Flags == nil {
		return nil
	}
	all := []known{{name: "help"}}
	c.Flags.VisitAll(func(f *flag.Flag) {
		b, ok := f.Value.(interface{ IsBoolFlag() bool })
		all = append(all, known{f.Name, !ok || !b.IsBoolFlag(), c.Values[f.Name]})
	})
	slices.SortFunc(all, func(a, b known) int { return strings.Compare(a.name, b.name) })
	return all
}
