package metrics

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestTheProcessIsReadBehindItsName(t *testing.T) {
	const numbers = " S 1 1 1 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 9 0 12345 1048576 25 18446744073709551615 1 1"
	want := process{cpu: 2, threads: 9, virtual: 1048576, resident: 25 * float64(os.Getpagesize())}
	for _, name := range []string{"(queue-proxy)", "(a b) c)", "(1 2 3 4)", "()"} {
		got, ok := readProcess([]byte("42 "+name+numbers), nil)
		if got != want || !ok {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, ok, want)
		}
	}
	for _, bad := range []string{"", "42", "42 (a)", "42 (a) S 1 2", "42 (a)" + strings.Replace(numbers, "150", "x", 1)} {
		if got, ok := readProcess([]byte(bad), nil); ok {
			t.Errorf("%q: got %+v, want none", bad, got)
		}
	}
	if got, ok := readProcess(nil, errors.New("no /proc")); ok {
		t.Errorf("got %+v without a file, want none", got)
	}
}

func TestTheLimitOfOpenFilesIsTheSoftOne(t *testing.T) {
	const limits = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max processes             1                    2                    processes \n" +
		"Max open files            20000                40000                files     \n"
	if got, ok := maxFiles([]byte(limits), nil); got != 20000 || !ok {
		t.Errorf("got %v, %v, want 20000", got, ok)
	}
	for _, none := range []string{"", "Max open files", "Max open files unlimited unlimited files"} {
		if got, ok := maxFiles([]byte(none), nil); ok {
			t.Errorf("%q: got %v, want none", none, got)
		}
	}
}

func TestOpenFilesAreCounted(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		if _, ok := openFiles(); ok {
			t.Error("got open files without /proc, want none")
		}
		return
	}
	before, _ := openFiles()
	var files []*os.File
	for range 20 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	after, ok := openFiles()
	for _, f := range files {
		f.Close()
	}
	// Others may have come or gone meanwhile, the runtime's own for example.
	if more := after - before; !ok || more < 15 || more > 25 {
		t.Errorf("got %v more open files, want about 20", more)
	}
}

func TestTheProcessAndTheRuntimeAreShown(t *testing.T) {
	got := samples(scrape(t, newMetrics(t, options(Default)).Handler(), text), "queue_proxy_process_", "queue_proxy_go_")
	for _, name := range []string{
		ProcessCPUSecondsTotal, ProcessResidentMemoryBytes, ProcessVirtualMemoryBytes, ProcessThreads, ProcessOpenFDs, ProcessMaxFDs,
		ProcessStartTimeSeconds, GoGoroutines, GoMaxProcs, GoMemoryBytes, GoHeapBytes, GoAllocatedBytesTotal, GoGCCyclesTotal, GoGCCPUSecondsTotal,
	} {
		if v, err := strconv.ParseFloat(got[name], 64); err != nil || v < 0 || v == 0 && !strings.Contains(name, "_gc_") && name != ProcessCPUSecondsTotal {
			t.Errorf("%s: got %q, want a number", name, got[name])
		}
	}
	if got, want := got[ProcessStartTimeSeconds], "1.8e+09"; got != want {
		t.Errorf("%s: got %s, want %s", ProcessStartTimeSeconds, got, want)
	}
	if got, ok := got[GoMemoryLimitBytes]; ok && os.Getenv("GOMEMLIMIT") == "" {
		t.Errorf("got a limit of %s, want none where there is none", got)
	}
}
