// The injector puts a queue-proxy into the pods of workloads, and takes it out again.
//
//	injector inject   [-f FILE|DIR|-]... [-o yaml|json|diff] [options]
//	injector uninject [-f FILE|DIR|-]... [-o yaml|json|diff]
//	injector explain  [-f FILE|DIR|-]... [options]    say in words what inject would do
//	injector serve    [flags] [options]               the webhook
//	injector policy   [options]                       print a policy that does the same without a server
//	injector options                                  list the options
//	injector version
//
// Objects come from the files, or from the standard input, and go to the standard
// output; a line about each goes to the standard error. Exit codes: 0 it is done; 1
// with -o diff, there is a difference; 2 something was refused or cannot be read, and
// then nothing is printed, so that no half of it is applied.
//
// The options are flags, environment variables and annotations: docs/injection.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"unicode"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// Exit codes.
const (
	done      = 0
	differs   = 1
	notAtAll  = 2
	usageText = `usage: injector inject   [-f FILE|DIR|-]... [-o yaml|json|diff] [options]
       injector uninject [-f FILE|DIR|-]... [-o yaml|json|diff]
       injector explain  [-f FILE|DIR|-]... [options]
       injector serve    [flags] [options]
       injector policy   [options]
       injector options
       injector version
`
)

func main() {
	environ := os.Environ() //nolint:forbidigo // the injector's own, read once; pkg/config reads the sidecar's
	os.Exit(run(os.Args[1:], environ, os.Stdin, os.Stdout, os.Stderr))
}

func run(args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usageText)
		return notAtAll
	}
	c := &command{stdin: stdin, stdout: stdout, stderr: stderr}
	code, err := done, error(nil)
	switch name := args[0]; name {
	case "inject", "uninject", "explain":
		code, err = c.files(name, args[1:], environ)
	case "serve":
		code, err = c.serve(args[1:], environ)
	case "policy":
		code, err = c.policy(args[1:], environ)
	case "options":
		c.listOptions()
	case "version", "--version", "-version":
		fmt.Fprintf(stdout, "injector %s (commit %s)\n", version, commit)
	case "help", "--help", "-help", "-h":
		fmt.Fprint(stdout, usageText)
	default:
		fmt.Fprintf(stderr, "injector: unknown command %q\n%s", name, usageText)
		return notAtAll
	}
	if errors.Is(err, flag.ErrHelp) {
		return done
	}
	if err != nil {
		fmt.Fprintf(stderr, "injector: %v\n", err)
	}
	return code
}

// A command is one run of the program.
type command struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// newFlags returns the flags of a sub-command, for parse.
func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet("injector "+name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is one line; only -h lists the flags
	flags.Usage = func() {}
	return flags
}

// parse reads the flags. After -h it has listed them and returns [flag.ErrHelp].
func (c *command) parse(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(c.stdout, usageText)
		flags.SetOutput(c.stdout)
		flags.PrintDefaults()
	}
	return err
}

// files is inject, uninject and explain.
func (c *command) files(name string, args, environ []string) (int, error) {
	flags := newFlags(name)
	var from []string
	flags.Func("f", "`file` or folder of YAML or JSON, - for the standard input; may be repeated", func(path string) error {
		from = append(from, path)
		return nil
	})
	output := "yaml"
	if name != "explain" {
		flags.StringVar(&output, "o", output, "what to print: yaml, json or diff")
	}
	said, err := inject.FromEnv(environ)
	if err != nil {
		return notAtAll, err
	}
	if name != "uninject" {
		optionFlags(flags, said)
	}
	if err := c.parse(flags, args); err != nil {
		return notAtAll, err
	}
	if flags.NArg() > 0 {
		return notAtAll, fmt.Errorf("%s: unknown argument %q; files are given with -f", name, flags.Arg(0))
	}
	if !slices.Contains([]string{"yaml", "json", "diff"}, output) {
		return notAtAll, fmt.Errorf("-o %q: yaml, json or diff", output)
	}
	// A run is short and keeps all that it reads: collecting garbage less often is a third
	// of its time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	inputs, err := c.read(from)
	if err != nil {
		return notAtAll, err
	}
	var files []*manifest.File
	for _, in := range inputs {
		files = append(files, manifest.Parse(in.name, in.text))
	}

	var results []*manifest.Result
	if name == "uninject" {
		results = manifest.Uninject(files)
	} else {
		results = manifest.Inject(files, said)
	}
	if name == "explain" {
		c.explain(results)
		return codeOf(results), nil
	}
	c.report(results)
	if code := codeOf(results); code != done {
		return code, nil
	}
	return c.print(output, inputs, files)
}

// policy prints the injection as objects for the API server.
func (c *command) policy(args, environ []string) (int, error) {
	said, err := inject.FromEnv(environ)
	if err != nil {
		return notAtAll, err
	}
	flags := newFlags("policy")
	optionFlags(flags, said)
	if err := c.parse(flags, args); err != nil {
		return notAtAll, err
	}
	if flags.NArg() > 0 {
		return notAtAll, fmt.Errorf("policy: unknown argument %q", flags.Arg(0))
	}
	text, err := inject.Policy(said)
	if err != nil {
		return notAtAll, fmt.Errorf("policy: %w", err)
	}
	_, err = io.WriteString(c.stdout, text)
	return done, err
}

// optionFlags makes a flag of each option; what is said in a flag goes to said, over
// what the environment said. Settings may be repeated.
func optionFlags(flags *flag.FlagSet, said inject.Options) {
	settings := ""
	for _, o := range inject.Table() {
		usage := strings.ReplaceAll(o.Text, "`", "")
		if o.Default != "" {
			usage += " (default " + o.Default + ")"
		}
		flags.Func(o.Name, usage, func(text string) error {
			if o.Name == "settings" {
				settings += text + "\n"
				text = settings
			}
			return said.Set(o.Name, text)
		})
	}
}

// codeOf is the exit code that some results ask for.
func codeOf(results []*manifest.Result) int {
	if slices.ContainsFunc(results, func(r *manifest.Result) bool { return r.Verdict == inject.Refused }) {
		return notAtAll
	}
	return done
}

// report writes a line about each object, and lines about what somebody should look at.
func (c *command) report(results []*manifest.Result) {
	for _, r := range results {
		printLine(c.stderr, "%s:%d: %s: %s", r.File, r.Line, called(r), became(r))
		for _, w := range r.Warnings {
			printLine(c.stderr, "%s:%d: %s: warning: %s", r.File, r.Line, called(r), w)
		}
	}
}

// printLine writes a line of what may be printed: an object's texts can hold the letters by which
// a terminal is told to erase lines, or to write others.
func printLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, fmt.Sprintf(format, args...)))
}

func called(r *manifest.Result) string {
	if r.Object() == "" {
		return "document"
	}
	return r.Object()
}

// became says what became of an object: "skipped (no-port): ...".
func became(r *manifest.Result) string {
	if r.Reason == "" {
		return fmt.Sprintf("%s: %s", r.Verdict, r.Text)
	}
	return fmt.Sprintf("%s (%s): %s", r.Verdict, r.Reason, r.Text)
}

// explain says in words what would change, and why.
func (c *command) explain(results []*manifest.Result) {
	for i, r := range results {
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		verb := map[inject.Verdict]string{inject.Injected: "would be injected", inject.Rewritten: "would follow its pods"}[r.Verdict]
		if verb == "" {
			verb = became(r)
		} else {
			verb += ": " + r.Text
		}
		printLine(c.stdout, "%s (%s:%d) %s", called(r), r.File, r.Line, verb)
		for _, n := range r.Notes {
			printLine(c.stdout, "  - %s", n)
		}
		for _, w := range r.Warnings {
			printLine(c.stdout, "  ! %s", w)
		}
		for _, a := range r.Advice() {
			printLine(c.stdout, "  ? %s", a)
		}
	}
}

func (c *command) listOptions() {
	for _, o := range inject.Table() {
		text := o.Text
		if o.Default != "" {
			text += " Default: `" + o.Default + "`."
		}
		if o.Variable() != "" {
			text += " The sidecar's " + o.Variable() + "."
		}
		fmt.Fprintf(c.stdout, "--%s\n    %s", o.Name, o.Env())
		if o.Annotation() != "" {
			fmt.Fprintf(c.stdout, ", %s", o.Annotation())
		}
		for _, alias := range o.Aliases {
			fmt.Fprintf(c.stdout, ", %s", alias)
		}
		fmt.Fprintf(c.stdout, "\n    %s\n", text)
	}
}
