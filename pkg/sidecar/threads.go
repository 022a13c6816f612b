package sidecar

import (
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// oneThread is the most CPU that is best used by one thread (docs/configuration.md).
// Go itself never runs less than two, which wake each other and so spend the quota of
// a period sooner.
const oneThread = 0.5

// limitThreads runs one thread where the container has little CPU. A GOMAXPROCS in the
// environment wins.
func limitThreads(cgroup fs.FS) {
	chosen := os.Getenv("GOMAXPROCS") != "" //nolint:forbidigo // it is the Go runtime's, which does not tell
	if !chosen && containerCPUs(cgroup) <= oneThread {
		runtime.GOMAXPROCS(1)
	}
}

// containerCPUs returns how many CPUs the container may use; infinite: any number. Its
// argument is /sys/fs/cgroup, of either version of cgroups.
func containerCPUs(cgroup fs.FS) float64 {
	share, period, both := strings.Cut(said(cgroup, "cpu.max"), " ")
	if !both {
		share, period = said(cgroup, "cpu/cpu.cfs_quota_us"), said(cgroup, "cpu/cpu.cfs_period_us")
	}
	n, err := strconv.ParseUint(share, 10, 63)
	of, err2 := strconv.ParseUint(period, 10, 63)
	if err != nil || err2 != nil || n == 0 || of == 0 { // "max", -1
		return math.Inf(1)
	}
	return float64(n) / float64(of)
}
