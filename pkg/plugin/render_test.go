package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func sampleRows() []Row {
	failed := after(-90)
	return []Row{
		{Namespace: "shop", Pod: "checkout-7d9c5b8f66-q8w2z", Workload: "deployment/checkout", State: Ready, Running: new(2), Waiting: new(5), Limit: new(2), Rate: new(36.04), P99: new(2.27), Failure: "queue-full", FailedAt: &failed},
		{Namespace: "shop", Pod: "a-name-that-is-much-longer-than-others-6f5d88c9c7-2xvbn", State: Ready, Running: new(0), Waiting: new(0), Limit: new(0), Rate: new(1234.5), P99: new(0.0042)},
		{Namespace: "other", Pod: "payments-58b7c6f9d4-zr9tt", State: NotReady, Running: new(0), Waiting: new(0), Limit: new(4), Rate: new(0.0), Failure: "app-reset", Note: "not ready: refused"},
		{Namespace: "other", Pod: "ledger-0", State: Unknown, Note: "port 9091: \x1b[2Jconnection refused"},
	}
}

func TestWriteTextDoesNotTruncateNames(t *testing.T) {
	const want = `NAMESPACE  POD                                                      READY  RUNNING  WAITING  LIMIT  REQ/S    P99  LAST FAILURE       NOTE
shop       checkout-7d9c5b8f66-q8w2z                                yes          2        5      2   36.0  2.27s  queue-full 1m ago
shop       a-name-that-is-much-longer-than-others-6f5d88c9c7-2xvbn  yes          0        0   none   1234  4.2ms  -
other      payments-58b7c6f9d4-zr9tt                                no           0        0      4      0      -  app-reset earlier  not ready: refused
other      ledger-0                                                 ?            -        -      -      -      -  -                  port 9091: �[2Jconnection refused
`
	var out strings.Builder
	harness.NoError(t, WriteText(&out, sampleRows(), Layout{Namespaces: true}, start))
	got := regexp.MustCompile(`(?m) +$`).ReplaceAllString(out.String(), "")
	harness.Equal(t, got, want)
}

func TestNarrowLayoutHasRunningAndLimitInOneColumn(t *testing.T) {
	const want = `POD                                                      READY  RUN/LIMIT  WAITING  REQ/S    P99  LAST FAILURE
checkout-7d9c5b8f66-q8w2z                                yes          2/2        5   36.0  2.27s  queue-full 1m
a-name-that-is-much-longer-than-others-6f5d88c9c7-2xvbn  yes       0/none        0   1234  4.2ms  -
payments-58b7c6f9d4-zr9tt                                no           0/4        0      0      -  app-reset earlier
ledger-0                                                 ?            -/-        -      -      -  -
`
	var out strings.Builder
	harness.NoError(t, WriteText(&out, sampleRows(), Layout{Narrow: true}, start))
	harness.Equal(t, out.String(), want)
}

func TestByWorkloadAddsPods(t *testing.T) {
	early, late := after(-9), after(-1)
	rows := []Row{
		{Namespace: "shop", Pod: "web-a", Workload: "deployment/web", State: Ready, Running: new(2), Waiting: new(5), Limit: new(2), Rate: new(1.5), P99: new(0.1), Failure: "app-reset", FailedAt: &late, Failures: map[string]int{"app-reset": 1}},
		{Namespace: "shop", Pod: "web-b", Workload: "deployment/web", State: NotReady, Running: new(1), Waiting: new(0), Limit: new(2), Rate: new(2.0), P99: new(0.3), Failure: "queue-full", FailedAt: &early, Failures: map[string]int{"queue-full": 2}, Note: "not ready: refused"},
		{Namespace: "shop", Pod: "web-c", Workload: "deployment/web", State: Draining},
		{Namespace: "shop", Pod: "db-0", Workload: "statefulset/db", State: Ready, Running: new(1), Limit: new(0), Note: "restarted"},
		{Namespace: "shop", Pod: "db-1", Workload: "statefulset/db", State: Ready, Running: new(1), Limit: new(3)},
		{Namespace: "blog", Pod: "web-d", Workload: "deployment/web", State: Unknown},
	}
	const want = `NAMESPACE  WORKLOAD        READY  RUNNING  WAITING  LIMIT  REQ/S    P99  LAST FAILURE      NOTE
blog       deployment/web  0/1          -        -      -      -      -  -
shop       deployment/web  1/3          3        5      4    3.5  300ms  app-reset 1s ago  web-b: not ready: refused
shop       statefulset/db  2/2          2        -   none      -      -  -                 db-0: restarted
`
	all := ByWorkload(rows)
	var out strings.Builder
	harness.NoError(t, WriteText(&out, all, Layout{Namespaces: true, Workloads: true}, start))
	harness.Equal(t, regexp.MustCompile(`(?m) +$`).ReplaceAllString(out.String(), ""), want)
	harness.Equal(t, fmt.Sprint(all[1].State, all[1].Failures), "not-readymap[app-reset:1 queue-full:2]")
}

func TestSortByEachKey(t *testing.T) {
	early, late := after(-9), after(-1)
	rows := func() []Row {
		return []Row{
			{Pod: "a", State: Ready, Running: new(1), Waiting: new(0), Limit: new(9), Rate: new(3.0), P99: new(0.1)},
			{Pod: "b", State: NotReady, Running: new(2), Waiting: new(0), Limit: new(2), Rate: new(9.0), Failure: "app-reset", FailedAt: &early},
			{Pod: "c", State: Draining, Running: new(1), Waiting: new(4), Limit: new(3), Rate: new(5.0), P99: new(2.0), Failure: "queue-full", FailedAt: &late},
			{Pod: "d", State: Unknown},
			{Pod: "e", State: Ready, Failure: "app-reset"},
		}
	}
	for key, want := range map[string]string{
		"waiting": "cbade", "running": "bcade", "requests": "bcade", "p99": "cabde", "limit": "acbde", "failure": "cbead", "ready": "dbcae", "name": "abcde",
	} {
		sorted, got := rows(), ""
		Sort(sorted, key)
		for _, r := range sorted {
			got += r.Pod
		}
		harness.Equal(t, got, want, key)
	}
	harness.Equal(t, len(Keys()), 8, "keys in this test")
}

// Programs read these names, so the names must not change.
func TestWriteJSONFieldNames(t *testing.T) {
	var out bytes.Buffer
	harness.NoError(t, WriteJSON(&out, sampleRows()[:1], start))
	var got struct {
		At       string
		Sidecars []map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Sidecars) != 1 {
		t.Fatalf("got %s, error %v, want one row", out.Bytes(), err)
	}
	const want = "2026-01-02T03:04:05Z map[failures:<nil> lastFailure:queue-full lastFailureAt:2026-01-02T03:02:35Z limit:2 namespace:shop note: p99Seconds:2.27 pod:checkout-7d9c5b8f66-q8w2z queueLimit:<nil> requestsPerSecond:36.04 running:2 state:ready waiting:5 workload:deployment/checkout]"
	harness.Equal(t, fmt.Sprint(got.At, " ", got.Sidecars[0]), want)
	out.Reset()
	if err := WriteJSON(&out, nil, start); err != nil || !strings.Contains(out.String(), `"sidecars": []`) {
		t.Errorf("got %s, error %v, want an empty array", out.Bytes(), err)
	}
}
