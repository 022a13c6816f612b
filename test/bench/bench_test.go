//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// startDelayedServer starts a server with responses of 1 KB. The first response is delayed by hold.
func startDelayedServer(t *testing.T, hold time.Duration) string {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			time.Sleep(hold) // simulate a stalled server
		}
		w.Write(bytes.Repeat([]byte("x"), 1024))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestOpenLoopLatencyIncludesStall(t *testing.T) {
	const hold = 300 * time.Millisecond
	took, err := openLoop(startDelayedServer(t, hold), "/", 100, 1, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(took), 100; got != want {
		t.Fatalf("got %d requests, want %d", got, want)
	}
	late := 0
	for _, d := range took {
		if d > hold/2 {
			late++
		}
	}
	// A request is sent every 10 ms, so a pause of 300 ms delays 15 requests by at least 150
	// ms.
	if got, want := late, 15; got < want {
		t.Errorf("got %d requests that took more than %v, want at least %d", got, hold/2, want)
	}
}

func TestLeastDisturbedExcludesStolenTime(t *testing.T) {
	got := leastDisturbed([]turn{{stolen: 9}, {stolen: 0}, {stolen: 3}, {stolen: 1}, {stolen: 2}})
	if want := []turn{{stolen: 0}, {stolen: 1}, {stolen: 2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := stolen(); err != nil {
		t.Errorf("got %v, want the value in /proc/stat", err)
	}
}

func TestOpenLoopDoesNotWaitForResponses(t *testing.T) {
	var most, now atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer now.Add(-1)
		for n, m := now.Add(1), most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(200 * time.Millisecond) // simulate work of the app
		io.WriteString(w, "done")
	}))
	defer s.Close()
	if _, err := openLoop(s.Listener.Addr().String(), "/", 50, 16, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got, want := most.Load(), int64(5); got < want {
		t.Errorf("got %d concurrent requests, want at least %d at 50 per second with 0.2 s each", got, want)
	}
}

func TestLoopsReportUnexpectedStatus(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	address := s.Listener.Addr().String()
	if _, err := openLoop(address, "/", 100, 1, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("open loop: got %v, want an error with 404", err)
	}
	if _, err := closedLoop(address, "/", 2, time.Millisecond); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("closed loop: got %v, want an error with 404", err)
	}
}

func TestClosedLoopUsesAllConnections(t *testing.T) {
	took, err := closedLoop(startDelayedServer(t, 0), "/", 50, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, of := range took {
		if len(of) == 0 {
			t.Errorf("connection %d: no responses", i)
		}
	}
}

func TestParseLoadGeneratorOutput(t *testing.T) {
	for _, c := range []struct {
		name  string
		parse func(string) (outcome, error)
		text  string
		want  outcome
		err   string
	}{
		{"wrk", parseWrk, "Running 1s test\n  20539 requests in 1.00s, 22.64MB read\nRequests/sec:  20533.72\n", outcome{requests: 20539, perSec: 20533.72}, ""},
		{"wrk, broken connection", parseWrk, "  9 requests in 1.00s, 1MB read\n  Socket errors: connect 0, read 1, write 0, timeout 0\nRequests/sec:  9.00\n", outcome{}, "read 1"},
		{"wrk, other status", parseWrk, "  9 requests in 1.00s, 1MB read\n  Non-2xx or 3xx responses: 4\nRequests/sec:  9.00\n", outcome{}, "responses: 4"},
		{"wrk, no requests", parseWrk, "  0 requests in 1.00s, 0B read\nRequests/sec:  0.00\n", outcome{}, "no request"},
		{"wrk, unknown output", parseWrk, "usage\n", outcome{}, "unexpected output"},
		{
			"h2load", parseH2load, "finished in 1.00s, 15664.00 req/s, 15.64MB/s\n" +
				"requests: 15664 total, 15728 started, 15664 done, 15664 succeeded, 0 failed, 0 errored, 0 timeout\n" +
				"status codes: 15685 2xx, 0 3xx, 0 4xx, 0 5xx\n", outcome{requests: 15664, perSec: 15664}, "",
		},
		{
			"h2load, other status", parseH2load, "finished in 1.00s, 2.00 req/s, 15.64MB/s\n" +
				"requests: 2 total, 2 started, 2 done, 2 succeeded, 0 failed, 0 errored, 0 timeout\n" +
				"status codes: 0 2xx, 0 3xx, 0 4xx, 2 5xx\n", outcome{}, "2 5xx",
		},
		{
			"h2load, reset stream", parseH2load, "finished in 1.00s, 2.00 req/s, 15.64MB/s\n" +
				"requests: 2 total, 2 started, 2 done, 1 succeeded, 1 failed, 1 errored, 0 timeout\n" +
				"status codes: 1 2xx, 0 3xx, 0 4xx, 0 5xx\n", outcome{}, "1 failed",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.parse(c.text)
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, %v, want %v and an error with %q", got, err, c.want, c.err)
			}
		})
	}
}

func TestOrderStatistics(t *testing.T) {
	if got, want := median([]float64{3, 1, 2}), 2.0; got != want {
		t.Errorf("median of three: got %v, want %v", got, want)
	}
	if got, want := median([]float64{4, 1, 3, 2}), 2.5; got != want {
		t.Errorf("median of four: got %v, want %v", got, want)
	}
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, c := range []struct {
		p    float64
		want time.Duration
	}{{50, 50}, {99, 99}, {100, 100}, {0, 1}} {
		if got := percentile(hundred, c.p); got != c.want {
			t.Errorf("percentile %v of 1 to 100: got %v, want %v", c.p, int(got), int(c.want))
		}
	}
}

func TestSteadyWaitsExcludesStartAndEnd(t *testing.T) {
	ms := time.Millisecond
	took := [][]time.Duration{{20 * ms, 40 * ms, 60 * ms, 220 * ms, 221 * ms, 30 * ms}}
	got, err := steadyWaits(took)
	if err != nil || len(got) != 2 || got[0] != 200*ms || got[1] != 201*ms {
		t.Errorf("got %v, %v, want [200ms 201ms]", got, err)
	}
	if got, err := steadyWaits([][]time.Duration{{ms, ms, ms, ms}}); err == nil {
		t.Errorf("four requests: got %v, want an error", got)
	}
}

func TestCPUTimeIncludesWorkers(t *testing.T) {
	// The process is a shell that waits. Its child runs a loop until it is killed.
	p, err := launch(program{name: "shell", argv: []string{"/bin/sh", "-c", "(while :; do :; done) & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	const want = 50 * time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got, err := p.cpu()
		if err != nil {
			t.Fatal(err)
		}
		if got > want {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got %v of CPU after %v, want more than %v", got, patience, want)
		}
	}
	if family, err := p.family(); err != nil || len(family) != 2 {
		t.Errorf("got processes %v, %v, want the shell and its child", family, err)
	}
	if rss, err := p.memory("VmRSS"); err != nil || rss < 100e3 {
		t.Errorf("got %v bytes, %v, want the memory of two shells", rss, err)
	}
}

func TestProcessExitAtStartReturnsOutput(t *testing.T) {
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := launch(program{name: "shell", argv: []string{"/bin/sh", "-c", "echo no such setting >&2; exit 1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	_, err = p.answers(net.JoinHostPort("127.0.0.1", ports[0]), get)
	if err == nil || !strings.Contains(err.Error(), "no such setting") {
		t.Errorf("got %v, want an error with the output", err)
	}
}

func TestSpansAreCounted(t *testing.T) {
	field := func(number byte, value string) string {
		return string([]byte{number<<3 | 2, byte(len(value))}) + value
	}
	span := field(2, field(1, "trace")+"\x31\x01\x02\x03\x04\x05\x06\x07\x08") // a fixed64 field follows, which the parser must skip
	scope := field(2, field(1, "scope")+span+span+field(3, "url"))
	message := field(1, field(1, "resource")+scope) + field(1, scope)
	if got, err := countSpans([]byte(message)); got != 4 || err != nil {
		t.Errorf("got %d, %v, want 4", got, err)
	}
	if got, err := countSpans([]byte(message[:len(message)-3])); err == nil {
		t.Errorf("truncated message: got %d, want an error", got)
	}
	if got, err := countSpans(nil); got != 0 || err != nil {
		t.Errorf("empty message: got %d, %v, want 0", got, err)
	}
}

func TestMissingTelemetryIsReported(t *testing.T) {
	for _, c := range []struct {
		got  int
		want float64
		note string
		err  bool
	}{
		{0, 100, "", true},
		{0, 0, "", true},
		{42, 100, "42 % of the lines arrived; the others were dropped", false},
		{91, 100, "", false},
		{100, 100, "", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			note, err := arrived("line", func() int { return c.got }, c.want)
			if note != c.note || (err != nil) != c.err {
				t.Errorf("%d of %v: got %q, %v, want %q and an error: %v", c.got, c.want, note, err, c.note, c.err)
			}
		})
	}
}

// some returns results for all measures and peers.
func some() *Results {
	r := &Results{Machine: Machine{CPU: "a <fast> one", Versions: map[string]string{}}, Cells: map[string]map[string]*Cell{}}
	for _, s := range sections {
		for _, m := range s.rows {
			for i, p := range s.peers {
				r.add(m.id, p, float64(10+i))
				r.add(m.id, p, float64(12+i))
			}
		}
	}
	return r
}

func TestReportContainsFailuresAndMissedGoals(t *testing.T) {
	r := some()
	r.Cells["cpu/get-16"][nginx] = &Cell{Values: []float64{5}}
	r.fail("cpu/tls-16", haproxy, "it fell over")
	var b bytes.Buffer
	printTable(&b, r)
	for _, want := range []string{
		"cpu/tls-16, HAProxy: it fell over",
		"some rounds failed",
		"11.0 (10.0 to 12.0)",
		"**missed**",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q not found in\n%s", want, b.String())
		}
	}
	if got := r.failures(); len(got) != 1 {
		t.Errorf("got failures %q, want one failure", got)
	}
}

func TestNegativeAddedLatencyHasNoRatio(t *testing.T) {
	r := &Results{Cells: map[string]map[string]*Cell{}}
	r.add("added/p99", ours, 5)
	r.add("added/p99", haproxy, -3)
	if got, ok := r.ratio("added/p99", ours, haproxy); ok {
		t.Errorf("got ratio %v, want no ratio", got)
	}
}

func TestTableReplacesTextBetweenMarkers(t *testing.T) {
	resultsBegin, resultsEnd := markers(resultsName)
	idleBegin, idleEnd := markers("idle")
	dir := t.TempDir()
	doc := filepath.Join(dir, "performance.md")
	if err := os.WriteFile(doc, []byte("before\n"+resultsBegin+"old\n"+resultsEnd+"after\n"+idleBegin+idleEnd), 0o600); err != nil {
		t.Fatal(err)
	}
	complete := filepath.Join(dir, "results.txt")
	for range 2 {
		if _, err := writeDocument(some(), doc, complete); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if !strings.HasPrefix(text, "before\n"+resultsBegin) || !strings.Contains(text, resultsEnd+"after\n"+idleBegin) ||
		strings.Contains(text, "old\n") || strings.Count(text, "### Tables") != 1 {
		t.Errorf("got\n%s\nwant the results exactly once, between the markers", text)
	}
	if row := "| **CPU time of the proxy per request, µs: HTTP/1.1 over TLS 1.3** | | | | | | | |\n"; !strings.Contains(text, row) {
		t.Errorf("got\n%s\nwant the row %q, because sections with the same columns are one table", text, row)
	}
	if _, err := splice([]byte("no markers"), resultsName, nil); err == nil {
		t.Errorf("document without markers: got no error")
	}

	if report, err := os.ReadFile(complete); err != nil || !strings.Contains(string(report), "11.0 (10.0 to 12.0)") {
		t.Errorf("got the report %q and %v, want medians with their spread", report, err)
	}

	svg, err := os.ReadFile(filepath.Join(dir, "performance.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "(performance.svg)") {
		t.Errorf("no link to the plot found")
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("parse the plot: %v", err)
		}
	}
}

func TestDocumentContainsMediansAndMissedGoals(t *testing.T) {
	text := string(markdown(some(), "performance.svg"))
	for want, in := range map[string]bool{"| 11.0 | 12.0 |": true, "(10.0 to 12.0)": false, "| missed goal | measured | goal |": true, "| reached |": false} {
		if strings.Contains(text, want) != in {
			t.Errorf("%q: got %v, want %v in\n%s", want, !in, in, text)
		}
	}
}

func TestPrintedSectionIsNotInDocument(t *testing.T) {
	const title = "Requests per second"
	if text := string(markdown(some(), "performance.svg")); strings.Contains(text, title) {
		t.Errorf("the document contains section %q, want the section only in the output", title)
	}
	var b bytes.Buffer
	if printTable(&b, some()); !strings.Contains(b.String(), title) {
		t.Errorf("no section %q in the output", title)
	}
}

func TestDocumentHasMarkers(t *testing.T) {
	text, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{resultsName, "idle"} {
		if _, err := splice(text, name, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestTargetsAndPanelsAreMeasured(t *testing.T) {
	r := some()
	for _, line := range targetCells(r) {
		if line[1] == "not measured" {
			t.Errorf("target %q does not refer to a measure of a section", line)
		}
	}
	for _, p := range panels {
		for _, id := range p.measures {
			findRow(id) // findRow panics if there is no such row
		}
	}
}

func TestRotateStartsWithEachPeer(t *testing.T) {
	var got []string
	for round := range 4 {
		got = append(got, rotate([]string{"a", "b", "c"}, round)[0])
	}
	if g, want := strings.Join(got, ""), "abca"; g != want {
		t.Errorf("got %q as the first item, want %q", g, want)
	}
}

func TestPeerConfigurations(t *testing.T) {
	at := &parameters{Dir: t.TempDir(), App: "127.0.0.1:1", Address: "127.0.0.1:2", TLS: "127.0.0.1:3", Cert: "/c", Key: "/k", Pair: "/p", Concurrency: 7, Sink: "127.0.0.1:4", status: "5"}
	for name, p := range map[string]struct {
		command func(string, *parameters) ([]string, []string, error)
		want    []string
	}{
		haproxy: {haproxyCommand, []string{"bind 127.0.0.1:2\n", "bind 127.0.0.1:3 ssl crt /p ", "server app 127.0.0.1:1 maxconn 7\n"}},
		nginx:   {nginxCommand, []string{"listen 127.0.0.1:2;", "listen 127.0.0.1:5 http2;", "listen 127.0.0.1:3 ssl", "server 127.0.0.1:1;", "ssl_certificate /c;"}},
	} {
		argv, _, err := p.command("program", at)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(argv[len(argv)-1])
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range p.want {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: %q not found in\n%s", name, want, text)
			}
		}
	}
	at.GRPC = true
	for name, p := range map[string]struct {
		command func(string, *parameters) ([]string, []string, error)
		want    string
	}{
		haproxy: {haproxyCommand, "server app 127.0.0.1:1 proto h2 maxconn 7\n"},
		nginx:   {nginxCommand, "grpc_pass grpc://app;"},
	} {
		argv, _, err := p.command("program", at)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(argv[len(argv)-1])
		if err != nil || !strings.Contains(string(text), p.want) {
			t.Errorf("%s, gRPC: got error %v, or %q not found in\n%s", name, err, p.want, text)
		}
	}
	_, env, err := queueProxy("SPANS=http://{{.Sink}}/")("program", at)
	if err != nil || env[len(env)-1] != "SPANS=http://127.0.0.1:4/" {
		t.Errorf("got %q, %v, want the address of the sink in the last variable", env[len(env)-1], err)
	}
}

func TestQuotaLimitsCPUTime(t *testing.T) {
	q, err := newQuota()
	if err != nil {
		t.Skipf("CPU quotas are not available: %v", err)
	}
	defer func() {
		if err := q.remove(); err != nil {
			t.Error(err)
		}
	}()
	p, err := launch(program{name: "shell", argv: []string{"/bin/sh", "-c", "while :; do :; done"}, before: q.add})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	before, err := p.cpu()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	time.Sleep(5 * quotaPeriod) // the CPU time during this period is measured
	after, err := p.cpu()
	if err != nil {
		t.Fatal(err)
	}
	// Allow an additional period at the beginning and at the end, and one slice for each CPU.
	periods := int(time.Since(began)/quotaPeriod) + 2
	if got, want := after-before, time.Duration(4*periods)*quotaShare; got > want {
		t.Errorf("got %v of CPU in %v, want at most %v", got, time.Since(began), want)
	}
}

func TestAppResponses(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "app")
	if out, err := exec.CommandContext(context.Background(), "go", "build", "-o", bin, "./app").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", ports[0])
	p, err := launch(program{name: "app", argv: []string{bin, "-listen", address}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	if _, err := p.answers(address, get); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, body string
		status, length     int
	}{
		{"GET", "/", "", 200, 1024},
		{"GET", "/100k", "", 200, 102400},
		{"GET", "/slow?ms=1", "", 200, 1024},
		{"POST", "/", strings.Repeat("x", 10240), 200, 2},
	} {
		r, err := http.NewRequest(c.method, "http://"+address+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(w.Body)
		w.Body.Close()
		if err != nil || w.StatusCode != c.status || len(body) != c.length {
			t.Errorf("%s %s: got %d, %d bytes, %v, want %d, %d bytes", c.method, c.path, w.StatusCode, len(body), err, c.status, c.length)
		}
	}
	for _, odd := range []string{"PRI * HTTP/2.0\r\n\r\n", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, odd)
		c.SetDeadline(time.Now().Add(patience))
		all, err := io.ReadAll(c)
		c.Close()
		if err != nil && !strings.Contains(err.Error(), "reset") || !strings.HasPrefix(string(all), "HTTP/1.1 400 ") {
			t.Errorf("%q: got %q, %v, want 400 and a closed connection", odd, all, err)
		}
	}
}
