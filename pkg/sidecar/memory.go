package sidecar

import (
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// garbage is the value of GOGC, which is the heap growth between two collections in percent of the
// live heap including stacks. With the Go default of 100, a busy HTTP/2 connection needs a seventh more
// memory. The engines allocate so little memory that the additional collections have no measurable
// cost. The measured CPU time of a request is 0.96 to 1.00 times the CPU time with the default.
const garbage = 75

// limitGarbage sets GOGC to garbage. If the environment contains GOGC, limitGarbage does nothing.
func limitGarbage() {
	if os.Getenv("GOGC") == "" { //nolint:forbidigo // the Go runtime does not report whether GOGC is set
		debug.SetGCPercent(garbage)
	}
}

// minOutside is the minimum memory in bytes outside the Go runtime. Up to 14 MiB of this memory contain
// pages of the executable. If there is not enough memory for these pages, the kernel evicts and reads
// them repeatedly, and the process makes no progress.
const minOutside = 22 << 20

// runtimeMemory returns the memory limit of the Go runtime in bytes. container is the memory limit of the
// container in bytes. The difference is for memory outside the runtime, such as the executable, page
// tables and socket buffers. It is 20 % of container, but at least minOutside and at most half of
// container.
func runtimeMemory(container int64) int64 {
	return container - max(container/5, min(minOutside, container/2))
}

// limitMemory sets the memory limit of the Go runtime to the result of runtimeMemory for the container.
// Without this limit, the heap could grow until the kernel kills the process. If GOMEMLIMIT is set,
// limitMemory does nothing.
func limitMemory(cgroup fs.FS) {
	if limit := containerMemory(cgroup); limit > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(runtimeMemory(limit))
	}
}

// memoryLimit returns the memory limit of the container in bytes, or 0 if there is no limit. If
// GOMEMLIMIT is lower than the result of runtimeMemory for the container, memoryLimit returns the
// container limit for which the result would be GOMEMLIMIT.
func memoryLimit(cgroup fs.FS) int64 {
	limit, runtime := containerMemory(cgroup), debug.SetMemoryLimit(-1)
	switch {
	case runtime >= math.MaxInt64/5, limit > 0 && runtimeMemory(limit) <= runtime:
		return limit
	default:
		return min(max(runtime/4*5, runtime+minOutside), runtime*2)
	}
}

const (
	// Client connections may use the memory limit divided by connectionFraction.
	connectionFraction = 4
	// minMemoryConnections is the lower bound for the number of connections that is derived from
	// the memory limit.
	minMemoryConnections = 64
)

// maxConnections returns the maximum number of client connections, or 0 if there is no limit.
// setting is MAX_CONNECTIONS. If setting is 0, the number is derived from memoryLimit, which is in
// bytes. A memoryLimit of 0 means no limit.
func maxConnections(setting int, memoryLimit int64) int {
	if setting > 0 || memoryLimit == 0 {
		return setting
	}
	n := memoryLimit / connectionFraction / netconn.ConnectionBytes
	return int(min(max(n, minMemoryConnections), math.MaxInt32))
}

// newBudget returns the memory budget for requests, which is a fraction of the Go runtime's memory
// limit.
func newBudget(bounds *bound.Recorder) *netconn.Budget {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		limit = 0
	}
	return netconn.NewBudget(limit/netconn.MemoryFraction, bounds)
}

// containerMemory returns the memory limit of the container in bytes, or 0 if there is no limit.
// cgroup is the directory /sys/fs/cgroup of cgroup version 1 or 2. Without a limit, memory.max
// (version 2) contains "max", and memory.limit_in_bytes (version 1) contains a number larger than
// the memory of any machine.
func containerMemory(cgroup fs.FS) int64 {
	const beyond = 1 << 50
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		if n, err := strconv.ParseUint(cgroupFile(cgroup, name), 10, 64); err == nil && n > 0 && n < beyond {
			return int64(n)
		}
	}
	return 0
}

// cgroupFile returns the trimmed content of a cgroup file, or "" if the file does not exist.
func cgroupFile(cgroup fs.FS, name string) string {
	text, _ := fs.ReadFile(cgroup, name)
	return strings.TrimSpace(string(text))
}
