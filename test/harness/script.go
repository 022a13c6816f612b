package harness

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// RunScripts runs the scripts of package testscript in a directory. The command "exits CODE
// PROGRAM ARGUMENT..." runs a program and checks its exit code. TestMain must call
// [testscript.Main] with the programs.
func RunScripts(t *testing.T, dir string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", "atexit_sleep_ms=0") // without this setting, each program with the race detector takes another second to exit
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	var exit *exec.ExitError
	got := 0
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%q: %v", args[1:], err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%q: got exit code %d, want %s", args[1:], got, args[0])
	}
}
