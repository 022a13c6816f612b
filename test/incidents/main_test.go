// Package incidents tests that each incident in the table of docs/metrics.md can be found. Each test
// provokes an incident with real clients, applications and collectors. It reads five signals: the alert,
// the metric, the log, the status page and the output of `queue-proxy why`.
//
//	go test ./test/incidents                     all signals except the alerts
//	go test -tags e2e ./test/incidents           also the alerts, with the prometheus command
//	go test ./test/incidents -run Table -update  writes the table
package incidents

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	update     = flag.Bool("update", false, "write the table in docs/metrics.md")
	queueProxy string // path of the sidecar under test
)

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	if parallel.Value.String() == parallel.DefValue {
		parallel.Value.Set("16") // most tests wait and use little CPU time
	}
	os.Exit(run(m))
}

// run builds the sidecar and runs the tests.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "incidents")
	if err != nil {
		fmt.Fprintln(os.Stderr, "incidents:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	queueProxy = filepath.Join(dir, "queue-proxy")
	build := exec.Command("go", "build", "-o", queueProxy, "github.com/queue-proxy/queue-proxy/cmd/queue-proxy")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "incidents: build cmd/queue-proxy: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
