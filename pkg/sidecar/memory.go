package sidecar

import (
	"io/fs"
	"math"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory tells the garbage collector how much memory the container has, which
// it would otherwise let garbage fill until the kernel kills the process. A fifth
// is left for what is not the runtime's: the binary, page tables, socket buffers. A
// GOMEMLIMIT in the environment wins.
func limitMemory(cgroup fs.FS) {
	if limit := containerMemory(cgroup); limit > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(limit / 5 * 4)
	}
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
