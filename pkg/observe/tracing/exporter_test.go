package tracing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A wire records the exports of an exporter. It uses the clock of the synctest bubble.
type wire struct {
	sizes   []int                     // number of spans in each batch
	at      []time.Duration           // time of each batch, measured from the first batch
	began   time.Time                 // time of the first batch
	wait    func(ctx context.Context) // called before each response; may be nil
	answer  func(try int) error       // returns the response to an attempt; may be nil
	sent    uint64                    // number of accepted spans
	body    []byte                    // last body
	reports []error                   // errors that the exporter reported
	ends    []uint64                  // numbers of lost spans that the exporter passed to Restored
}

// start starts an exporter that sends to w.
func (w *wire) start() *exporter {
	o := &Options{Target: export.Target{Protocol: export.OTLP, Endpoint: "http://user:hunter2@collector:4318/path?key=hunter2"}}
	o.Report = func(err error) { w.reports = append(w.reports, err) }
	o.Restored = func(lost uint64) { w.ends = append(w.ends, lost) }
	e := startExporter(o, bytePerSpan{}, func(ctx context.Context, body []byte) (int, error) {
		w.body = bytes.Clone(body)
		size := len(w.body)
		if len(w.sizes) == 0 {
			w.began = time.Now()
		}
		w.sizes, w.at = append(w.sizes, size), append(w.at, time.Since(w.began))
		if w.wait != nil {
			w.wait(ctx)
		}
		if w.answer != nil {
			if err := w.answer(len(w.sizes)); err != nil {
				return 0, err
			}
		}
		w.sent += uint64(size)
		return 0, nil
	}, func() {})
	return e
}

// bytePerSpan is a format in which a span is one byte.
type bytePerSpan struct{}

func (bytePerSpan) appendSpan(b []byte, _ *record) []byte { return append(b, 's') }
func (bytePerSpan) body(spans []byte) []byte              { return spans }

// texts returns the reported errors as text.
func (w *wire) texts() (all []string) {
	for _, err := range w.reports {
		all = append(all, err.Error())
	}
	return all
}

// add exports n spans.
func add(e *exporter, n int) {
	for range n {
		e.exportSpan(&record{})
	}
}

func mustClose(t *testing.T, e *exporter) {
	t.Helper()
	harness.Equal(t, e.close(t.Context()), nil, "close")
}

func checkCounts(t *testing.T, w *wire, e *exporter, sent, dropped uint64) {
	t.Helper()
	harness.Equal(t, []uint64{w.sent, e.spans.Dropped()}, []uint64{sent, dropped}, "spans sent and dropped")
}

func TestExporterBatchesSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e := w.start()
		for range 10 {
			add(e, 3)
			time.Sleep(gather / 20) // fake time of the bubble
		}
		time.Sleep(gather)
		synctest.Wait()
		harness.Equal(t, w.sizes, []int{30}, "batches")
		add(e, maxBatch+1)
		synctest.Wait()
		harness.Equal(t, w.sizes, []int{30, maxBatch}, "batches; a full batch is sent immediately")
		mustClose(t, e)
		checkCounts(t, w, e, 30+maxBatch+1, 0)
	})
}

func TestFullSpanQueueDropsSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		w := &wire{wait: func(context.Context) { <-open }}
		e := w.start()
		add(e, maxBatch)
		synctest.Wait() // an export is running
		began := time.Now()
		add(e, maxQueued+7)
		harness.Equal(t, time.Since(began), 0, "time of exportSpan")
		checkCounts(t, w, e, 0, 7)
		close(open)
		mustClose(t, e)
		checkCounts(t, w, e, maxBatch+maxQueued, 7)
		for _, n := range w.sizes {
			if n > maxBatch {
				t.Errorf("got a batch of %d spans, want at most %d", n, maxBatch)
			}
		}
		add(e, 2)
		checkCounts(t, w, e, maxBatch+maxQueued, 9)
	})
}

func TestExporterStopsRetryingBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(int) error { return &export.Refusal{Err: errors.New("busy"), Again: true} }}
		e := w.start()
		add(e, 3)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.at) < 2 {
			t.Errorf("tries: got %d, want more than one", len(w.at))
		}
		checkCounts(t, w, e, 0, 3)
		mustClose(t, e)
	})
}

func TestExporterRetriesBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(try int) error {
			if try < 4 {
				return errors.New("connection refused")
			}
			return nil
		}}
		e := w.start()
		add(e, 3)
		time.Sleep(time.Minute)
		synctest.Wait()
		checkCounts(t, w, e, 3, 0)
		harness.Equal(t, len(w.reports), 0, "reports", w.reports, "(want none, because no span was lost)")
		mustClose(t, e)
	})
}

func TestExportErrorsAreReportedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(try int) error {
			if try == 3 {
				return nil
			}
			return &export.Refusal{Err: errors.New("bad request")}
		}}
		e := w.start()
		for range 10 {
			add(e, 1)
			time.Sleep(10 * time.Second)
		}
		mustClose(t, e)
		const to = " spans to http://collector:4318: bad request"
		harness.Equal(t, w.texts(), []string{"1" + to, "4" + to, "3" + to}, "reports")
		harness.Equal(t, w.ends, []uint64{2}, "lost spans when an export succeeded")
		checkCounts(t, w, e, 1, 9)
	})
}

// The collector is slower than the requests, but no export fails.
func TestFullSpanQueueIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{wait: func(context.Context) { time.Sleep(9 * time.Second) }}
		e := w.start()
		add(e, maxBatch)
		synctest.Wait() // an export is running
		add(e, maxQueued+7)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		harness.Equal(t, w.texts(), []string{"7 spans to http://collector:4318: the queue is full because exports are too slow"}, "reports")
		time.Sleep(time.Minute)
		synctest.Wait()
		harness.Equal(t, w.ends, []uint64{7}, "lost spans when an export succeeded")
		mustClose(t, e)
		harness.Equal(t, len(w.reports), 1, "reports", w.reports)
	})
}

// The collector is not reachable. The queue overflows before the export fails.
func TestFullSpanQueueReportContainsExportError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(int) error { return errors.New("connection refused") }}
		e := w.start()
		add(e, maxBatch)
		synctest.Wait() // the first attempt has failed
		add(e, maxQueued+7)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		harness.Equal(t, w.texts(), []string{"7 spans to http://collector:4318: connection refused"}, "reports")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = e.close(ctx)
	})
}

// The host name of an endpoint can resolve to this pod. This cannot be detected, so the effect must be limited.
func TestExportToOwnPortIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e := w.start()
		w.wait = func(context.Context) { add(e, 3) } // the export itself is traced
		add(e, 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, most := len(w.sizes), int(time.Minute/gather); got > most {
			t.Errorf("got %d exports in a minute, want %d at most", got, most)
		}
		if size := w.sizes[len(w.sizes)-1]; size > 3 {
			t.Errorf("the last export: got %d spans, want the 3 spans of the previous export", size)
		}
		w.wait = nil
		mustClose(t, e)
	})
}

func TestExporterCloseReportsLostSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{wait: func(ctx context.Context) { <-ctx.Done() }, answer: func(int) error { return context.Canceled }}
		e := w.start()
		add(e, maxBatch)
		synctest.Wait()
		add(e, 5)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		err := e.close(ctx)
		harness.Equal(t, time.Since(began), 3*time.Second, "close")
		harness.Contains(t, fmt.Sprint(err), "517 spans", "close")
		checkCounts(t, w, e, 0, maxBatch+5)
	})
}

func TestExporterCloseStopsRetryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(int) error { return &export.Refusal{Err: errors.New("busy"), Again: true, After: 20 * time.Second} }}
		e := w.start()
		add(e, 1)
		time.Sleep(2 * gather) // the delay before the retry has started
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.close(ctx); err == nil {
			t.Error("close: got no error, want one about a lost span")
		}
		checkCounts(t, w, e, 0, 1)
	})
}

func TestExporterCloseIgnoresBlockedOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		w := &wire{wait: func(context.Context) { <-open }}
		e := w.start()
		add(e, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := e.close(ctx); err == nil {
			t.Error("close: got no error, want one")
		}
		harness.Equal(t, time.Since(began), 2*time.Second, "close", "(timeout of 1s, and 1s for the last write)")
		close(open)
		mustClose(t, e)
	})
}

func TestCloseDoesNotReportLostSpansTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(int) error { return &export.Refusal{Err: errors.New("refused")} }}
		w.wait = func(ctx context.Context) {
			if len(w.sizes) > 1 {
				<-ctx.Done()
			}
		}
		e := w.start()
		add(e, maxBatch+5)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := e.close(ctx)
		harness.Equal(t, fmt.Sprint(err), "tracing: failed to send 5 spans: context deadline exceeded")
		harness.Equal(t, w.texts(), []string{"512 spans to http://collector:4318: refused"}, "reports")
		checkCounts(t, w, e, 0, maxBatch+5)
	})
}
