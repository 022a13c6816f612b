// Package manual makes manual pages, as man(1) shows them, out of the help texts of a program,
// so that there is one text about each command.
//
// A help text has paragraphs, which empty lines separate, and sections, which a line such as
// "Examples:" begins:
//
//	queue-proxy why asks the sidecar that runs in this pod whether it is ready.
//
//	Usage:
//
//	  queue-proxy why [-o text|json]
//
//	  -o text|json  what to print; text is the default
//
//	Exit codes: 0 ready; 1 not ready, or no sidecar answers.
//
// The first sentence says what the command is for, after its name. What is indented stands as
// it is, but for flags, which become a list.
package manual

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Program is what pages are made of.
type Program struct {
	Name    string // as people call it: queue-proxy, kubectl queue-proxy
	File    string // the name of its file, which is that of its page; "" is Name
	Version string

	Commands []string                    // help is about itself, and has no page
	Help     func(command string) string // of a command, or of the program: ""
}

// commands are those that have a page.
func (p Program) commands() []string {
	return slices.DeleteFunc(slices.Clone(p.Commands), func(name string) bool { return name == "help" })
}

// file is the name of a page, without the number of its section.
func (p Program) file(command string) string {
	name := cmp.Or(p.File, p.Name)
	if command != "" {
		name += "-" + command
	}
	return name
}

// Write writes a page for the program and for each of its commands into a folder, which is made
// if it is not there.
func (p Program) Write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, command := range append([]string{""}, p.commands()...) {
		if err := os.WriteFile(filepath.Join(folder, p.file(command)+".1"), []byte(p.page(command)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// width is that of a terminal on which help fits.
const width = 80

// Flags lists flags as help has them, in the order of their names, with what they say of
// themselves. values are those of flags that take one of a few, by the flag's name.
func Flags(flags *flag.FlagSet, values map[string][]string) string {
	var b strings.Builder
	flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		line := "  -" + f.Name
		switch of := values[f.Name]; {
		case len(of) > 0:
			line += " " + strings.Join(of, "|")
		case value != "":
			line += " " + strings.ToUpper(value)
		}
		if f.DefValue != "" && f.DefValue != "false" && !strings.Contains(usage, "(default ") {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, "%s\n%s", line, wrap(usage, "        "))
	})
	return b.String()
}

// wrap breaks a text into lines.
func wrap(text, indent string) string {
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+len(" ")+len(word) > width && line != indent {
			b.WriteString(line + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}
