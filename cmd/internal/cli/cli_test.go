package cli

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/spf13/cobra"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// execute runs a program whose run command returns err.
func execute(ctx context.Context, err error, args ...string) (stderr string, got error) {
	var out, errs bytes.Buffer
	word := ""
	root := &cobra.Command{Use: "program"}
	run := &cobra.Command{
		Use: "run", Args: NoArguments("; use --word"),
		PreRunE: func(*cobra.Command, []string) error {
			if word == "bad" {
				return errors.New("bad word")
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return err },
	}
	Choice(run, &word, "word", "w", "a word", "good", "bad")
	run.Flags().Bool("other-flag", false, "")
	root.AddCommand(run)
	root.SetOut(&out)
	root.SetErr(&errs)
	got = Execute(ctx, root, "v1", args)
	return errs.String(), got
}

func TestCommandErrorHasNoUsageHint(t *testing.T) {
	want := errors.New("an error\x1b[2J")
	stderr, err := execute(t.Context(), want, "run")
	harness.Equal(t, stderr, "program: an error\ufffd[2J\n")
	if !errors.Is(err, want) || errors.Is(err, ErrUsage) {
		t.Errorf("got %v, want %v and no usage error", err, want)
	}
}

func TestInvalidCommandLineHasUsageHint(t *testing.T) {
	const hint = "\nRun 'program run --help' for usage.\n"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "x"}, `program: unexpected argument "x"; use --word` + hint},
		{[]string{"run", "--word=bad"}, "program: bad word" + hint},
		{[]string{"run", "--word=best"}, `program: --word: "best": must be one of good, bad` + hint},
		{[]string{"run", "--other-flag=maybe"}, `program: --other-flag: "maybe": must be true or false` + hint},
		{[]string{"run", "--word"}, "program: --word: a value is required" + hint},
		{[]string{"run", "--other-flga"}, `program: unknown flag "--other-flga": did you mean "--other-flag"?` + hint},
		{[]string{"run", "-other-flag"}, `program: unknown flag "-other-flag": did you mean "--other-flag"?` + hint},
		{[]string{"run", "-word=bad"}, `program: unknown flag "-word": did you mean "--word"?` + hint},
		{[]string{"run", "-x"}, `program: unknown flag "-x"` + hint},
		{[]string{"run", "--nothing-similar"}, `program: unknown flag "--nothing-similar"` + hint},
		{[]string{"help", "rnu"}, "program: unknown command \"rnu\": did you mean \"run\"?\nRun 'program help --help' for usage.\n"},
		{[]string{"rnu"}, "program: unknown command \"rnu\": did you mean \"run\"?\nRun 'program --help' for usage.\n"},
		{[]string{"unlike"}, "program: unknown command \"unlike\"\nRun 'program --help' for usage.\n"},
	} {
		stderr, err := execute(t.Context(), nil, c.args...)
		harness.Equal(t, stderr, c.want, c.args)
		if !errors.Is(err, ErrUsage) {
			t.Errorf("%q: got %v, want a usage error", c.args, err)
		}
	}
}

func TestHelpShowsGroupsOfFlags(t *testing.T) {
	var out bytes.Buffer
	run := &cobra.Command{Use: "run", RunE: func(*cobra.Command, []string) error { return nil }}
	for _, name := range []string{"plain", "small", "tall"} {
		run.Flags().Bool(name, false, "text")
	}
	Group(run.Flags(), "Sizes", "tall", "small", "unknown")
	root := &cobra.Command{Use: "program"}
	root.AddCommand(run)
	root.SetOut(&out)
	harness.NoError(t, Execute(t.Context(), root, "v1", []string{"help", "run"}))
	harness.Contains(t, out.String(), "Flags:\n  -h, --help    help for run\n      --plain   text\n\nSizes:\n      --small   text\n      --tall    text\n")
}

func TestErrorAfterCancellationIsNotPrinted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stderr, err := execute(ctx, context.Canceled, "run")
	if stderr != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %q and %v, want no message and the error", stderr, err)
	}
}
