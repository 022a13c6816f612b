package sidecar

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestLimitMemorySetsRuntimeLimit(t *testing.T) {
	const v2, v1 = "memory.max", "memory/memory.limit_in_bytes"
	for _, row := range []struct {
		name, file, text string
		set, want        int64 // before and after; 0 in set means no limit
	}{
		{"cgroup v2", v2, "67108864\n", 0, 42 << 20},
		{"cgroup v1", v1, "67108864\n", 0, 42 << 20},
		{"20 % outside", v2, "209715200\n", 0, 160 << 20},
		{"half outside", v2, "33554432\n", 0, 16 << 20},
		{"cgroup v2 without a limit", v2, "max\n", 0, math.MaxInt64},
		{"cgroup v1 without a limit", v1, "9223372036854771712\n", 0, math.MaxInt64},
		{"rubbish", v2, "a lot\n", 0, math.MaxInt64},
		{"no cgroups", "other", "", 0, math.MaxInt64},
		{"GOMEMLIMIT", v2, "67108864\n", 40 << 20, 40 << 20},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := int64(math.MaxInt64)
			if row.set > 0 {
				before = row.set
			}
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(before))
			limitMemory(fstest.MapFS{row.file: &fstest.MapFile{Data: []byte(row.text)}})
			harness.Equal(t, debug.SetMemoryLimit(-1), row.want, "limit of")
		})
	}
}

func TestMemoryLimitUsesLowerLimit(t *testing.T) {
	for _, row := range []struct {
		container     string
		runtime, want int64 // 0 means no limit
	}{
		{"max\n", 0, 0},
		{"67108864\n", 0, 64 << 20},
		{"67108864\n", 42 << 20, 64 << 20},
		{"67108864\n", 40 << 20, 62 << 20},
		{"67108864\n", 400 << 20, 64 << 20},
		{"max\n", 20 << 20, 40 << 20},
		{"max\n", 40 << 20, 62 << 20},
		{"max\n", 160 << 20, 200 << 20},
	} {
		limit := int64(math.MaxInt64)
		if row.runtime > 0 {
			limit = row.runtime
		}
		before := debug.SetMemoryLimit(limit)
		got := memoryLimit(fstest.MapFS{"memory.max": &fstest.MapFile{Data: []byte(row.container)}})
		debug.SetMemoryLimit(before)
		harness.Equal(t, got, row.want, "limit for", row.container, row.runtime)
	}
}

func TestLimitGarbageKeepsGOGC(t *testing.T) {
	for chosen, want := range map[string]int{"": 75, "100": 100, "off": 100} { // 100 is the value before the call
		t.Run("GOGC="+chosen, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(100))
			t.Setenv("GOGC", chosen)
			limitGarbage()
			got := debug.SetGCPercent(100)
			harness.Equal(t, got, want, "percent")
		})
	}
}

func TestMaxConnectionsUsesMemoryLimit(t *testing.T) {
	for _, row := range []struct {
		setting     int
		memoryLimit int64
		want        int
	}{
		{0, 0, 0},
		{100, 0, 100},
		{0, 64 << 20, 512},
		{100, 64 << 20, 100},
		{5000, 64 << 20, 5000},
		{0, 1 << 30, 8192},
		{0, 1 << 20, minMemoryConnections},
		{0, math.MaxInt64, math.MaxInt32},
	} {
		harness.Equal(t, maxConnections(row.setting, row.memoryLimit), row.want, "connections for", row.setting, row.memoryLimit)
	}
}
