// Package cli contains the parts that the command lines of the injector and of the kubectl plugin share: the commands
// version and man, error messages with suggestions, and flags that accept one of several words.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// width is the maximum line length of a flag description, in characters.
const width = 60

// ErrUsage is wrapped by the error that [Execute] returns for an invalid command line.
var ErrUsage = errors.New("invalid command line")

// Execute runs root with args. It adds the commands version, help, completion and man. The man command is hidden,
// because it is only used to build packages. The subcommands of root must use RunE functions. Execute returns the
// error of the command. Unless ctx is canceled, it also writes the error to the standard error stream of root.
//
// An error that occurs before the RunE function of a command is called, for example in PreRunE, is reported as an
// invalid command line. The message also contains the command that shows the help text.
func Execute(ctx context.Context, root *cobra.Command, version string, args []string) error {
	root.Version = version
	root.SilenceErrors, root.SilenceUsage, root.DisableAutoGenTag = true, true, true
	root.SetFlagErrorFunc(describeFlagError)
	root.SetUsageFunc(usageWithGroups(root.UsageFunc()))
	root.Args = noUnknownCommand
	if root.RunE == nil { // cobra checks the arguments only if the command can run
		root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	root.AddCommand(versionCommand(), manCommand())
	running := false
	root.PersistentFlags().VisitAll(wrap)
	for _, c := range root.Commands() {
		c.Flags().VisitAll(wrap)
		run := c.RunE
		if run == nil {
			continue
		}
		c.RunE = func(cmd *cobra.Command, args []string) error {
			running = true
			return run(cmd, args)
		}
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() { // cobra does not return an error for invalid arguments of these commands
		switch c.Name() {
		case "help":
			c.Args = func(cmd *cobra.Command, args []string) error {
				found, rest, err := cmd.Root().Find(args)
				if err == nil && found.HasSubCommands() {
					err = noUnknownCommand(found, rest)
				}
				return err
			}
		case "completion":
			c.Args = NoArguments("; the shell is bash, zsh, fish or powershell")
			c.RunE = func(*cobra.Command, []string) error { return errors.New("a shell is required") }
		}
	}
	root.SetArgs(append([]string{}, args...)) // for a nil slice, cobra would use os.Args
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	fmt.Fprintf(root.ErrOrStderr(), "%s: %s\n", root.DisplayName(), strings.TrimSpace(message.Lines(err.Error())))
	if running {
		return err
	}
	fmt.Fprintf(root.ErrOrStderr(), "Run '%s --help' for usage.\n", cmd.CommandPath())
	return errors.Join(ErrUsage, err)
}

// noUnknownCommand returns an error with a suggestion if cmd has no subcommand with the name args[0].
func noUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return message.UnknownWord("command", args[0], names)
}

// groupAnnotation is the key of the annotation that contains a flag's group.
const groupAnnotation = "group"

// Group adds flags to a group with a title. The help text shows each group in a separate section. The
// sections are sorted by title.
func Group(flags *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		if f := flags.Lookup(name); f != nil {
			f.Annotations = map[string][]string{groupAnnotation: {title}}
		}
	}
}

// usageWithGroups returns a usage function that calls standard for the flags without a group, and prints each group.
func usageWithGroups(standard func(*cobra.Command) error) func(*cobra.Command) error {
	return func(cmd *cobra.Command) error {
		var titles []string
		groups := map[string]*pflag.FlagSet{}
		var hidden []*pflag.Flag
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			title := strings.Join(f.Annotations[groupAnnotation], "")
			if title == "" || f.Hidden {
				return
			}
			if groups[title] == nil {
				titles, groups[title] = append(titles, title), pflag.NewFlagSet(title, pflag.ContinueOnError)
			}
			shown := *f
			groups[title].AddFlag(&shown)
			f.Hidden = true
			hidden = append(hidden, f)
		})
		err := standard(cmd)
		for _, f := range hidden {
			f.Hidden = false
		}
		slices.Sort(titles)
		for _, title := range titles {
			fmt.Fprintf(cmd.OutOrStderr(), "\n%s:\n%s", title, groups[title].FlagUsages())
		}
		return err
	}
}

// wrap breaks the description of a flag into lines. It does not use a cobra template, because package text/template
// would make the injector 4 MB larger.
func wrap(f *pflag.Flag) {
	var text strings.Builder
	line := 0
	for word := range strings.FieldsSeq(f.Usage) {
		switch {
		case line > 0 && line+1+len(word) > width:
			text.WriteString("\n")
			line = 0
		case line > 0:
			text.WriteString(" ")
			line++
		}
		text.WriteString(word)
		line += len(word)
	}
	f.Usage = text.String()
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version and the commit of the program", Args: NoArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cmd.Root().Name(), cmd.Root().Version)
			return err
		},
	}
}

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "Write the manual pages into a directory", Args: OneArgument("a directory"), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			header := &doc.GenManHeader{Source: cmd.Root().Name() + " " + cmd.Root().Version, Manual: "User Commands"}
			return doc.GenManTree(cmd.Root(), header, args[0])
		},
	}
}

// NoArguments returns a function that returns an error if a command has arguments. The error message ends with hint.
func NoArguments(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unexpected argument %q%s", args[0], hint)
		}
		return nil
	}
}

// OneArgument returns a function that returns an error if a command does not have exactly one argument. what describes
// the argument, for example "a directory".
func OneArgument(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("%s is required", what)
		case len(args) > 1:
			return fmt.Errorf("unexpected argument %q; only %s is allowed", args[1], what)
		}
		return nil
	}
}

// Exclusive makes cmd return an error if more than one of the flags is set. The PreRunE function of cmd must be set
// before the call.
func Exclusive(cmd *cobra.Command, names ...string) {
	next := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		var set []string
		for _, name := range names {
			if cmd.Flags().Changed(name) {
				set = append(set, "--"+name)
			}
		}
		switch {
		case len(set) > 1:
			return fmt.Errorf("%s cannot be used together", strings.Join(set, " and "))
		case next != nil:
			return next(cmd, args)
		}
		return nil
	}
	cmd.MarkFlagsMutuallyExclusive(names...) // for shell completion
}

// describeFlagError returns an error for an invalid flag in the form that all programs use. An error about an
// unknown flag, for example about a flag with a single dash, contains the name of a similar flag. An error about
// a value contains the flag, the value and the allowed values.
func describeFlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var noValue *pflag.ValueRequiredError
	word := ""
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		word = "-" + unknown.GetSpecifiedShortnames()
	case errors.As(err, &unknown):
		word = "--" + unknown.GetSpecifiedName()
	case errors.As(err, &noValue):
		return fmt.Errorf("--%s: a value is required", noValue.GetFlag().Name)
	case errors.As(err, &invalid):
		if invalid.GetFlag().Shorthand != "" { // -output-dir is -o with the value utput-dir
			name, _, _ := strings.Cut(invalid.GetFlag().Shorthand+invalid.GetValue(), "=")
			if cmd.Flags().Lookup(name) != nil {
				word = "-" + name
			}
		}
		if word == "" {
			return describeValueError(invalid)
		}
	default:
		return err
	}
	word, _, _ = strings.Cut(word, "=")
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
	return message.UnknownWord("flag", word, known)
}

// describeValueError returns an error for the invalid value of a flag. The errors of package pflag contain the
// names of Go functions.
func describeValueError(invalid *pflag.InvalidValueError) error {
	f := invalid.GetFlag()
	allowed := map[string]string{"bool": "true or false", "int": "an integer"}[f.Value.Type()]
	if allowed == "" {
		return fmt.Errorf("--%s: %w", f.Name, invalid.Unwrap())
	}
	return fmt.Errorf("--%s: %q: must be %s", f.Name, invalid.GetValue(), allowed)
}

// duration is the value of a flag that accepts a duration.
type duration struct {
	value *time.Duration
	min   time.Duration
}

func (d duration) String() string { return d.value.String() }

// Type implements pflag.Value. Help texts show the result in place of the value.
func (d duration) Type() string { return "duration" }

func (d duration) Set(text string) error {
	value, err := time.ParseDuration(text)
	if err != nil || value < d.min {
		return fmt.Errorf("%q: must be a duration such as 30s or 1m, at least %v", text, d.min)
	}
	*d.value = value
	return nil
}

// Duration defines a flag that accepts a duration of at least minimum.
func Duration(flags *pflag.FlagSet, value *time.Duration, name string, initial, minimum time.Duration, usage string) {
	*value = initial
	flags.Var(duration{value, minimum}, name, usage)
}

// maxWordsInType is the maximum number of words that a help text shows as the type of a value.
const maxWordsInType = 4

// choice is the value of a flag that accepts one of several words.
type choice struct {
	value *string
	words []string
}

func (c choice) String() string { return *c.value }

// Type implements pflag.Value. Help texts show the result in place of the value: the allowed words, separated by "|",
// or "word" if there are more than maxWordsInType words.
func (c choice) Type() string {
	if len(c.words) > maxWordsInType {
		return "word"
	}
	return strings.Join(c.words, "|")
}

func (c choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("%q: must be one of %s", word, strings.Join(c.words, ", "))
	}
	*c.value = word
	return nil
}

// Choice defines a flag of cmd that accepts one of words. The first word is the default. If shorthand is empty, the
// flag has no shorthand.
func Choice(cmd *cobra.Command, value *string, name, shorthand, usage string, words ...string) {
	*value = words[0]
	if len(words) > maxWordsInType {
		usage += ": " + strings.Join(words, ", ")
	}
	cmd.Flags().VarP(choice{value, words}, name, shorthand, usage)
	// RegisterFlagCompletionFunc returns an error only if the flag is unknown or already has a function.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
