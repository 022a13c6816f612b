package manifest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

const listedPod = `  - apiVersion: v1
    kind: Pod
    metadata: {name: w%d, labels: {app: web}}
    spec:
      containers:
        - name: web
          ports:
            - name: http
              containerPort: 8080
`

// Each change looks for its place again; what that costs must not grow with all that there
// is. A List of 5000 pods, a megabyte, took more than a minute.
func TestTheWorkForAFileGrowsWithItsLength(t *testing.T) {
	one := "---\napiVersion: v1\nkind: List\nitems:\n" + fmt.Sprintf(listedPod, 1)
	for name, c := range map[string]struct {
		n    int
		text func(n int) string
	}{
		"a List of pods":       {100, func(n int) string { return "apiVersion: v1\nkind: List\nitems:\n" + repeat(n, listedPod) }},
		"a Service's ports":    {100, func(n int) string { return manyPorts + repeat(n, "    - {port: 1%04d, targetPort: 8080}\n") + one }},
		"a container's fields": {10_000, func(n int) string { return one + repeat(n, "          k%d: v\n") }},
	} {
		once, twice := allocated(t, c.text(c.n)), allocated(t, c.text(2*c.n))
		t.Logf("%s: %d bytes allocated for %d, %d for twice as many", name, once, c.n, twice)
		// What grows with the square takes four times as many. The race detector empties
		// pools at random, which is worth a tenth.
		if twice > 3*once {
			t.Errorf("%s: got %d bytes allocated for %d, and %d for twice as many; want at most three times as many", name, once, c.n, twice)
		}
	}
}

const manyPorts = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  selector: {app: web}\n  ports:\n"

// repeat returns the format n times, with the numbers from 0.
func repeat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// allocated returns how many bytes the injection into a file of this text allocates.
func allocated(t *testing.T, text string) uint64 {
	t.Helper()
	f := Parse("f.yaml", []byte(text))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	results := Inject([]*File{f}, nil, inject.Services)
	runtime.ReadMemStats(&after)
	for _, r := range results {
		if r.Verdict != inject.Injected && r.Verdict != inject.Rewritten {
			t.Errorf("%s: got %s (%s) %s, want it injected or rewritten", r.Object(), r.Verdict, r.Reason, r.Text)
		}
	}
	return after.TotalAlloc - before.TotalAlloc
}

// A Service of so many ports that its way back would be longer than annotations may be is
// left alone: it could not be taken back.
func TestAServiceThatCouldNotBeTakenBackIsRefused(t *testing.T) {
	f := Parse("f.yaml", []byte(manyPorts+repeat(10_000, "    - {port: 1%04d, targetPort: 8080}\n")+
		"---\napiVersion: v1\nkind: List\nitems:\n"+fmt.Sprintf(listedPod, 1)))
	if r := Inject([]*File{f}, nil, inject.Services)[0]; r.Verdict != inject.Refused || r.Reason != inject.Unreadable || len(r.Changes) > 0 {
		t.Errorf("got %s (%s) %s with %d changes, want it refused", r.Verdict, r.Reason, r.Text, len(r.Changes))
	}
}
