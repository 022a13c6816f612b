package manifest

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
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

// Each change searches for its path. The cost of a search must not depend on the size of
// the file. Otherwise, the injection of a List of 5000 pods (1 MB) takes more than a
// minute.
func TestCostOfFileIsLinear(t *testing.T) {
	var pods, ports, keys strings.Builder
	for i := range 200 {
		fmt.Fprintf(&pods, listedPod, i)
		fmt.Fprintf(&ports, "    - port: %d\n      targetPort: 8080\n", 1000+i)
	}
	for i := range 20_000 { // The test would take seconds if each change searched the whole list.
		fmt.Fprintf(&keys, "          k%d: v\n", i)
	}
	list := "apiVersion: v1\nkind: List\nitems:\n" + pods.String()
	service := "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  selector: {app: web}\n  ports:\n" + ports.String()
	one := "---\napiVersion: v1\nkind: List\nitems:\n" + fmt.Sprintf(listedPod, 1)
	for name, c := range map[string]struct {
		text string
		most int // maximum number of allocated bytes per byte of the text
	}{
		"a List of pods":       {list, 12_000},
		"a Service's ports":    {service + one, 2000},
		"a container's fields": {one + keys.String(), 500},
	} {
		got := allocated(t, c.text)
		// Use the minimum of several runs, because the race detector and garbage collections
		// clear pools, and the first run initializes caches.
		for range 4 {
			if got <= c.most {
				break
			}
			got = min(got, allocated(t, c.text))
		}
		t.Logf("%s: %d bytes of text, %d allocated for each", name, len(c.text), got)
		if got > c.most {
			t.Errorf("%s: got %d bytes allocated per byte of text, want at most %d", name, got, c.most)
		}
	}
}

// The nodes and values of a document need about 50 times the memory of its text. Therefore, they must
// not be kept while other documents are examined.
func TestMemoryOfResultsIsBounded(t *testing.T) {
	const most = 20 // bytes of memory for each byte of the text, including the result
	text := []byte(deployments(300))
	heap := func() int {
		var stats runtime.MemStats
		runtime.GC()
		runtime.GC() // the first garbage collection only clears pools
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	Inject([]*File{Parse("f.yaml", []byte(deployments(1)))}, nil, inject.Services) // initialize caches
	before := heap()
	f := Parse("f.yaml", text)
	results := Inject([]*File{f}, nil, inject.Services)
	got := (heap() - before) / len(text)
	t.Logf("%d bytes of text, %d kept for each", len(text), got)
	if got > most {
		t.Errorf("got %d bytes kept per byte of text, want at most %d", got, most)
	}
	if len(results) != 600 || results[0].Verdict != inject.Injected || len(f.Text()) < len(text) {
		t.Errorf("got %d results, want 600", len(results))
	}
}

// A file can contain a million objects without pods, and an outcome needs about 300 bytes.
func TestObjectsWithoutPodsShareOutcome(t *testing.T) {
	f := Parse("f.yaml", []byte("kind: A\n---\nkind: A\n---\nkind: B\n"))
	r := Inject([]*File{f}, nil, inject.Services)
	if len(r) != 3 || r[0].Outcome != r[1].Outcome || r[0].Outcome == r[2].Outcome {
		t.Errorf("got %d results, want 3 with the same outcome for the first two only", len(r))
	}
}

// kubectl get -o json | jq -c writes a List on one line.
func TestOneLineListUsesBoundedMemory(t *testing.T) {
	const most = 100 // bytes of live heap for each byte of the text; 300 if the whole List is decoded
	pod := strings.Join([]string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"w%d","labels":{"app":"web"}}`,
		`"spec":{"containers":[{"name":"web","ports":[{"name":"http","containerPort":8080}]}]}}`,
	}, ",")
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprintf(pod, i))
	}
	text := `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",") + `]}`
	got := peakLiveHeap(func() { Inject([]*File{Parse("f.json", []byte(text))}, nil, inject.Services) }) / len(text)
	t.Logf("%d bytes of text, %d bytes of live heap for each", len(text), got)
	if got > most {
		t.Errorf("got %d bytes of live heap per byte of text, want at most %d", got, most)
	}
}

// peakLiveHeap returns the maximum increase of the live heap in bytes while f runs.
func peakLiveHeap(f func()) int {
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	live := func() int {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	runtime.GC()
	before := live()
	done, peak := make(chan struct{}), make(chan int)
	go func() {
		most := before
		for {
			select {
			case <-done:
				peak <- most
				return
			default:
				most = max(most, live())
				runtime.Gosched()
			}
		}
	}()
	f()
	close(done)
	return <-peak - before
}

// If each item required a search of the text before the item, splitting a List on one
// line would take minutes.
func TestOneLineListIsSplitInLinearTime(t *testing.T) {
	const items = 300_000
	f := Parse("f.json", []byte(`{"kind":"List","items":[`+strings.Repeat("{},", items-1)+`{}]}`))
	if got, want := len(f.documents), 2*items+1; got != want {
		t.Errorf("got %d documents, want %d", got, want)
	}
}

// If each change searched its line from the beginning, these changes would take a minute.
func TestOneLineListIsChangedInLinearTime(t *testing.T) {
	const items = 50_000
	text := "items: [" + strings.Repeat("{é: 1}, ", items) + "]\n"
	d := &document{text: []byte(text)}
	d.decode()
	var changes []inject.Change
	for i := range items {
		changes = append(changes, inject.Change{Path: fmt.Sprintf("/items/#%d/é", i), Value: []byte("2")})
	}
	if reformatted, err := d.change(changes); err != nil || reformatted {
		t.Errorf("got %t, %v, want changes in place", reformatted, err)
	}
	if want := strings.ReplaceAll(text, "1", "2"); string(d.text) != want {
		t.Errorf("got %.100s, want %.100s", d.text, want)
	}
}

// A change below an alias replaces the alias with a new item.
func TestReplacedAliasesAreWrittenInLinearSpace(t *testing.T) {
	perAlias := func(n int) int { // allocated bytes
		d := &document{text: []byte("- &a {b: 1}\n" + strings.Repeat("- *a\n", n))}
		d.decode()
		var changes []inject.Change
		for i := range n {
			changes = append(changes, inject.Change{Path: fmt.Sprintf("/#%d/b", i+1), Value: []byte("2")})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := d.change(changes)
		runtime.ReadMemStats(&after)
		harness.NoError(t, err)
		return int(after.TotalAlloc-before.TotalAlloc) / n
	}
	if few, many := perAlias(500), perAlias(10_000); many > 2*few {
		t.Errorf("got %d allocated bytes for each of 10000 aliases, want at most twice the %d for each of 500", many, few)
	}
}

func TestEmptyDocumentsShareMemory(t *testing.T) {
	marks := strings.Repeat("---\n", 1000)
	text := marks + "---\nkind: A\n" + marks
	f := Parse("f.yaml", []byte(text))
	if got := len(f.documents); got != 3 {
		t.Errorf("got %d documents, want 3", got)
	}
	r := Inject([]*File{f}, nil, inject.Services)
	if len(r) != 1 || r[0].Document != 1001 || r[0].Line != 1002 {
		t.Errorf("got %+v, want one result for document 1001 in line 1002", r)
	}
	harness.Equal(t, string(f.Text()), text)
}

// deployments returns n Deployments and their Services.
func deployments(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: w%[1]d
spec:
  template:
    metadata:
      labels:
        app: w%[1]d
    spec:
      containers:
        - name: web
          image: registry.example/web:1
          ports:
            - name: http
              containerPort: 8080
          readinessProbe:
            httpGet:
              path: /ready
              port: http
---
apiVersion: v1
kind: Service
metadata:
  name: w%[1]d
spec:
  selector:
    app: w%[1]d
  ports:
    - port: 80
      targetPort: http
`, i)
	}
	return text.String()
}

// allocated returns the number of allocated bytes per byte of the text.
func allocated(t *testing.T, text string) int {
	t.Helper()
	f := Parse("f.yaml", []byte(text))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	results := Inject([]*File{f}, nil, inject.Services)
	runtime.ReadMemStats(&after)
	for _, r := range results {
		if r.Verdict != inject.Injected && r.Verdict != inject.Rewritten {
			t.Errorf("%s: got %s (%s) %s, want injected or rewritten", r.Object(), r.Verdict, r.Reason, r.Text)
		}
	}
	return int(after.TotalAlloc-before.TotalAlloc) / len(text)
}

// A Service is refused if its status would exceed the size limit of annotations, because the
// injection could not be reverted.
func TestServiceWithLongStatusIsRefused(t *testing.T) {
	var ports strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&ports, "    - port: %d\n      targetPort: 8080\n", 1000+i)
	}
	f := Parse("f.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  selector: {app: web}\n  ports:\n"+ports.String()+"---\napiVersion: v1\nkind: List\nitems:\n"+fmt.Sprintf(listedPod, 1)))
	if r := Inject([]*File{f}, nil, inject.Services)[0]; r.Verdict != inject.Refused || r.Reason != inject.Unreadable || len(r.Changes) > 0 {
		t.Errorf("got %s (%s) %s with %d changes, want refused", r.Verdict, r.Reason, r.Text, len(r.Changes))
	}
}

// The number of allocated bytes per document must not grow with the number of documents,
// so Inject must not compare each Service with all pods.
func TestCostOfDocumentDoesNotDependOnNumberOfDocuments(t *testing.T) {
	perDocument := func(n int) int {
		var text strings.Builder
		for i := range n {
			pod := strings.ReplaceAll(fmt.Sprintf(listedPod, i), "app: web", fmt.Sprintf("app: w%d", i))
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: List\nitems:\n%s---\napiVersion: v1\nkind: Service\nmetadata: {name: w%d}\nspec:\n  selector: {app: w%d}\n  ports:\n    - port: 80\n      targetPort: 8080\n", pod, i, i)
		}
		return allocated(t, text.String()) * text.Len() / (2 * n)
	}
	small, large := perDocument(50), perDocument(1500)
	if large > 2*small {
		t.Errorf("got %d bytes allocated per document of 3000, want at most twice the %d bytes per document of 100", large, small)
	}
}
