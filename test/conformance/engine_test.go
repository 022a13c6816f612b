package conformance

import (
	_ "embed"
	"flag"
	"iter"
	"os"
	"strings"
	"sync"
	"testing"
)

// The suite runs with the engine that the environment variable ENGINE names. That on
// net/http is a reference and a fallback: it reads requests as the standard library
// does. What it cannot meet stands in a file, each with its reason.
//
//go:embed testdata/nethttp.txt
var beyondNetHTTP string

// engine is ENGINE; "" is the default.
var engine = os.Getenv("ENGINE")

// skipped are the names in that file of which a test has come by.
var skipped sync.Map

// skipBeyondNetHTTP skips a test that the engine on net/http cannot meet.
func skipBeyondNetHTTP(t *testing.T) {
	t.Helper()
	if engine != "net/http" {
		return
	}
	for name, reason := range exceptions() {
		if t.Name() == name || strings.HasPrefix(t.Name(), name+"/") {
			skipped.Store(name, true)
			t.Skip("ENGINE=net/http: " + reason)
		}
	}
}

// exceptions yields the names in the file, and the reasons.
func exceptions() iter.Seq2[string, string] {
	return func(yield func(name, reason string) bool) {
		for line := range strings.Lines(beyondNetHTTP) {
			name, reason, found := strings.Cut(strings.TrimSpace(line), " ")
			if found && name != "#" && !yield(name, reason) {
				return
			}
		}
	}
}

// staleExceptions returns the names in the file that are no test's: a test that was
// renamed would be held to the reference without anybody knowing why. It is empty
// unless all tests have been run with that engine.
func staleExceptions() (stale []string) {
	if engine != "net/http" || flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" {
		return nil
	}
	for name := range exceptions() {
		if _, ok := skipped.Load(name); !ok {
			stale = append(stale, name)
		}
	}
	return stale
}
