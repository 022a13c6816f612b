package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A result is the outcome of a check.
type result string

const (
	success result = "pass"
	failure result = "fail"
	notRun  result = "not run"
)

// A check is a line of testdata/checks.txt.
type check struct {
	test     string
	promises []string // numbers of sections of the promises
	url      bool     // the test can run with -url
}

// A section identifies a section of the promises that has checks.
type section struct{ number, title string }

// readChecks reads testdata/checks.txt.
func readChecks() (checks []check, sections []section, err error) {
	text, err := testdata.ReadFile("testdata/checks.txt")
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "==" && len(words) > 2:
			sections = append(sections, section{words[1], strings.Join(words[2:], " ")})
		case len(sections) == 0:
			return nil, nil, fmt.Errorf("checks.txt: %q before the first section", words[0])
		default:
			c := check{test: words[0], promises: append([]string{sections[len(sections)-1].number}, words[1:]...)}
			if last := len(c.promises) - 1; c.promises[last] == "url" {
				c.url, c.promises = true, c.promises[:last]
			}
			checks = append(checks, c)
		}
	}
	return checks, sections, nil
}

// resultOf returns the result of a test. The default is notRun.
func resultOf(results map[string]result, test string) result {
	return cmp.Or(results[test], notRun)
}

// printChecks prints a line for each check and the number of results, and returns the numbers.
func printChecks(w io.Writer, checks []check, results map[string]result) map[result]int {
	counts := map[result]int{}
	fmt.Fprintf(w, "%-8s %-14s %s\n", "RESULT", "PROMISES", "CHECK")
	for _, c := range checks {
		r := resultOf(results, c.test)
		counts[r]++
		fmt.Fprintf(w, "%-8s %-14s %s\n", r, strings.Join(c.promises, ", "), c.test)
	}
	fmt.Fprintf(w, "\n%d checks: %d passed, %d failed, %d not run\n", len(checks), counts[success], counts[failure], counts[notRun])
	return counts
}

// tablesName is the name of the markers around the tables in a document.
const tablesName = "checks"

// columns contains the results of several binaries, in the order of names.
type columns struct {
	names   []string
	results map[string]map[string]result // results by name of the binary and by test
}

// set sets the results of a binary.
func (c *columns) set(name string, results map[string]result) {
	if !slices.Contains(c.names, name) {
		c.names = append(c.names, name)
	}
	c.results[name] = results
}

// writeDocument writes the results for a binary to the tables in a document. Other binaries keep
// their results. If keep is true, checks without a result also keep their previous result. If the
// document does not exist, it is created.
func writeDocument(path, name string, checks []check, sections []section, results map[string]result, keep bool) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(path, []byte("<!-- "+tablesName+" -->\n<!-- /"+tablesName+" -->\n"), 0o644); err != nil {
			return err
		}
	}
	_, tables, _, err := harness.ReadSection(path, tablesName)
	if err != nil {
		return err
	}
	all := parseTables(tables)
	if keep {
		merged := map[string]result{}
		maps.Copy(merged, all.results[name])
		maps.Copy(merged, results)
		results = merged
	}
	all.set(name, results)
	return harness.WriteSection(path, tablesName, "\n"+all.summary(sections, checks)+"\n"+all.table(checks)+"\n")
}

// writeSummary writes the number of passed checks of each section to a document. It reads the results from
// a document that writeDocument has written.
func writeSummary(path, results string, checks []check, sections []section) error {
	_, tables, _, err := harness.ReadSection(results, tablesName)
	if err != nil {
		return err
	}
	return harness.WriteSection(path, tablesName, "\n"+parseTables(tables).summary(sections, checks)+"\n")
}

// parseTables reads the results in the table of checks.
func parseTables(text string) *columns {
	all := &columns{results: map[string]map[string]result{}}
	_, text, _ = strings.Cut(text, "| check |")
	header := true
	for line := range strings.Lines("| check |" + text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case header && len(cells) > 2:
			for _, name := range cells[2:] {
				all.set(name, map[string]result{})
			}
		case len(cells) == 2+len(all.names):
			for i, name := range all.names {
				all.results[name][strings.Trim(cells[0], "`")] = result(cells[2+i])
			}
		}
		header = false
	}
	return all
}

// summary returns a table with the number of passed checks for each section of the promises.
func (c *columns) summary(sections []section, checks []check) string {
	var b strings.Builder
	c.header(&b, "section of the promises", "checks")
	for _, s := range sections {
		total, passed := 0, map[string]int{}
		for _, one := range checks {
			if !slices.Contains(one.promises, s.number) {
				continue
			}
			total++
			for _, name := range c.names {
				if c.results[name][one.test] == success {
					passed[name]++
				}
			}
		}
		fmt.Fprintf(&b, "| %s %s | %d |", s.number, s.title, total)
		for _, name := range c.names {
			fmt.Fprintf(&b, " %d |", passed[name])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// table returns a table with the results of each check.
func (c *columns) table(checks []check) string {
	var b strings.Builder
	c.header(&b, "check", "promises")
	for _, one := range checks {
		fmt.Fprintf(&b, "| `%s` | %s |", one.test, strings.Join(one.promises, ", "))
		for _, name := range c.names {
			fmt.Fprintf(&b, " %s |", resultOf(c.results[name], one.test))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// header writes the header of a table that has two columns before the columns of the binaries.
func (c *columns) header(b *strings.Builder, first, second string) {
	names := append([]string{first, second}, c.names...)
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
}
