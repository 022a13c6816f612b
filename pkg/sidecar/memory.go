package sidecar

import (
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/memory"
)

// garbage is how large the heap grows between two collections, in percent of what
// survives the first, stacks included. Go's own 100 takes a seventh more for a busy
// connection of HTTP/2. The engines make so little garbage that collecting it more
// often costs nothing that could be measured (docs/configuration.md).
const garbage = 75

// limitGarbage collects garbage sooner than Go does by itself. A GOGC in the environment
// wins.
func limitGarbage() {
	if os.Getenv("GOGC") == "" { //nolint:forbidigo // it is the Go runtime's, which does not tell
		debug.SetGCPercent(garbage)
	}
}

// limitMemory tells the garbage collector how much memory the container has, which
// it would otherwise let garbage fill until the kernel kills the process. A fifth
// is left for what is not the runtime's: the binary, page tables, socket buffers. A
// GOMEMLIMIT in the environment wins.
func limitMemory(cgroup fs.FS) {
	if limit := containerMemory(cgroup); limit > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(limit / 5 * 4)
	}
}

// memoryLimit returns the memory that the container can use, in bytes, or 0 if there is no limit. The
// container of a process with a lower GOMEMLIMIT is assumed to have a lower limit.
func memoryLimit(cgroup fs.FS) int64 {
	limit := containerMemory(cgroup)
	if runtime := debug.SetMemoryLimit(-1); runtime < math.MaxInt64/5 {
		if runtime = runtime / 4 * 5; limit == 0 || runtime < limit {
			limit = runtime
		}
	}
	return limit
}

const (
	// connectionBytes is the memory of a connection of a client in addition to the memory budget, in bytes.
	// An idle connection over TLS needs up to 27 KB (docs/reliability.md).
	connectionBytes = 32 << 10
	// connectionFraction is the part of the memory limit for the connections of clients, as its
	// denominator.
	connectionFraction = 4
	// minMemoryConnections is the minimum of the number of connections that is derived from the memory
	// limit.
	minMemoryConnections = 64
)

// maxConnections returns the maximum number of connections of clients, or 0 if there is no limit. setting
// is MAX_CONNECTIONS. If it is 0, the number is derived from the memory limit in bytes, or 0 if there is
// none.
func maxConnections(setting int, memoryLimit int64) int {
	if setting > 0 || memoryLimit == 0 {
		return setting
	}
	n := memoryLimit / connectionFraction / connectionBytes
	return int(min(max(n, minMemoryConnections), math.MaxInt32))
}

// newBudget returns the budget for requests: a fraction of the memory limit of the Go runtime.
func newBudget(bounds *bound.Recorder) *memory.Budget {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		limit = 0
	}
	return memory.New(limit/memory.Fraction, bounds)
}

// containerMemory returns the memory limit of the container in bytes; 0: there is
// none. Its argument is /sys/fs/cgroup, of either version of cgroups: memory.max
// says max where there is no limit, its predecessor a number beyond any machine's.
func containerMemory(cgroup fs.FS) int64 {
	const beyond = 1 << 50
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		if n, err := strconv.ParseUint(said(cgroup, name), 10, 64); err == nil && n > 0 && n < beyond {
			return int64(n)
		}
	}
	return 0
}

// said is what a file of a cgroup says: nothing, if it is not there.
func said(cgroup fs.FS, name string) string {
	text, _ := fs.ReadFile(cgroup, name)
	return strings.TrimSpace(string(text))
}
