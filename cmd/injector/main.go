// Injector adds the queue-proxy to the pods of workloads, or removes it. Run a command with --help
// for its usage. docs/injection.md describes the options, which can be set with flags, environment
// variables and annotations.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/cmd/internal/cli"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/manifest"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// The linker sets these variables.
var (
	version = "dev"
	commit  = "unknown"
)

// Exit codes of the program. The constant exitCodes describes them.
const (
	done    = 0
	differs = 1
	failed  = 2
	partial = 3
)

func main() {
	environ := os.Environ() //nolint:forbidigo // the environment of the injector, read once; pkg/config reads that of the sidecar
	os.Exit(run(os.Args[1:], environ, os.Stdin, os.Stdout, os.Stderr))
}

// run runs the command line args and returns the exit code.
func run(args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{environ: environ, stdin: stdin, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := cli.Execute(context.Background(), root, fmt.Sprintf("%s (commit %s)", version, commit), args); err != nil {
		return failed
	}
	return c.code
}

// A command is one invocation of the program.
type command struct {
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	code           int // exit code of a command that returns no error

	options    inject.Options // options from the environment and the flags
	optionsErr error          // error in the environment
}

// edit runs inject or uninject.
func (c *command) edit(f *fileFlags, uninject bool) error {
	inputs, files, err := c.read(f.from)
	if err != nil {
		return err
	}
	defer limitMemory(files, sizeOf(inputs))()
	var results []*manifest.Result
	if uninject {
		results = manifest.Uninject(files)
	} else {
		results = manifest.Inject(files, c.options, inject.Step(f.step))
	}
	if !uninject && f.output != "diff" { // a diff does not require an image, because it is not applied to a cluster
		if err := requireImage(results); err != nil {
			return err
		}
	}
	c.report(results, f.quiet)
	if c.code = codeOf(results); c.code != done {
		if f.onRefusal == "fail" {
			return nil
		}
		c.code = partial
	}
	if f.inPlace || f.outputDir != "" {
		return writeFiles(f.outputDir, inputs, files)
	}
	return c.print(f.output, inputs, files)
}

// maxSmallDocument is the maximum length in bytes of a document that fits into the memory limit when
// it is decoded.
const maxSmallDocument = 64 << 10

// limitMemory configures the garbage collector for files with a total length of size bytes until the
// returned function is called. Collections are rare until the memory of the process reaches about 100
// MB plus 20 times size. The memory limit does not include about 30 MB that the program itself needs.
// For a large document, limitMemory does not lower the memory limit, because the live heap can exceed
// it, and collections would then take half of the CPU time.
func limitMemory(files []*manifest.File, size int) (restore func()) {
	limit, percent := 57<<20+18*int64(size), 400
	if slices.ContainsFunc(files, func(f *manifest.File) bool { return f.LargestDocument() > maxSmallDocument }) {
		limit, percent = math.MaxInt64, 25
	}
	limit = debug.SetMemoryLimit(min(debug.SetMemoryLimit(-1), limit))
	percent = debug.SetGCPercent(percent)
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}

// requireImage returns an error if a pod was injected with the placeholder image, because such a
// pod would not start.
func requireImage(results []*manifest.Result) error {
	for _, r := range results {
		if r.Verdict == inject.Injected && r.ImageError != nil {
			return fmt.Errorf("%s: %w", objectName(r), r.ImageError)
		}
	}
	return nil
}

// status prints for each Service whether it can be changed in the second step.
func (c *command) status(f *fileFlags) error {
	inputs, files, err := c.read(f.from)
	if err != nil {
		return err
	}
	defer limitMemory(files, sizeOf(inputs))()
	all, results := manifest.Status(files)
	switch {
	case codeOf(results) != done:
		c.report(results, true)
		c.code = failed
		return nil
	case len(results) == 0:
		printLine(c.stderr, "0 objects")
	case isManifest(results):
		printLine(c.stderr, "the input must contain the pods and Services of a cluster, not manifests: kubectl get pods,services -o json | injector status")
	}
	if len(all) == 0 || slices.ContainsFunc(all, func(r manifest.Rollout) bool { return r.Wait }) {
		c.code = differs
	}
	if f.output == "json" {
		return message.JSON(c.stdout, all)
	}
	if len(all) == 0 {
		printLine(c.stdout, "no Service selects a pod with a sidecar")
	}
	for _, r := range all {
		name := r.Service
		if r.Namespace != "" {
			name = r.Namespace + "/" + name
		}
		printLine(c.stdout, "Service %s: %s", name, r.Text)
	}
	return nil
}

// isManifest reports whether the objects contain workloads, but no pods.
func isManifest(results []*manifest.Result) bool {
	isPod := func(r *manifest.Result) bool { return r.Kind == "Pod" }
	return slices.ContainsFunc(results, (*manifest.Result).HasPods) && !slices.ContainsFunc(results, isPod)
}

// policy prints an admission policy.
func (c *command) policy() error {
	text, err := inject.Policy(c.options)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.stdout, text)
	return err
}

// codeOf returns the exit code for results.
func codeOf(results []*manifest.Result) int {
	if slices.ContainsFunc(results, func(r *manifest.Result) bool { return r.Verdict == inject.Refused }) {
		return failed
	}
	return done
}

// report prints a line for each relevant object, a line for each warning, and a summary. If quiet
// is set, it prints only lines for refused objects.
func (c *command) report(results []*manifest.Result, quiet bool) {
	reported := false
	for _, r := range results {
		if quiet && r.Verdict != inject.Refused {
			continue
		}
		if r.HasSameError {
			continue
		}
		if !isIrrelevant(r) {
			reported = true
			printLine(c.stderr, "%s:%d: %s: %s", r.File, r.Line, objectName(r), describeVerdict(r))
		}
		if r.Verdict == inject.Injected && r.Confidence == inject.Low {
			printLine(c.stderr, "%s:%d: %s: warning: port %d is selected with low confidence; missing: %s", r.File, r.Line, objectName(r), r.AppPort, r.Missing)
		}
		if r.SameErrors > 0 {
			printLine(c.stderr, "%s:%d: the error applies to %d more objects of the document", r.File, r.Line, r.SameErrors)
		}
		for _, w := range r.Warnings {
			printLine(c.stderr, "%s:%d: %s: warning: %s", r.File, r.Line, objectName(r), w)
		}
	}
	switch {
	case len(results) == 0 && !quiet:
		printLine(c.stderr, "0 objects")
	case (len(results) > 1 || !reported) && !quiet:
		printLine(c.stderr, "%s: %s", message.Count(len(results), "object"), summary(results))
	}
}

// isIrrelevant reports whether the report omits an object, because the object has no pods or needs
// no change.
func isIrrelevant(r *manifest.Result) bool {
	return r.Reason == inject.NoPods || r.Reason == inject.Unaffected || r.Reason == inject.NotInjected && r.Kind == "Service"
}

// summary returns the number of objects by verdict and reason, for example "2 injected, 3 skipped
// (2 no-pods, 1 no-port)".
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

// printLine prints a line without control characters, because an object can contain escape
// sequences that change the output of a terminal.
func printLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, message.Printable(fmt.Sprintf(format, args...)))
}

// objectName returns the kind and name of an object. If both are unknown, it returns the number of the
// document.
func objectName(r *manifest.Result) string {
	if name := r.Object(); name != "" || r.Document == 0 {
		return cmp.Or(name, "document")
	}
	return fmt.Sprintf("document %d", r.Document)
}

// describeVerdict returns the verdict for an object, for example "skipped (no-port): ...".
func describeVerdict(r *manifest.Result) string {
	if r.Reason == "" {
		return fmt.Sprintf("%s: %s", r.Verdict, r.Text)
	}
	return fmt.Sprintf("%s (%s): %s", r.Verdict, r.Reason, r.Text)
}

// explain prints the result of an injection and the reasons for it, as text or JSON.
func (c *command) explain(f *fileFlags) error {
	inputs, files, err := c.read(f.from)
	if err != nil {
		return err
	}
	defer limitMemory(files, sizeOf(inputs))()
	results := manifest.Inject(files, c.options, inject.Step(f.step))
	if c.code = codeOf(results); slices.ContainsFunc(results, func(r *manifest.Result) bool { return r.Rejected }) {
		c.code = failed
	}
	if f.output == "json" {
		return message.JSON(c.stdout, append([]*manifest.Result{}, results...)) // the copy is not nil, so that the output is [] and not null
	}
	if len(results) == 0 {
		printLine(c.stderr, "0 objects")
	}
	for i, r := range results {
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		verb := describeVerdict(r)
		if would := map[inject.Verdict]string{inject.Injected: "would be injected", inject.Rewritten: "would be rewritten"}[r.Verdict]; would != "" {
			verb = would + ": " + r.Text
		}
		printLine(c.stdout, "%s (%s:%d) %s", objectName(r), r.File, r.Line, verb)
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
		for _, a := range r.Advice {
			printLine(c.stdout, "  ? %s", a)
		}
	}
	return nil
}

// evidence describes a port that was considered as the port for requests.
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

// listOptions prints the names and the description of each option.
func (c *command) listOptions() error {
	var out strings.Builder
	for _, o := range inject.Table() {
		text := o.Text
		if o.Default != "" {
			text += " Default: `" + o.Default + "`."
		}
		if o.Variable() != "" {
			text += " Sets " + o.Variable() + " of the sidecar."
		}
		names := append([]string{o.Env()}, o.Annotations()...)
		fmt.Fprintf(&out, "--%s\n    %s\n    %s\n", o.Name, strings.Join(names, ", "), text)
	}
	_, err := io.WriteString(c.stdout, out.String())
	return err
}
