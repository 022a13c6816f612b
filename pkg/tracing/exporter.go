package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// Bounds of the queue and its batches.
const (
	maxQueued = 2048        // spans that wait: a few MB at the most
	maxBatch  = 512         // spans sent at once
	gather    = time.Second // how long a span waits for others to be sent with
)

// An encoder makes the body of one export.
type encoder func([]*trace.SpanData) ([]byte, error)

// An exporter holds spans until its goroutine has sent them.
type exporter struct {
	encode  encoder
	send    export.Sender
	release func()      // called when nothing is sent any more
	report  func(error) // may be nil
	queue   chan *trace.SpanData
	dropped atomic.Uint64
	outcome export.Outcome // of run alone

	mu     sync.RWMutex       // between ExportSpan and close, so that nothing is sent to a closed queue
	closed bool               // the queue is
	cut    context.CancelFunc // ends what runs
	done   chan struct{}
}

// startExporter starts the goroutine that sends.
func startExporter(encode encoder, send export.Sender, release func(), report func(error)) *exporter {
	ctx, cut := context.WithCancel(context.Background())
	e := &exporter{
		encode: encode, send: send, release: release, report: report, cut: cut,
		queue: make(chan *trace.SpanData, maxQueued), done: make(chan struct{}),
	}
	go e.run(ctx)
	return e
}

// ExportSpan implements [trace.Exporter]. It takes the span, or drops it if there is no
// place. It never waits.
func (e *exporter) ExportSpan(s *trace.SpanData) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.closed {
		select {
		case e.queue <- s:
			return
		default:
		}
	}
	e.dropped.Add(1)
}

// close is [Tracer.Close].
func (e *exporter) close(ctx context.Context) error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.queue)
	}
	e.mu.Unlock()
	before := e.dropped.Load()
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		e.cut()
	}
	// A sender ends with its context, but a write to a standard output that is not read does not.
	select {
	case <-e.done:
	case <-time.After(time.Second):
		return errors.New("tracing: the output takes nothing")
	}
	if lost := e.dropped.Load() - before; lost > 0 {
		return fmt.Errorf("tracing: %d spans were not sent: %w", lost, context.Cause(ctx))
	}
	return nil
}

// run sends what comes until close, and then what is left.
func (e *exporter) run(ctx context.Context) {
	defer close(e.done)
	defer e.cut()
	defer e.release()
	var batch []*trace.SpanData
	timer := time.NewTimer(0)
	defer timer.Stop()
	for s := range e.queue {
		batch = append(batch, s)
		timer.Reset(gather)
		for waiting := true; waiting && len(batch) < maxBatch; {
			select {
			case s, waiting = <-e.queue:
				if waiting {
					batch = append(batch, s)
				}
			case <-timer.C:
				waiting = false
			}
		}
		batch = e.deliver(ctx, batch)
	}
}

// deliver sends a batch, again and again while there is hope, and counts what became
// of it. It returns the memory for the next one.
func (e *exporter) deliver(ctx context.Context, batch []*trace.SpanData) []*trace.SpanData {
	rejected := len(batch)
	var body []byte
	err := ctx.Err() // what cannot be sent any more need not be encoded
	if err == nil {
		body, err = e.encode(batch)
	}
	if err == nil {
		rejected, err = e.send.Retry(ctx, body)
		if err != nil {
			rejected = len(batch)
		} else if rejected > 0 {
			rejected = min(rejected, len(batch))
			err = fmt.Errorf("%d of %d spans were refused", rejected, len(batch))
		}
	}
	e.dropped.Add(uint64(rejected))
	if e.outcome.IsNews(err) && e.report != nil {
		e.report(fmt.Errorf("tracing: %w; spans are lost", err))
	}
	clear(batch)
	return batch[:0]
}

// writeTo sends to a stream: standard output. What is refused is not tried again, for
// a part of it may have been written.
func writeTo(w io.Writer) export.Sender {
	return func(_ context.Context, body []byte) (int, error) {
		if _, err := w.Write(body); err != nil {
			return 0, &export.Refusal{Err: err}
		}
		return 0, nil
	}
}
