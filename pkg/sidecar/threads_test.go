package sidecar

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestContainerCPUsReadsBothCgroupVersions(t *testing.T) {
	one := func(quota, period string) fstest.MapFS {
		return fstest.MapFS{"cpu/cpu.cfs_quota_us": {Data: []byte(quota + "\n")}, "cpu/cpu.cfs_period_us": {Data: []byte(period + "\n")}}
	}
	two := func(limit string) fstest.MapFS { return fstest.MapFS{"cpu.max": {Data: []byte(limit + "\n")}} }
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		want  float64
	}{
		{"version 2", two("30000 100000"), 0.3},
		{"version 2, more than one", two("250000 100000"), 2.5},
		{"version 2, no limit", two("max 100000"), math.Inf(1)},
		{"version 1", one("5000", "100000"), 0.05},
		{"version 1, no limit", one("-1", "100000"), math.Inf(1)},
		{"nonsense", two("0 0"), math.Inf(1)},
		{"version 1, quota without a period", fstest.MapFS{"cpu/cpu.cfs_quota_us": {Data: []byte("5000\n")}}, math.Inf(1)},
		{"no cgroup", fstest.MapFS{}, math.Inf(1)},
	} {
		harness.Equal(t, containerCPUs(c.files), c.want, c.name, "CPUs")
	}
}

// GOMAXPROCS applies to the whole process, so each case runs in a separate process.
func TestLimitThreadsKeepsGOMAXPROCS(t *testing.T) {
	if limit := os.Getenv("CPU_LIMIT"); limit != "" {
		limitThreads(fstest.MapFS{"cpu.max": {Data: []byte(limit)}})
		fmt.Printf("threads: %d;\n", runtime.GOMAXPROCS(0))
		return
	}
	for _, c := range []struct {
		limit, env string
		want       int
	}{
		{"3000 100000", "", 1},
		{"50000 100000", "", 1},
		{"51000 100000", "", runtime.GOMAXPROCS(0)},
		{"max 100000", "", runtime.GOMAXPROCS(0)},
		{"3000 100000", "GOMAXPROCS=3", 3},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = []string{"CPU_LIMIT=" + c.limit, c.env}
		out, err := cmd.CombinedOutput()
		harness.NoError(t, err, c.limit, out)
		harness.Contains(t, string(out), fmt.Sprintf("threads: %d;", c.want), c.limit, c.env)
	}
}
