package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// ran returns what a command line prints and its exit code, in an environment that
// is empty but for vars.
func ran(t *testing.T, args string, vars ...string) (stdout, stderr string, code int) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "PATH" && name != "HOME" {
			t.Setenv(name, "") // which is unset
		}
	}
	for i := 0; i < len(vars); i += 2 {
		t.Setenv(vars[i], vars[i+1])
	}
	var out, errors strings.Builder
	code = run(strings.Fields(args), &out, &errors)
	return out.String(), errors.String(), code
}

func TestHelpThatWasAskedForGoesToStandardOutput(t *testing.T) {
	for args, first := range map[string]string{
		"help": "queue-proxy ", "-h": "queue-proxy ", "--help": "queue-proxy ", "-help": "queue-proxy ", "help help": "queue-proxy ",
		"help why": "queue-proxy why ", "why -h": "queue-proxy why ", "why --help": "queue-proxy why ", "why -o json -help": "queue-proxy why ",
		"config --help": "queue-proxy config ", "help config": "queue-proxy config ",
		"completion -h": "queue-proxy completion ", "help completion": "queue-proxy completion ",
		"serve --help": "queue-proxy serve ", "version --help": "queue-proxy version ",
	} {
		stdout, stderr, code := ran(t, args)
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, first) || !strings.Contains(stdout, "\nUsage:\n") {
			t.Errorf("%s: got code %d, %q and\n%s\nwant 0 and help that begins with %q", args, code, stderr, stdout, first)
		}
		for line := range strings.Lines(stdout) {
			if len(strings.TrimSuffix(line, "\n")) > 80 || strings.Contains(line, "\t") {
				t.Errorf("%s: got the line %q, want one that fits a terminal", args, line)
			}
		}
	}
}

func TestHelpNamesEveryCommandAndFlag(t *testing.T) {
	stdout, _, _ := ran(t, "help")
	for _, word := range append(commandNames(), "-v", "-version", "-h", "-help", "-probe-period", "-probe-timeout", "-o json") {
		if !strings.Contains(stdout, word) {
			t.Errorf("got help without %s:\n%s", word, stdout)
		}
	}
}

func TestEachCommandHasAPageOfManual(t *testing.T) {
	dir := t.TempDir()
	if stdout, stderr, code := ran(t, "man "+dir); code != 0 || stdout+stderr != "" {
		t.Fatalf("got code %d, %q and %q, want pages alone", code, stdout, stderr)
	}
	for _, name := range commandNames() {
		page, err := os.ReadFile(filepath.Join(dir, strings.TrimSuffix("queue-proxy-"+strings.TrimSuffix(name, "help"), "-")+".1"))
		if err != nil {
			t.Fatal(err)
		}
		wanted := []string{".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"}
		flags := new(commandLine).flagsOf(name)
		if name == "help" {
			flags = new(commandLine).flags(new(bool))
		}
		flags.VisitAll(func(f *flag.Flag) { wanted = append(wanted, strings.ReplaceAll("-"+f.Name, "-", `\-`)) })
		for _, want := range wanted {
			if !strings.Contains(string(page), want) {
				t.Errorf("%s: got no %q in\n%s", name, want, page)
			}
		}
	}
	if _, stderr, code := ran(t, "man"); code != 2 || !strings.Contains(stderr, "man: which folder?") {
		t.Errorf("got code %d and %q without a folder, want 2", code, stderr)
	}
}

func TestABadCommandLineIsOneErrorAndAHint(t *testing.T) {
	const (
		see      = "\nRun 'queue-proxy help' for usage.\n"
		seeWhy   = "\nRun 'queue-proxy help why' for usage.\n"
		seeServe = "\nRun 'queue-proxy help serve' for usage.\n"

		seeCompletion = "\nRun 'queue-proxy help completion' for usage.\n"
	)
	for args, want := range map[string]string{
		"frobnicate":            `unknown command "frobnicate"` + see,
		"confg":                 `unknown command "confg": did you mean "config"?` + see,
		"wyh":                   `unknown command "wyh": did you mean "why"?` + see,
		"VERSION":               `unknown command "VERSION": did you mean "version"?` + see,
		"help conifg":           `unknown command "conifg": did you mean "config"?` + see,
		"help why config":       `help: unexpected argument "config"` + seeWhy,
		"-frobnicate":           `unknown flag "-frobnicate"` + see,
		"--vresion":             `unknown flag "-vresion": did you mean "-version"?` + see,
		"-probe-perod=1 config": `unknown flag "-probe-perod": did you mean "-probe-period"?` + see,
		"-probe-period":         `flag needs an argument: -probe-period` + see,
		"-probe-period soon":    `invalid value "soon" for flag -probe-period: want seconds or a duration` + see,
		"why now":               `why: unexpected argument "now"` + seeWhy,
		"why -o xml":            `why: invalid value "xml" for flag -o: want text or json` + seeWhy,
		"why -ojson":            `why: unknown flag "-ojson"` + seeWhy,
		"why -jsno":             `why: unknown flag "-jsno"` + seeWhy,
		"why -o json x":         `why: unexpected argument "x"` + seeWhy,
		"completion":            `completion: which shell? bash, zsh, fish` + seeCompletion,
		"completion csh":        `completion: which shell? bash, zsh, fish` + seeCompletion,
		"completion bash zsh":   `completion: unexpected argument "zsh"` + seeCompletion,
		"serve 8080":            `serve: unexpected argument "8080"` + seeServe,
		"-probe-period 0 x":     `unknown command "x"` + see,
	} {
		stdout, stderr, code := ran(t, args)
		if code != 2 || stdout != "" || stderr != "queue-proxy: "+want {
			t.Errorf("%s: got code %d, %q and %q\nwant 2 and %q", args, code, stdout, stderr, "queue-proxy: "+want)
		}
	}
}

func TestTheVersionIsAskedForInFourWays(t *testing.T) {
	for _, args := range []string{"version", "-version", "--version", "-v"} {
		stdout, stderr, code := ran(t, args, "CONTAINER_CONCURRENCY", "bad")
		if code != 0 || stderr != "" || stdout != "queue-proxy dev (commit unknown)\n" {
			t.Errorf("%s: got code %d, %q and %q, want the version", args, code, stdout, stderr)
		}
	}
}

func TestConfigPrintsATableOrJSON(t *testing.T) {
	for _, args := range []string{"config", "config -o text"} {
		stdout, _, code := ran(t, args, "USER_PORT", "3000", "CONTAINER_CONCURENCY", "4")
		if code != 0 || !strings.HasPrefix(stdout, "ON_KNATIVE") || !strings.Contains(stdout, "\nwarning: CONTAINER_CONCURENCY: ") {
			t.Errorf("%s: got code %d and %q, want a table and a warning", args, code, stdout)
		}
	}
	for _, args := range []string{"config -o json", "config -o=json", "config --o json"} {
		stdout, _, code := ran(t, args, "USER_PORT", "3000", "CONTAINER_CONCURENCY", "4")
		var got struct {
			Settings []struct{ Name, Value, Source string }
			Warnings []string
		}
		if err := json.Unmarshal([]byte(stdout), &got); code != 0 || err != nil || len(got.Settings) == 0 || len(got.Warnings) != 1 {
			t.Errorf("%s: got code %d, %v and %q, want settings and a warning", args, code, err, stdout)
		}
	}
	if stdout, stderr, code := ran(t, "config -o json", "USER_PORT", "0"); code != 1 || stdout != "" || !strings.HasPrefix(stderr, "USER_PORT: ") {
		t.Errorf("got code %d, %q and %q, want 1 and what is wrong", code, stdout, stderr)
	}
}

// A real shell is asked: what it would offer behind a beginning. Settings do not matter.
func TestTheShellCompletesCommandsAndFlags(t *testing.T) {
	script, stderr, code := ran(t, "completion bash", "CONTAINER_CONCURRENCY", "bad")
	if code != 0 || stderr != "" {
		t.Fatalf("got code %d and %q, want a script", code, stderr)
	}
	for words, want := range map[string]string{
		"queue-proxy wh": "why", "queue-proxy why -o": "-o", "queue-proxy why -o j": "json", "queue-proxy config --o t": "text", "queue-proxy -probe-p": "-probe-period",
		"queue-proxy --vers": "--version", "queue-proxy help comp": "completion", "queue-proxy completion f": "fish", "queue-proxy serve -o": "",
	} {
		cursor := strconv.Itoa(strings.Count(words, " "))
		ask := script + "\nCOMP_WORDS=(" + words + ")\nCOMP_CWORD=" + cursor + "\n_queue_proxy\necho \"${COMPREPLY[@]}\"\n"
		out, err := exec.Command("/bin/bash", "-c", ask).CombinedOutput()
		if err != nil || string(out) != want+"\n" {
			t.Errorf("%s: got %q (%v), want %q", words, out, err, want)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		if out, _, code := ran(t, "completion "+shell); code != 0 || !strings.Contains(out, "probe-period") {
			t.Errorf("%s: got code %d and %q, want the flags", shell, code, out)
		}
	}
}
