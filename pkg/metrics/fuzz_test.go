package metrics

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// FuzzProcess reads what /proc/self says, of a process with any name and any numbers
// (proc(5)), and any rubbish in its place.
func FuzzProcess(f *testing.F) {
	f.Add("queue-proxy", uint64(150), uint64(50), uint64(9), uint64(1<<20), uint64(25), uint64(1024), []byte("42 (a) S 1"))
	f.Add("a) (b", uint64(0), uint64(1<<63), uint64(1), uint64(math.MaxUint64), uint64(0), uint64(0), []byte("Max open files NaN"))
	f.Fuzz(func(t *testing.T, name string, user, system, threads, virtual, resident, files uint64, rubbish []byte) {
		stat := fmt.Sprintf("42 (%s) S 1 1 1 0 -1 4194560 1 2 3 4 %d %d 7 8 20 0 %d 0 12345 %d %d 18446744073709551615 1 1\n",
			name, user, system, threads, virtual, resident)
		want := process{
			cpu:     (float64(user) + float64(system)) / 100,
			threads: float64(threads), virtual: float64(virtual), resident: float64(resident) * float64(os.Getpagesize()),
		}
		if got, ok := readProcess([]byte(stat), nil); !ok || got != want {
			t.Errorf("%q: got %+v, %t, want %+v", stat, got, ok, want)
		}
		limits := fmt.Sprintf("Limit  Soft Limit  Hard Limit  Units\nMax processes  1  2  processes\nMax open files  %d  unlimited  files\n", files)
		if got, ok := maxFiles([]byte(limits), nil); !ok || got != float64(files) {
			t.Errorf("%q: got %v, %t, want %d", limits, got, ok, files)
		}

		if p, ok := readProcess(rubbish, nil); ok && !(p.cpu >= 0 && p.threads >= 0 && p.virtual >= 0 && p.resident >= 0) {
			t.Errorf("%q: got %+v, want numbers of things, or none", rubbish, p)
		}
		if n, ok := maxFiles(rubbish, nil); ok && !(n >= 0 && strings.Contains(string(rubbish), "Max open files")) {
			t.Errorf("%q: got %v, want a number of files, or none", rubbish, n)
		}
	})
}
