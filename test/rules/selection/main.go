// Command selection reports an error if a pattern, or one of its alternatives, matches nothing. The go command reports
// success in this case, so a test that is renamed would no longer run.
//
//	selection [-tags LIST] -run PATTERN PACKAGE...   match test functions, as go test -run does
//	selection -lines PATTERN                         match lines of the standard input, as grep -E does
//
// The Makefile runs it for patterns that a user gives. An empty pattern selects everything. The tests of this package
// check the patterns in the Makefile, the scripts, the workflows and the documents.
//
// Each alternative is matched separately. For example, the alternatives of "A(B|C)|D" are "AB", "AC" and "D". The names of
// subtests are not known before a test runs, so only the part of a pattern before the first slash is used.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "selection:", err)
		os.Exit(1)
	}
}

// run returns an error that names the alternatives without a match.
func run(args []string, input io.Reader) error {
	flags := flag.NewFlagSet("selection", flag.ContinueOnError)
	tags := flags.String("tags", "", "build tags, separated by commas")
	tests := flags.String("run", "", "pattern for test functions")
	lines := flags.String("lines", "", "pattern for lines of the standard input")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *lines != "" {
		text, err := io.ReadAll(input)
		if err != nil {
			return err
		}
		return missing(*lines, strings.Split(strings.TrimSpace(string(text)), "\n"), "lines")
	}
	if *tests == "" {
		return nil
	}
	functions, err := testFunctions(".", flags.Args(), strings.Split(*tags, ","))
	if err != nil {
		return err
	}
	return missing(topLevel(*tests), ofKind(functions, "run"), "test functions in "+strings.Join(flags.Args(), " "))
}

// missing returns an error if one of the alternatives in the pattern does not match any name. The error message uses
// kind to describe the names.
func missing(pattern string, names []string, kind string) error {
	without, err := unmatched(pattern, names)
	if err != nil {
		return err
	}
	if len(without) > 0 {
		return fmt.Errorf("%s does not match any of the %d %s", quoteAll(without), len(names), kind)
	}
	return nil
}

func quoteAll(all []string) string {
	var quoted []string
	for _, s := range all {
		quoted = append(quoted, fmt.Sprintf("%q", s))
	}
	return strings.Join(quoted, ", ")
}
