package conformance

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// This file tests the program queue-proxy-conformance.

func TestProgramRunsURLChecksOnly(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.sample()
	var out bytes.Buffer
	if code := runProgram([]string{"-url", p.url("")}, &out, io.Discard); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	for _, want := range []string{
		"\npass     1, 2.4, 3.6    TestProbesOfRunningSidecar\n",
		"\npass     3.7a, 3.6      TestInvalidRequestsToRunningSidecar\n",
		"\nnot run  3.1, 3.6, 4    TestQueueFullReturns503\n",
		" checks: 2 passed, 0 failed, ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got no line %q in\n%s", want, &out)
		}
	}
}

// The URL belongs to a server that is not a queue-proxy.
func TestProgramReportsFailedChecks(t *testing.T) {
	p := newProxy(t)
	p.sample()
	var out, log bytes.Buffer
	if code := runProgram([]string{"-url", "http://" + local(p.port.user), "-run", "Probes"}, &out, &log); code != 1 {
		t.Errorf("got exit code %d with %s, want 1", code, &log)
	}
	if !strings.Contains(out.String(), "\nfail     1, 2.4, 3.6    TestProbesOfRunningSidecar\n") {
		t.Errorf("got no failed check in\n%s", &out)
	}
}

func TestProgramRejectsInvalidOptions(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "one of -bin and -url is required; see -help",
		"-bin a -url http://a:1":               "one of -bin and -url is required; see -help",
		"-bin does-not-exist":                  "no such file or directory",
		"-url a:1":                             `-url "a:1": want http://HOST:PORT or https://HOST:PORT`,
		"-url http://a:1 -run (":               "missing closing )",
		"-bin a -summary b":                    "-summary requires -write",
		"-url http://a:1 -fixed-ports -run Qu": "-fixed-ports requires -bin",
		"-url http://a:1 http://b":             `unexpected argument "http://b"`,
		"-url http://a:1 -run Qu":              `no check that can run matches -run "Qu"`,
	} {
		var out bytes.Buffer
		code := runProgram(strings.Fields(args), io.Discard, &out)
		if code != 2 || !strings.Contains(out.String(), want) {
			t.Errorf("%q: got exit code %d with %q, want 2 with %q", args, code, &out, want)
		}
	}
}

func TestResultsAreParsed(t *testing.T) {
	const out = "\x16=== RUN   TestA\n    --- FAIL: TestA/sub (0.00s)\n\x16--- PASS: TestA/sub (0.00s)\n\x16--- PASS: TestA (0.01s)\n" +
		"    a_test.go:1: --- PASS: TestB (0s)\n--- FAIL: TestB (1.00s)\npanic: TestC"
	harness.Equal(t, parseResults(out), map[string]result{"TestA": success, "TestB": failure})
}

func TestCheckWithoutResultFailed(t *testing.T) {
	timeout := errors.New("exit status 2")
	got, err := processResults([]string{"TestA", "TestB"}, "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.01s)\n\x16=== RUN   TestB\npanic: test timed out", timeout)
	harness.NoError(t, err)
	harness.Equal(t, got, map[string]result{"TestA": success, "TestB": failure})
	if got, err := processResults([]string{"TestA"}, "conformance: curl not found", timeout); !errors.Is(err, timeout) {
		t.Errorf("got %v, %v, want an error because no check started", got, err)
	}
	_, err = processResults([]string{"TestA"}, "testing: warning: no tests to run\nPASS\n", nil)
	if err == nil || err.Error() != "no check matches" {
		t.Errorf("got %v, want an error because no check matches", err)
	}
}

func TestWriteDocumentKeepsOtherResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.md")
	checks := []check{{test: "TestA", promises: []string{"3.1"}}, {test: "TestB", promises: []string{"3.1", "3.6"}}}
	sections := []section{{"3.1", "Concurrency"}, {"3.6", "Origin of a response"}}
	for _, c := range []struct {
		name    string
		results map[string]result
		keep    bool
	}{
		{"one", map[string]result{"TestA": failure, "TestB": failure}, false},
		{"two", map[string]result{"TestB": success}, false},
		{"two", map[string]result{"TestA": success}, false},
		{"one", map[string]result{"TestA": success}, true},
	} {
		if err := writeDocument(path, c.name, checks, sections, c.results, c.keep); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| section of the promises | checks | one | two |\n|---|---|---|---|\n",
		"| 3.1 Concurrency | 2 | 1 | 1 |\n",
		"| 3.6 Origin of a response | 1 | 0 | 0 |\n",
		"| check | promises | one | two |\n|---|---|---|---|\n| `TestA` | 3.1 | pass | pass |\n| `TestB` | 3.1, 3.6 | fail | not run |\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("got no %q in\n%s", want, got)
		}
	}
	summary := filepath.Join(t.TempDir(), "summary.md")
	if err := os.WriteFile(summary, []byte("<!-- "+tablesName+" -->\n<!-- /"+tablesName+" -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeSummary(summary, path, checks, sections); err != nil {
		t.Fatal(err)
	}
	got, err = os.ReadFile(summary)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got), "| 3.1 Concurrency | 2 | 1 | 1 |\n") || strings.Contains(string(got), "TestA") {
		t.Errorf("got summary\n%s\nwant only the number of passed checks of each section", got)
	}
}
