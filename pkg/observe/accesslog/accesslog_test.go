package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exchange implements the methods of transport.Exchange that a Log calls.
type exchange struct {
	transport.Exchange
	r *http.Request
}

func (x *exchange) Request() *http.Request { return x.r }

func (x *exchange) Header(name string) string { return strings.Trim(x.r.Header.Get(name), " \t") }

// observe returns the observation of a successful request. The request was queued for 2 ms, its response began after
// 5 ms, and the request ended after 10 ms.
func observe(r *http.Request) *observation.Observation {
	start := time.Date(2026, 8, 21, 10, 0, 0, 1_000, time.UTC)
	return &observation.Observation{
		Exchange: &exchange{r: r},
		Line: transport.Line{
			Method: r.Method, Target: r.RequestURI, Host: r.Host, Major: r.ProtoMajor, Minor: r.ProtoMinor,
			Remote: r.RemoteAddr, TLS: r.TLS != nil,
		},
		Start: start, Slot: start.Add(2 * time.Millisecond), End: start.Add(10 * time.Millisecond), Phase: observation.Streaming,
		Result: transport.Result{Status: 200, Begun: true, In: 3, Out: 5, FirstByte: start.Add(5 * time.Millisecond)},
	}
}

func get(target string) *observation.Observation {
	return observe(httptest.NewRequest(http.MethodGet, target, nil))
}

// written returns the output of a Log with the given options after the requests.
func written(t *testing.T, o Options, requests ...*observation.Observation) string {
	t.Helper()
	var out harness.Buffer
	l := mustNew(t, o, &out)
	for _, r := range requests {
		l.Observe(r)
	}
	mustClose(t, l)
	return out.String()
}

func mustNew(t testing.TB, o Options, w io.Writer) *Log {
	t.Helper()
	l, err := New(o, w)
	harness.NoError(t, err, "New")
	return l
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	harness.NoError(t, l.Close(t.Context()), "Close")
}

func TestJSONLineContainsAllFields(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/a?b=%zz", nil)
	r.Host, r.RemoteAddr = "app.example.com", "192.0.2.1:1234"
	r.Header.Set("User-Agent", `it's "me"`)
	r.Header.Set("Referer", "http://r/\\")
	o := observe(r)
	o.TraceID, o.Replayed, o.Proxied = "4bf92f3577b34da6a3ce929d0e0e4736", true, true
	got := written(t, Options{Revision: Revision{
		Name: "rev", Namespace: "ns", Service: "svc", Configuration: "cfg", PodName: "pod-1", PodIP: "10.0.0.1",
	}}, o)
	want := `{"timestamp":"2026-08-21T10:00:00.000001Z","severity":"INFO","logger":"queueproxy.request","message":"request",` +
		`"kind":"traffic","method":"POST","target":"/a?b=%zz","host":"app.example.com","protocol":"HTTP/1.1","status":200,` +
		`"grpcStatus":"","reason":"ok","phase":"streaming","cutShort":false,"reset":false,"upgraded":false,"replayed":true,"activator":true,` +
		`"requestBytes":3,"responseBytes":5,"queueMs":2.000,"appMs":8.000,"firstByteMs":5.000,"totalMs":10.000,` +
		`"remote":"192.0.2.1:1234","userAgent":"it's \"me\"","referer":"http://r/\\","traceId":"4bf92f3577b34da6a3ce929d0e0e4736",` +
		`"namespace":"ns","service":"svc","configuration":"cfg","revision":"rev","pod":"pod-1","podIp":"10.0.0.1"}` + "\n"
	harness.Equal(t, got, want, "line")
}

func TestJSONLineOfQueuedRequestContainsNull(t *testing.T) {
	o := get("/")
	o.Slot, o.FirstByte, o.Phase = time.Time{}, time.Time{}, observation.Queued
	o.Status, o.Reason, o.Begun = 503, observation.QueueFull, false
	got := written(t, Options{}, o)
	for _, want := range []string{
		`"queueMs":10.000,"appMs":null,"firstByteMs":null,"totalMs":10.000`, `"severity":"WARNING"`,
		`"reason":"queue-full","phase":"queued"`, `"traceId":""`,
	} {
		harness.Contains(t, got, want, "line")
	}
}

func TestResetOfStreamIsLogged(t *testing.T) {
	o := get("/")
	o.Status, o.Reason, o.Begun, o.Reset = 502, observation.AppReset, false, true
	harness.Contains(t, written(t, Options{}, o), `"cutShort":false,"reset":true`, "line")
}

func TestSeverityDependsOnCause(t *testing.T) {
	for reason := range observation.NumReasons {
		o := get("/")
		o.Reason = reason
		want := `"severity":"WARNING"`
		switch reason {
		case observation.OK, observation.ClientSlow, observation.BadRequest, observation.TooLarge, observation.HeadTooLarge, observation.ClientGone:
			want = `"severity":"INFO"`
		}
		harness.Contains(t, written(t, Options{}, o), want, reason)
	}
}

func TestGRPCStatusIsLogged(t *testing.T) {
	missing, failed := get("/missing"), get("/failed")
	missing.RPC, failed.RPC = observation.GRPCStatusOf(5), observation.GRPCStatusOf(14)
	harness.Contains(t, written(t, Options{}, missing), `"severity":"INFO"`, "line of a client error")
	got := written(t, Options{ErrorsOnly: true}, missing, failed)
	harness.Equal(t, strings.Count(got, "\n"), 1, "failures")
	for _, want := range []string{`"severity":"WARNING"`, `"target":"/failed"`, `"status":200,"grpcStatus":"UNAVAILABLE","reason":"ok"`} {
		harness.Contains(t, got, want, "line")
	}
}

func TestOptionsSelectRequests(t *testing.T) {
	ok, slow, failed, cut, left, refused := get("/ok"), get("/slow"), get("/failed"), get("/cut"), get("/left"), get("/refused")
	slow.End = slow.Start.Add(time.Second)
	failed.Status = 500
	cut.Reason = observation.AppReset
	left.Reason, left.Status, left.Begun = observation.ClientGone, 499, false
	refused.Status = 404
	excluded, probe, liveness := get("/excluded"), get("/probe"), get("/liveness")
	excluded.Excluded, excluded.Status = true, 500
	probe.Kind, liveness.Kind = observation.QueueProbe, observation.KubeletRequest
	all := []*observation.Observation{ok, slow, failed, cut, left, refused, excluded, probe, liveness}

	for _, c := range []struct {
		name    string
		options Options
		want    string
	}{
		{"default", Options{}, "/ok /slow /failed /cut /left /refused /liveness"},
		{"probes", Options{Probes: true}, "/ok /slow /failed /cut /left /refused /probe /liveness"},
		{"errors only", Options{ErrorsOnly: true}, "/failed /cut /left"},
		{"slower than", Options{SlowerThan: time.Second}, "/slow /failed /cut /left"},
		{"slower than, below the limit", Options{SlowerThan: time.Second + 1}, "/failed /cut /left"},
		{"errors only and slower than", Options{ErrorsOnly: true, SlowerThan: time.Second}, "/slow /failed /cut /left"},
		{"sample of one in two", Options{Sample: 2}, "/ok /failed /cut /left /refused"},
		{"slower than and sample", Options{Sample: 2, SlowerThan: time.Second}, "/ok /slow /failed /cut /left /liveness"},
		{"errors only and sample", Options{Sample: 2, ErrorsOnly: true}, "/failed /cut /left"},
		{"sample of 1", Options{Sample: 1}, "/ok /slow /failed /cut /left /refused /liveness"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Template = "{{.Request.RequestURI}}"
			got := strings.Join(strings.Fields(written(t, c.options, all...)), " ")
			harness.Equal(t, got, c.want, "logged")
		})
	}
}

// blocked is a writer that blocks until open is closed.
type blocked struct {
	harness.Buffer
	entered chan struct{}
	open    chan struct{}
}

func newBlocked() *blocked {
	return &blocked{entered: make(chan struct{}, 100), open: make(chan struct{})}
}

func (w *blocked) Write(b []byte) (int, error) {
	w.entered <- struct{}{}
	<-w.open
	return w.Buffer.Write(b)
}

func TestBlockedWriterDropsLines(t *testing.T) {
	for name, line := range map[string]int{"by lines": len("/\n"), "by bytes": 32 << 10} { // bytes per line
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newBlocked()
				l := mustNew(t, Options{Template: "{{.Request.RequestURI}}"}, w)
				o := get("/" + strings.Repeat("x", line-len("/\n")))
				l.Observe(o)
				<-w.entered // one line is being written
				began := time.Now()
				fit := min(maxLines, maxBytes/line)
				for range fit + 5 {
					l.Observe(o)
				}
				harness.Equal(t, time.Since(began), 0, "time of Observe")
				harness.Equal(t, l.Dropped(), 5, "dropped lines")
				close(w.open)
				mustClose(t, l)
				harness.Equal(t, strings.Count(w.String(), "\n"), 1+fit, "written lines")
				l.Observe(o)
				harness.Equal(t, l.Dropped(), 6, "dropped lines after Close")
			})
		})
	}
}

func TestCloseReturnsLostLinesAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBlocked()
		l := mustNew(t, Options{}, w)
		l.Observe(get("/1"))
		<-w.entered
		l.Observe(get("/2"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Close(ctx)
		harness.Contains(t, fmt.Sprint(err), "2 lines", "Close")
		close(w.open)
		mustClose(t, l) // the second Close waits for the writer
		harness.Equal(t, strings.Count(w.String(), "\n"), 2, "written lines")
	})
}

// A failingWriter returns an error after a delay.
type failingWriter time.Duration

func (w failingWriter) Write([]byte) (int, error) {
	time.Sleep(time.Duration(w)) // fake time of synctest
	return 0, errors.New("no space left")
}

func TestCloseDoesNotReportLostLinesTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []error
		l := mustNew(t, Options{Report: func(err error) { reports = append(reports, err) }}, failingWriter(1500*time.Millisecond))
		l.Observe(get("/"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		harness.Contains(t, fmt.Sprint(l.Close(ctx)), "1 lines not written", "Close")
		harness.Equal(t, reports, nil, "reports")
	})
}

func TestConcurrentLinesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBlocked()
		close(w.open)
		l := mustNew(t, Options{}, w)
		for range 100 {
			l.Observe(get("/"))
		}
		time.Sleep(2 * gather) // fake time of synctest
		synctest.Wait()
		harness.Equal(t, len(w.entered), 1, "writes")
		harness.Equal(t, strings.Count(w.String(), "\n"), 100, "lines")
		mustClose(t, l)
	})
}

// full is a disk on which the first write fails after some bytes and later writes succeed.
type full struct {
	harness.Buffer
	takes int
	err   error
	calls int
}

func (w *full) Write(b []byte) (int, error) {
	w.calls++
	if w.calls > 1 {
		return w.Buffer.Write(b)
	}
	_, _ = w.Buffer.Write(b[:w.takes])
	return w.takes, w.err
}

func TestFailedWriteDropsLines(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   int
		err     error
		want    string
		dropped uint64
	}{
		{"between lines", 3, errors.New("disk full"), "/1\n/3\n", 1},
		{"inside a line", 4, errors.New("disk full"), "/1\n/\n/3\n", 1},
		{"no output read", 0, errors.New("disk full"), "/3\n", 2},
		{"short without an error", 3, nil, "/1\n/3\n", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &full{takes: c.takes, err: c.err}
				var reports []error
				l := mustNew(t, Options{Template: "{{.Request.RequestURI}}", Report: func(err error) { reports = append(reports, err) }}, w)
				l.Observe(get("/1"))
				l.Observe(get("/2"))
				time.Sleep(2 * gather)
				l.Observe(get("/3"))
				mustClose(t, l)
				harness.Equal(t, w.String(), c.want, "written")
				harness.Equal(t, l.Dropped(), c.dropped, "dropped")
				harness.Equal(t, len(reports), 1, "reports", reports)
				want := fmt.Sprintf("%d lines dropped: %v", c.dropped, cmp.Or(c.err, io.ErrShortWrite))
				harness.Equal(t, reports[0].Error(), want, "report")
			})
		})
	}
}

// Dropped lines must be reported if the reader of the output stops and later continues, although no write fails.
func TestDroppedLinesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var reports []string
		var ends []uint64
		l := mustNew(t, Options{
			Template: "{{.Response.Code}}", // short lines, so that the number of lines limits the queue
			Report:   func(err error) { reports = append(reports, err.Error()) },
			Restored: func(dropped uint64) { ends = append(ends, dropped) },
		}, w)
		l.Observe(get("/"))
		time.Sleep(2 * gather)
		synctest.Wait() // the writer is blocked
		for range maxLines + 3 {
			l.Observe(get("/"))
		}
		time.Sleep(2 * time.Second)
		l.Observe(get("/"))
		synctest.Wait()
		harness.Equal(t, reports, []string{"3 lines dropped: output blocked: timeout"}, "reports")
		harness.Equal(t, len(ends), 0, "calls to Restored")
		go func() { _, _ = io.Copy(io.Discard, r) }()
		time.Sleep(time.Second)
		synctest.Wait()
		harness.Equal(t, ends, []uint64{4}, "dropped lines passed to Restored")
		mustClose(t, l)
		w.Close()
		harness.Equal(t, len(reports), 1, "reports", reports)
		harness.Equal(t, l.Dropped(), 4, "dropped")
	})
}

func TestConcurrentObserveWritesCompleteLines(t *testing.T) {
	var out harness.Buffer
	l := mustNew(t, Options{}, &out)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				l.Observe(get(fmt.Sprintf("/%d/%d", g, i)))
			}
		})
	}
	all.Wait()
	mustClose(t, l)
	seen := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		var v struct{ Target string }
		harness.NoError(t, json.Unmarshal([]byte(line), &v), line, "JSON")
		seen[v.Target] = true
	}
	harness.Equal(t, len(seen), 1600, "requests in the log")
}

// shared is a file to which another writer adds a line before each write.
type shared struct{ *os.File }

func (w shared) Write(b []byte) (int, error) {
	_, _ = w.WriteString("another\n")
	return w.File.Write(b)
}

// The log of the process and the spans are also written to standard output. A partial write to a pipe can end in the
// middle of a line, and another writer must not write before the rest of this line.
func TestOtherWritersDoNotSplitLines(t *testing.T) {
	for name, blocks := range map[string]bool{"blocking pipe": true, "non-blocking pipe": false} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			harness.NoError(t, err)
			defer r.Close()
			if blocks {
				w.Fd() // makes the file blocking
			}
			const lines = 1000 // several times the capacity of a pipe
			l := mustNew(t, Options{WriteNow: netconn.WriteNow}, shared{w})
			for range lines {
				l.Observe(get("/"))
			}
			go func() {
				defer w.Close()
				harness.Equal(t, l.Close(t.Context()), nil, "Close")
			}()
			ours := 0
			for in := bufio.NewScanner(r); in.Scan(); {
				switch line := in.Text(); {
				case json.Valid(in.Bytes()):
					ours++
				case line != "another":
					t.Errorf("got line %q, want a complete line", line)
				}
			}
			harness.Equal(t, ours, lines, "lines")
		})
	}
}

// writes counts calls to Write.
type writes struct {
	harness.Buffer
	n atomic.Int32
}

func (w *writes) Write(b []byte) (int, error) {
	w.n.Add(1)
	return w.Buffer.Write(b)
}

func TestLinesAreWrittenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w writes
		l := mustNew(t, Options{Template: "{{.Request.RequestURI}}"}, &w)
		const seconds, each = 3, 100
		for i := range seconds * each { // one line every 10 ms
			l.Observe(get("/x"))
			time.Sleep(time.Second / each)
			synctest.Wait()
			if late := i + 1 - strings.Count(w.String(), "\n"); late > int(gather*each/time.Second) {
				t.Fatalf("got %d queued lines after %d lines, want only the lines of the last %v", late, i+1, gather)
			}
		}
		time.Sleep(gather)
		synctest.Wait()
		harness.Equal(t, strings.Count(w.String(), "\n"), seconds*each, "lines after the last batch")
		if got, most := w.n.Load(), int32(seconds*time.Second/gather)+1; got > most {
			t.Errorf("got %d writes in %d s, want at most %d", got, seconds, most)
		}
		time.Sleep(2 * gather)
		synctest.Wait()
		mustClose(t, l)
	})
}

func TestJSONLineDoesNotAllocate(t *testing.T) {
	l := mustNew(t, Options{}, io.Discard)
	defer mustClose(t, l)
	o := get("/a?b=c")
	o.TraceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	b := make([]byte, 0, 4096)
	harness.Equal(t, testing.AllocsPerRun(100, func() { b = l.appendLine(b[:0], o) }), 0, "allocations")
}

func FuzzJSONLine(f *testing.F) {
	f.Add("GET", "/", "h", "1.2.3.4:5", "curl/7", "", "", 200, 0, int64(1000), "pod")
	f.Add("G\"T", "/\xff\n\\", "\x00", "\u2028", strings.Repeat("\x01", 5000), "é", `","x":"`, -1, 5, int64(-1), "\"")
	serving, err := newTemplate(knativeHead, &Revision{})
	harness.NoError(f, err)
	f.Fuzz(func(t *testing.T, method, target, host, remote, agent, referer, trace string, status, why int, nanos int64, pod string) {
		o := get("/")
		r := o.Exchange.Request()
		r.Method, r.RequestURI, r.Host, r.RemoteAddr = method, target, host, remote
		r.Header = http.Header{"User-Agent": {agent}, "Referer": {referer}, "Traceparent": {"00-" + trace + "-1"}}
		o.Method, o.Target, o.Host, o.Remote = method, target, host, remote
		o.TraceID, o.Status = trace, status
		o.Reason = observation.Reason(uint(why) % uint(observation.NumReasons))
		o.End = o.Start.Add(time.Duration(nanos))
		for _, made := range []*template{nil, serving} {
			l := &Log{tail: appendTail(nil, &Revision{PodName: pod}), template: made}
			line := l.appendLine(nil, o)
			if !json.Valid(line) {
				t.Errorf("got %q, want JSON", line)
			}
			if i := bytes.IndexByte(line, '\n'); i != len(line)-1 {
				t.Errorf("got a newline at %d in %q, want only one at the end", i, line)
			}
			if made == nil && len(line) > 16<<10 {
				t.Errorf("got %d bytes, want at most 16 KiB", len(line))
			}
			var v map[string]any
			harness.Equal(t, json.Unmarshal(line, &v), nil)
			if made == nil && len(host) < maxField/6 {
				checkHost(t, v["host"], host)
			}
		}
	})
}

// checkHost compares a value with the result of encoding/json, which replaces each byte of invalid UTF-8 with U+FFFD.
func checkHost(t *testing.T, got any, host string) {
	t.Helper()
	b, err := json.Marshal(host)
	harness.NoError(t, err)
	var want string
	harness.NoError(t, json.Unmarshal(b, &want))
	harness.Equal[any](t, got, want, "host")
}

func BenchmarkObserve(b *testing.B) {
	for _, c := range []struct{ name, template string }{{"JSON", ""}, {"template", knativeHead}} {
		b.Run(c.name, func(b *testing.B) {
			l := mustNew(b, Options{Template: c.template}, io.Discard)
			o := get("/a?b=c")
			b.ReportAllocs()
			for b.Loop() {
				l.Observe(o)
			}
			mustClose(b, l)
		})
	}
}
