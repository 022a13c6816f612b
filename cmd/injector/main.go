// The injector puts a queue-proxy into the pods of workloads, and takes it out again.
//
//	injector inject   [-f FILE|DIR|-]... [-o yaml|json|diff] [options]
//	injector uninject [-f FILE|DIR|-]... [-o yaml|json|diff]
//	injector explain  [-f FILE|DIR|-]... [-o text|json] [options]    say what inject would do
//	injector status   [-f FILE|DIR|-]...              say which Services may follow their pods
//	injector serve    [flags] [options]               the webhook
//	injector policy   [options]                       print a policy that does the same without a server
//	injector options                                  list the options
//	injector completion bash|zsh|fish                 print a script for the shell
//	injector version
//
// Objects come from the files, or from the standard input, and go to the standard
// output, or back into their files with -in-place; a line about each that makes pods goes to
// the standard error, and one about all of them. Exit codes: 0 it is done; 1 with -o diff, there
// is a difference; 2 something was refused or cannot be read, and then nothing is printed, so
// that no half of it is applied; 3 with -on-refusal=skip, something was refused, and the rest
// is done.
//
// The options are flags, environment variables and annotations: docs/injection.md.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/pkg/printable"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// Exit codes.
const (
	done     = 0
	differs  = 1
	notAtAll = 2
	partly   = 3
)

func main() {
	environ := os.Environ() //nolint:forbidigo // the injector's own, read once; pkg/config reads the sidecar's
	os.Exit(run(os.Args[1:], environ, os.Stdin, os.Stdout, os.Stderr))
}

func run(args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage())
		return notAtAll
	}
	c := &command{stdin: stdin, stdout: stdout, stderr: stderr}
	code, err := done, error(nil)
	switch name := args[0]; name {
	case "inject", "uninject", "explain":
		code, err = c.files(name, args[1:], environ)
	case "status":
		code, err = c.status(args[1:])
	case "serve":
		err = c.serve(args[1:], environ)
	case "policy":
		err = c.policy(args[1:], environ)
	case "options":
		if err = c.parse(newFlags(name), args[1:]); err == nil {
			c.listOptions()
		}
	case "completion":
		err = c.completion(args[1:])
	case "version", "--version", "-version":
		if err = c.parse(newFlags("version"), args[1:]); err == nil {
			fmt.Fprintf(stdout, "injector %s (commit %s)\n", version, commit)
		}
	case "man":
		err = c.man(args[1:])
	case "help", "--help", "-help", "-h":
		err = c.help(args[1:])
	default:
		fmt.Fprintf(stderr, "injector: unknown command %q\n%s", name, usage())
		return notAtAll
	}
	if errors.Is(err, flag.ErrHelp) {
		return done
	}
	if err != nil {
		fmt.Fprintf(stderr, "injector: %v\n", err)
		return notAtAll
	}
	return code
}

// help prints the help of the program, or of one of its commands.
func (c *command) help(args []string) error {
	if len(args) > 0 && isHelp(args[0]) {
		args = []string{"help"}
	}
	switch {
	case len(args) == 0:
		fmt.Fprint(c.stdout, help(""))
	case len(args) > 1 || !slices.Contains(commandNames(), args[0]):
		return fmt.Errorf("help %s: no such command", strings.Join(args, " "))
	default:
		fmt.Fprint(c.stdout, help(args[0]))
	}
	return nil
}

func isHelp(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }

// man writes the manual pages into a folder. It is for who packs the program, and in no list
// of commands.
func (c *command) man(args []string) error {
	if len(args) != 1 {
		return errors.New("man: which folder?")
	}
	return pages().Write(args[0])
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

// parse reads the flags. After -h it has printed the help of their command and returns
// [flag.ErrHelp].
func (c *command) parse(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(c.stdout, help(strings.TrimPrefix(flags.Name(), "injector ")))
	}
	return err
}

// parseAll is parse for a command that takes no arguments; hint says what does instead.
func (c *command) parseAll(flags *flag.FlagSet, args []string, hint string) error {
	if err := c.parse(flags, args); err != nil {
		return err
	}
	name := strings.TrimPrefix(flags.Name(), "injector ")
	if flags.NArg() > 0 {
		return fmt.Errorf("%s: unknown argument %q%s", name, flags.Arg(0), hint)
	}
	var err error
	flags.VisitAll(func(f *flag.Flag) {
		if may, few := valuesOf(name)[f.Name]; few && err == nil {
			err = oneOf(f.Name, f.Value.String(), may)
		}
	})
	return err
}

// filing is what the flags of inject, uninject, explain and status say.
type filing struct {
	from      []string
	output    string
	onRefusal string
	quiet     bool
	inPlace   bool
	outputDir string
	step      string
}

func (f *filing) flags(name string) *flag.FlagSet {
	flags := newFlags(name)
	flags.Func("f", "`file` or folder of YAML or JSON, - for the standard input; may be repeated", func(path string) error {
		f.from = append(f.from, path)
		return nil
	})
	if name == "status" {
		return flags
	}
	if name != "uninject" {
		flags.StringVar(&f.step, "step", string(inject.Workloads), "how far to go: workloads, and Services that find old and new pods, or services, all of them: when the pods have rolled")
	}
	if name == "explain" {
		flags.StringVar(&f.output, "o", "text", "what to print: text, or json: the verdicts, for programs")
		return flags
	}
	flags.StringVar(&f.output, "o", "yaml", "what to print: yaml, json or diff")
	flags.StringVar(&f.onRefusal, "on-refusal", "fail", "when an object is refused: fail, and print nothing, or skip it, do the rest and exit with 3")
	flags.BoolVar(&f.quiet, "q", false, "report refusals alone")
	flags.BoolVar(&f.inPlace, "in-place", false, "write the files that change, and print nothing")
	flags.StringVar(&f.outputDir, "output-dir", "", "write all files below this `folder`, and print nothing")
	return flags
}

// valuesOf are what the flags of a command may say, of those that may say one of a few things.
func valuesOf(name string) map[string][]string {
	steps := []string{string(inject.Workloads), string(inject.Services)}
	switch name {
	case "inject", "uninject":
		return map[string][]string{"o": {"yaml", "json", "diff"}, "on-refusal": {"fail", "skip"}, "step": steps}
	case "explain":
		return map[string][]string{"o": {"text", "json"}, "step": steps}
	case "serve":
		return map[string][]string{"on-refusal": {"deny", "allow"}}
	}
	return nil
}

// oneOf returns an error if a flag says nothing of what it may.
func oneOf(name, text string, may []string) error {
	if slices.Contains(may, text) {
		return nil
	}
	last := len(may) - 1
	return fmt.Errorf("-%s %q: %s or %s", name, text, strings.Join(may[:last], ", "), may[last])
}

// check returns what is wrong with the flags together.
func (f *filing) check() error {
	switch {
	case f.inPlace && f.outputDir != "":
		return errors.New("-in-place and -output-dir: one of them")
	case (f.inPlace || f.outputDir != "") && f.output != "yaml":
		return errors.New("-o prints, -in-place and -output-dir write: one of them")
	case f.inPlace && (len(f.from) == 0 || slices.Contains(f.from, "-")):
		return errors.New("-in-place: the standard input has no place; name files with -f")
	}
	return nil
}

// files is inject, uninject and explain.
func (c *command) files(name string, args, environ []string) (int, error) {
	f := new(filing)
	flags := f.flags(name)
	said, err := inject.FromEnv(environ)
	if err != nil {
		return 0, err
	}
	if name != "uninject" {
		optionFlags(flags, said)
	}
	if err := c.parseAll(flags, args, "; files are given with -f"); err != nil {
		return 0, err
	}
	if err := f.check(); err != nil {
		return 0, err
	}
	// A run is short and keeps all that it reads: collecting garbage less often is a third
	// of its time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	inputs, files, err := c.read(f.from)
	if err != nil {
		return 0, err
	}
	var results []*manifest.Result
	if name == "uninject" {
		results = manifest.Uninject(files)
	} else {
		results = manifest.Inject(files, said, inject.Step(f.step))
	}
	if name == "explain" {
		return codeOf(results), c.explain(f.output, results)
	}
	return c.finish(f, name, results, inputs, files)
}

// finish reports what became of the objects, and writes them where they go.
func (c *command) finish(f *filing, name string, results []*manifest.Result, inputs []input, files []*manifest.File) (int, error) {
	c.report(results, f.quiet)
	code := codeOf(results)
	if code != done && f.onRefusal == "fail" {
		return code, nil
	}
	if name == "inject" && f.output != "diff" { // which shows, and is not applied
		if err := holdImage(results); err != nil {
			return 0, err
		}
	}
	if code != done {
		code = partly
	}
	if f.inPlace || f.outputDir != "" {
		return code, writeFiles(f.outputDir, inputs, files)
	}
	printed, err := c.print(f.output, inputs, files)
	return max(code, printed), err
}

// holdImage refuses to put an image into pods that nobody has chosen: they would not start.
func holdImage(results []*manifest.Result) error {
	for _, r := range results {
		if r.Verdict == inject.Injected && r.Placeholder {
			return fmt.Errorf("%s: %w", called(r), inject.ErrPlaceholder)
		}
	}
	return nil
}

// status says which Services may follow their pods, of objects as kubectl get writes them: exit
// code 0 if all may, 1 if one must wait.
func (c *command) status(args []string) (int, error) {
	f := new(filing)
	if err := c.parseAll(f.flags("status"), args, "; files are given with -f"); err != nil {
		return 0, err
	}
	_, files, err := c.read(f.from)
	if err != nil {
		return 0, err
	}
	code := done
	all := manifest.Status(files)
	for _, r := range all {
		name := r.Name
		if r.Namespace != "" {
			name = r.Namespace + "/" + name
		}
		printLine(c.stdout, "Service %s: %s", name, r.Text)
		if r.Wait {
			code = differs
		}
	}
	if len(all) == 0 {
		printLine(c.stdout, "no Service finds a pod with a sidecar")
		code = differs
	}
	return code, nil
}

// policy prints the injection as objects for the API server.
func (c *command) policy(args, environ []string) error {
	said, err := inject.FromEnv(environ)
	if err != nil {
		return err
	}
	flags := newFlags("policy")
	optionFlags(flags, said)
	if err := c.parseAll(flags, args, ""); err != nil {
		return err
	}
	text, err := inject.Policy(said)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	_, err = io.WriteString(c.stdout, text)
	return err
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

// report writes a line about each object that makes pods or that something is to be said of,
// lines about what somebody should look at, and a line about all of them. A quiet one writes
// refusals alone.
func (c *command) report(results []*manifest.Result, quiet bool) {
	for _, r := range results {
		if quiet && r.Verdict != inject.Refused {
			continue
		}
		if !concernsNobody(r) {
			printLine(c.stderr, "%s:%d: %s: %s", r.File, r.Line, called(r), became(r))
		}
		for _, w := range r.Warnings {
			printLine(c.stderr, "%s:%d: %s: warning: %s", r.File, r.Line, called(r), w)
		}
	}
	if len(results) > 1 && !quiet {
		printLine(c.stderr, "%d objects: %s", len(results), summary(results))
	}
}

// concernsNobody reports whether an object is one of the many that are only there as well.
func concernsNobody(r *manifest.Result) bool {
	return r.Reason == inject.NoPods || r.Reason == inject.Unaffected || r.Reason == inject.NotInjected && r.Kind == "Service"
}

// summary counts what became of objects: "2 injected, 3 skipped (2 no-pods, 1 no-port)".
func summary(results []*manifest.Result) string {
	var all []string
	for _, v := range []inject.Verdict{inject.Injected, inject.Uninjected, inject.Rewritten, inject.Skipped, inject.Refused} {
		count, reasons := 0, map[string]int{}
		for _, r := range results {
			if r.Verdict == v {
				count++
				reasons[r.Reason]++
			}
		}
		if count == 0 {
			continue
		}
		text := fmt.Sprintf("%d %s", count, v)
		delete(reasons, "")
		var why []string
		for _, reason := range slices.Sorted(maps.Keys(reasons)) {
			why = append(why, fmt.Sprintf("%d %s", reasons[reason], reason))
		}
		if len(why) > 0 {
			text += " (" + strings.Join(why, ", ") + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// printLine writes a line of what may be printed: an object's texts can hold the letters by which
// a terminal gets a command to erase lines, or to write others.
func printLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, printable.Text(fmt.Sprintf(format, args...)))
}

func called(r *manifest.Result) string { return cmp.Or(r.Object(), "document") }

// became says what became of an object: "skipped (no-port): ...".
func became(r *manifest.Result) string {
	if r.Reason == "" {
		return fmt.Sprintf("%s: %s", r.Verdict, r.Text)
	}
	return fmt.Sprintf("%s (%s): %s", r.Verdict, r.Reason, r.Text)
}

// explain says what would change, and why: in words, or as JSON.
func (c *command) explain(output string, results []*manifest.Result) error {
	if output == "json" {
		return c.verdicts(results)
	}
	for i, r := range results {
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		verb := became(r)
		if would := map[inject.Verdict]string{inject.Injected: "would be injected", inject.Rewritten: "would follow its pods"}[r.Verdict]; would != "" {
			verb = would + ": " + r.Text
		}
		printLine(c.stdout, "%s (%s:%d) %s", called(r), r.File, r.Line, verb)
		for _, p := range r.Ports {
			printLine(c.stdout, "  port %s", evidence(p))
		}
		if r.Missing != "" {
			printLine(c.stdout, "  missing: %s", r.Missing)
		}
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
	return nil
}

// evidence describes a port that was considered for the requests.
func evidence(p inject.Port) string {
	name := fmt.Sprint(p.Number)
	if p.Name != "" {
		name = fmt.Sprintf("%s (%d)", p.Name, p.Number)
	}
	if p.Container != "" {
		name += " of container " + p.Container
	}
	reasons := strings.Join(p.Reasons, "; ")
	switch {
	case p.Selected:
		return fmt.Sprintf("%s: selected, confidence %s: %s", name, p.Confidence, reasons)
	case p.Against != "":
		return fmt.Sprintf("%s: not used: %s", name, p.Against)
	}
	return fmt.Sprintf("%s: possible, confidence %s: %s", name, p.Confidence, reasons)
}

// A port is the JSON form of an [inject.Port].
type port struct {
	Container  string            `json:"container,omitempty"`
	Name       string            `json:"name,omitempty"`
	Number     int32             `json:"number"`
	Selected   bool              `json:"selected"`
	Confidence inject.Confidence `json:"confidence,omitempty"`
	Reasons    []string          `json:"reasons,omitempty"`
	Against    string            `json:"against,omitempty"`
}

// A verdict is what a program reads about one object. Its fields are a promise: they stay.
type verdict struct {
	File        string            `json:"file"`
	Line        int               `json:"line"`
	Kind        string            `json:"kind,omitempty"`
	Namespace   string            `json:"namespace,omitempty"`
	Name        string            `json:"name,omitempty"`
	Verdict     inject.Verdict    `json:"verdict"`
	Reason      string            `json:"reason,omitempty"`
	Text        string            `json:"text"`
	Container   string            `json:"container,omitempty"`
	Port        int32             `json:"port,omitempty"`
	ServingPort int32             `json:"servingPort,omitempty"`
	Confidence  inject.Confidence `json:"confidence,omitempty"`
	Ports       []port            `json:"ports,omitempty"`
	Missing     string            `json:"missing,omitempty"`
	Notes       []string          `json:"notes,omitempty"`
	Warnings    []string          `json:"warnings,omitempty"`
	Advice      []string          `json:"advice,omitempty"`
}

func (c *command) verdicts(results []*manifest.Result) error {
	all := []verdict{}
	for _, r := range results {
		var ports []port
		for _, p := range r.Ports {
			ports = append(ports, port(p))
		}
		all = append(all, verdict{r.File, r.Line, r.Kind, r.Namespace, r.Name, r.Verdict, r.Reason, r.Text,
			r.Container, r.AppPort, r.ServingPort, r.Confidence, ports, r.Missing, r.Notes, r.Warnings, r.Advice()})
	}
	return printable.JSON(c.stdout, all)
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
		names := append([]string{o.Env()}, o.Annotations()...)
		fmt.Fprintf(c.stdout, "--%s\n    %s\n    %s\n", o.Name, strings.Join(names, ", "), text)
	}
}
