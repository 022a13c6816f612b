package sidecar

import (
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// oneThread is the maximum CPU limit in CPUs for which the sidecar uses one thread. By default, Go uses
// at least two threads. These threads wake each other and therefore use up the CPU quota of a period
// sooner. One thread reduces the CPU time of a request by 11 % if the limit is 0.5 and by 20 % if the
// limit is 0.1.
const oneThread = 0.5

// limitThreads sets GOMAXPROCS to 1 if the CPU limit is at most oneThread. If the environment
// contains GOMAXPROCS, limitThreads does nothing.
func limitThreads(cgroup fs.FS) {
	chosen := os.Getenv("GOMAXPROCS") != "" //nolint:forbidigo // the Go runtime does not report whether GOMAXPROCS is set
	if !chosen && containerCPUs(cgroup) <= oneThread {
		runtime.GOMAXPROCS(1)
	}
}

// containerCPUs returns the CPU limit of the container, or +Inf if there is no limit. cgroup is the
// directory /sys/fs/cgroup of cgroup version 1 or 2.
func containerCPUs(cgroup fs.FS) float64 {
	share, period, both := strings.Cut(cgroupFile(cgroup, "cpu.max"), " ")
	if !both {
		share, period = cgroupFile(cgroup, "cpu/cpu.cfs_quota_us"), cgroupFile(cgroup, "cpu/cpu.cfs_period_us")
	}
	n, err := strconv.ParseUint(share, 10, 63)
	of, err2 := strconv.ParseUint(period, 10, 63)
	if err != nil || err2 != nil || n == 0 || of == 0 { // without a limit, the quota is "max" (version 2) or -1 (version 1)
		return math.Inf(1)
	}
	return float64(n) / float64(of)
}
