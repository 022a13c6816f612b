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
		parallel.Value.Set("16") // run more tests in parallel than CPUs, because most tests wait and use little CPU time
	}
	m.Run()
}
