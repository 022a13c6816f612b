package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queue-proxy/queue-proxy/cmd/internal/cli"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// exitCodes is the section on exit codes in the help of the commands that write manifests.
const exitCodes = `
Exit codes:
  0  The command succeeded.
  1  The output of --output=diff contains a difference.
  2  An object was refused, or an error occurred. No output was written.
  3  An object was refused and is unchanged in the output (--on-refusal=skip).
`

// optionsHelp is the part of the help texts about options.
const optionsHelp = `
The options are set with flags, environment variables or annotations of the pod. The option --lock
does not have an annotation. The command 'injector options' lists all flags, variables and
annotations.
`

// root returns the command line of the program.
func (c *command) root() *cobra.Command {
	if c.options, c.optionsErr = inject.FromEnv(c.environ); c.optionsErr != nil {
		c.options = inject.Options{}
	}
	root := &cobra.Command{
		Use: "injector", Short: "Add the queue-proxy to the pods of workloads, and remove it",
		Long: `injector adds the queue-proxy to the pods of workloads, and removes it. It edits manifests, runs as
an admission webhook, or prints an admission policy.
` + exitCodes,
		Example: `  # Show the changes and apply the result.
  injector inject -f app.yaml -o diff --image registry.example/queue-proxy:1
  injector inject -f app.yaml --image registry.example/queue-proxy:1 | kubectl apply -f -`,
		RunE: func(*cobra.Command, []string) error { return errors.New("a command is required") },
	}
	root.AddCommand(c.injectCommand(), c.uninjectCommand(), c.explainCommand(), c.statusCommand(), c.checkCommand(), c.serveCommand(), c.policyCommand(), c.optionsCommand())
	return root
}

// fileFlags contains the flags of inject, uninject, explain and status.
type fileFlags struct {
	from      []string
	output    string
	onRefusal string
	quiet     bool
	inPlace   bool
	outputDir string
	step      string
}

// fileCommand adds the flag for the input to cmd, and returns cmd.
func fileCommand(cmd *cobra.Command, f *fileFlags) *cobra.Command {
	cmd.Args = cli.NoArguments("; files are specified with -f")
	cmd.Flags().StringArrayVarP(&f.from, "filename", "f", nil, "`file` or directory that contains YAML or JSON; the default is the standard input (-); repeatable")
	return cmd
}

// outputFlags adds the flags for the output of inject and uninject to cmd.
func outputFlags(cmd *cobra.Command, f *fileFlags) {
	cli.Choice(cmd, &f.output, "output", "o", "format of the output", "yaml", "json", "diff")
	cli.Choice(cmd, &f.onRefusal, "on-refusal", "", "action if an object is refused; fail writes no output", "fail", "skip")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "report only refused objects")
	cmd.Flags().BoolVar(&f.inPlace, "in-place", false, "write the changed files instead of the standard output")
	cmd.Flags().StringVar(&f.outputDir, "output-dir", "", "write the files to this `directory` instead of the standard output")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if f.inPlace && (len(f.from) == 0 || slices.Contains(f.from, "-")) {
			return errors.New("--in-place requires -f")
		}
		return nil
	}
	cli.Exclusive(cmd, "in-place", "output-dir", "output")
}

// stepFlag adds the flag for the step of the injection to cmd.
func stepFlag(cmd *cobra.Command, f *fileFlags) {
	cli.Choice(cmd, &f.step, "step", "", "workloads injects the pods and changes the Services that can be changed immediately; services changes the other Services after the rollout",
		string(inject.Workloads), string(inject.Services))
}

// optionFlags adds a flag for each option of the injection to cmd. A flag overrides the
// environment. The RunE function of cmd must be set.
func (c *command) optionFlags(cmd *cobra.Command) {
	settings := ""
	for _, o := range inject.Table() {
		usage := strings.ReplaceAll(o.Text, "`", "")
		switch {
		case o.Name == "image" && cmd.Name() == "inject":
			usage += " (required unless --output=diff)"
		case o.Name == "image" && (cmd.Name() == "serve" || cmd.Name() == "policy"):
			usage += " (required)"
		case o.Default != "":
			usage += " (default " + o.Default + ")"
		}
		cmd.Flags().Func(o.Name, usage, func(text string) error {
			if o.Name == "settings" { // the flag can be repeated
				settings += text + "\n"
				text = settings
			}
			return c.options.Set(o.Name, text)
		})
		// RegisterFlagCompletionFunc returns an error only if the flag is unknown or already has a function.
		_ = cmd.RegisterFlagCompletionFunc(o.Name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return o.Words(), cobra.ShellCompDirectiveNoFileComp
		})
	}
	for title, names := range optionGroups() {
		cli.Group(cmd.Flags(), title, names...)
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if c.optionsErr != nil {
			return c.optionsErr
		}
		if cmd.Name() == "serve" || cmd.Name() == "policy" { // the other commands report an error for each object
			if err := c.options.Check(); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
}

// optionGroups returns the sections of the options in the help text, by title.
func optionGroups() map[string][]string {
	groups := map[string][]string{
		"Options for the application": {"container", "inject", "port", "sure"},
		"Options for the drain":       {"drain-deadline", "drain-min", "drain-quiet-period", "drain-streams"},
	}
	other := "Options for the sidecar"
	for _, o := range inject.Table() {
		title := other
		switch {
		case slices.Contains(groups["Options for the application"], o.Name) || slices.Contains(groups["Options for the drain"], o.Name):
			continue
		case strings.HasSuffix(o.Name, "-port"):
			title = "Options for the ports of the sidecar"
		case strings.HasSuffix(o.Name, "-request") || strings.HasSuffix(o.Name, "-limit") || strings.HasPrefix(o.Name, "resource-"):
			title = "Options for the resources of the sidecar"
		case strings.HasSuffix(o.Name, "-timeout") || strings.HasPrefix(o.Name, "queue-") || strings.HasPrefix(o.Name, "exclude-") || o.Name == "concurrency":
			title = "Options for requests"
		}
		groups[title] = append(groups[title], o.Name)
	}
	return groups
}

func (c *command) injectCommand() *cobra.Command {
	f := new(fileFlags)
	cmd := fileCommand(&cobra.Command{
		Use: "inject", Short: "Add the queue-proxy to the pods in manifests",
		Long: `Add the queue-proxy to the pods in manifests, and change the Services to forward requests to it.

The files are edited. Comments, order and white space are kept, and 'injector uninject' restores
every byte. The report is written to the standard error. It contains a line for each object that
creates pods.
` + optionsHelp + exitCodes,
		Example: `  # Show the changes.
  injector inject -f app.yaml -o diff --image registry.example/queue-proxy:1

  # Inject the output of another program.
  helm template . | injector inject --image registry.example/queue-proxy:1 | kubectl apply -f -

  # Edit the files of a directory, and skip the objects that cannot be injected.
  injector inject -f deploy/ --in-place --on-refusal=skip --image registry.example/queue-proxy:1

  # Select a container and a port.
  injector inject -f app.yaml --container web --port 8080 --image registry.example/queue-proxy:1

  # Refuse a pod if the confidence in the port is low.
  injector inject -f app.yaml --sure high --image registry.example/queue-proxy:1`,
		RunE: func(*cobra.Command, []string) error { return c.edit(f, false) },
	}, f)
	outputFlags(cmd, f)
	stepFlag(cmd, f)
	c.optionFlags(cmd)
	return cmd
}

func (c *command) uninjectCommand() *cobra.Command {
	f := new(fileFlags)
	cmd := fileCommand(&cobra.Command{
		Use: "uninject", Short: "Remove the queue-proxy from the pods in manifests",
		Long: `Remove the queue-proxy from the pods in manifests. The changes of the injector are
undone. The rest of the file is not changed.
` + exitCodes,
		Example: `  injector uninject -f app.yaml --in-place
  kubectl get deployment web -o yaml | injector uninject | kubectl apply -f -`,
		RunE: func(*cobra.Command, []string) error { return c.edit(f, true) },
	}, f)
	outputFlags(cmd, f)
	return cmd
}

func (c *command) explainCommand() *cobra.Command {
	f := new(fileFlags)
	cmd := fileCommand(&cobra.Command{
		Use: "explain", Short: "Show the result of an injection and the reasons for it",
		Long: `Show the result of the injection of each object. The report contains the evidence and the confidence
for each port, the changes, the missing information, and the errors in the probes. No files are
written.
` + optionsHelp + `
Exit codes:
  0  All objects can be injected.
  2  An object would be refused, a quota in the input would reject the pods, or an error occurred.
`,
		Example: `  injector explain -f app.yaml
  injector explain -f deploy/ -o json | jq '.[] | select(.verdict == "refused")'`,
		RunE: func(*cobra.Command, []string) error { return c.explain(f) },
	}, f)
	cli.Choice(cmd, &f.output, "output", "o", "format of the output", "text", "json")
	stepFlag(cmd, f)
	c.optionFlags(cmd)
	return cmd
}

func (c *command) statusCommand() *cobra.Command {
	f := new(fileFlags)
	cmd := fileCommand(&cobra.Command{
		Use: "status", Short: "Show which Services can be changed in the second step",
		Long: `Show whether all pods of each Service contain the queue-proxy. If this is the case, the Service can
be changed with 'injector inject --step=services'.

Exit codes:
  0  All Services can be changed.
  1  A Service cannot be changed, or the input contains no Service for the injected pods.
  2  A document is invalid, or another error occurred.
`,
		Example: `  kubectl get pods,services -o json | injector status`,
		RunE:    func(*cobra.Command, []string) error { return c.status(f) },
	}, f)
	cli.Choice(cmd, &f.output, "output", "o", "format of the output", "text", "json")
	return cmd
}

func (c *command) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Print an admission policy that injects pods without a webhook",
		Long: `Print a MutatingAdmissionPolicy and the bindings of the policy. The policy injects pods without a
webhook and requires Kubernetes 1.36.
` + optionsHelp + `
Exit codes:
  0  The command succeeded.
  2  An option is invalid or is not supported by a policy.
`,
		Example: `  injector policy --image registry.example/queue-proxy:1 --concurrency 4 | kubectl apply -f -`,
		Args:    cli.NoArguments(""),
		RunE:    func(*cobra.Command, []string) error { return c.policy() },
	}
	c.optionFlags(cmd)
	return cmd
}

func (c *command) optionsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "List the options: flag, environment variable, annotations and description",
		Example: `  injector options | grep -A 2 concurrency`,
		Args:    cli.NoArguments(""),
		RunE:    func(*cobra.Command, []string) error { return c.listOptions() },
	}
}
