package manual

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func sample() Program {
	texts := map[string]string{
		"": `some program is one that does 'something', and little: for tests.
It goes on.

Usage:

  some program edit FILE   edit it
  some program help        print this

Exit codes: 0 done; 1 not.
`,
		"edit": `some program edit changes a file in its place.

Usage:

  some program edit FILE

  -o FORMAT  what to print,
             and how
  -quiet     print nothing

.hidden files stay as they are.

Examples:

  All of a folder, C:\temp:
    some program edit -o x .
    .

Flags:

  -b NUMBER
        how many (default 3)

Options: each has a variable too.

  -z  the last
`,
	}
	return Program{Name: "some program", File: "some-program", Version: "v1.2-3", Commands: []string{"edit"}, Help: func(command string) string { return texts[command] }}
}

func TestEachPartOfAHelpTextStandsInItsSection(t *testing.T) {
	const want = `.TH SOME\-PROGRAM\-EDIT 1 "" "some\-program v1.2\-3" "User Commands"
.SH NAME
some\-program\-edit \- changes a file in its place
.SH SYNOPSIS
.nf
some program edit FILE
.fi
.SH DESCRIPTION
some program edit changes a file in its place.
.PP
\&.hidden files stay as they are.
.SH OPTIONS
.TP
.B \-o FORMAT
what to print,
and how
.TP
.B \-quiet
print nothing
.TP
.B \-b NUMBER
how many (default 3)
.PP
each has a variable too.
.TP
.B \-z
the last
.SH EXAMPLES
.nf
All of a folder, C:\etemp:
  some program edit \-o x .
  .
.fi
.SH SEE ALSO
.BR some\-program (1)
`
	harness.Equal(t, sample().page("edit"), want)
}

func TestThePageOfAProgramNamesThoseOfItsCommands(t *testing.T) {
	const want = `.TH SOME\-PROGRAM 1 "" "some\-program v1.2\-3" "User Commands"
.SH NAME
some\-program \- one that does \(aqsomething\(aq
.SH SYNOPSIS
.nf
some program edit FILE   edit it
some program help        print this
.fi
.SH DESCRIPTION
some program is one that does \(aqsomething\(aq, and little: for tests.
It goes on.
.SH EXIT STATUS
0 done; 1 not.
.SH SEE ALSO
.BR some\-program\-edit (1)
`
	harness.Equal(t, sample().page(""), want)
}

func TestPagesAreFilesThatManFinds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	harness.NoError(t, sample().Write(dir))
	all, err := os.ReadDir(dir)
	var names []string
	for _, f := range all {
		names = append(names, f.Name())
	}
	if want := []string{"some-program-edit.1", "some-program.1"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("got %q, %v, want %q", names, err, want)
	}
	if err := sample().Write(filepath.Join(dir, "some-program.1")); err == nil {
		t.Error("got no error for a folder that is a file, want one")
	}
}

func TestFlagsAreListedWithTheirValuesAndDefaults(t *testing.T) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.String("file", "", "`path` of it")
	flags.Duration("wait", 2*time.Second, "how long, which is a text that is so long that it does not fit into one line of a terminal")
	flags.String("o", "text", "what to print")
	flags.Bool("all", false, "all of them")
	flags.Func("level", "which (default low)", func(string) error { return nil })
	const want = `  -all
        all of them
  -file PATH
        path of it
  -level VALUE
        which (default low)
  -o text|json
        what to print (default text)
  -wait DURATION
        how long, which is a text that is so long that it does not fit into one
        line of a terminal (default 2s)
`
	got := Flags(flags, map[string][]string{"o": {"text", "json"}})
	harness.Equal(t, got, want)
	for line := range strings.Lines(got) {
		if len(strings.TrimSuffix(line, "\n")) > width {
			t.Errorf("got the line %q, want at most %d characters", line, width)
		}
	}
}
