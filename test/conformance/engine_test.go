package conformance

import (
	_ "embed"
	"os"
	"strings"
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

// skipBeyondNetHTTP skips a test that the engine on net/http cannot meet.
func skipBeyondNetHTTP(t *testing.T) {
	t.Helper()
	if engine != "net/http" {
		return
	}
	for line := range strings.Lines(beyondNetHTTP) {
		name, reason, found := strings.Cut(strings.TrimSpace(line), " ")
		if found && name != "#" && (t.Name() == name || strings.HasPrefix(t.Name(), name+"/")) {
			t.Skip("ENGINE=net/http: " + strings.TrimSpace(reason))
		}
	}
}
