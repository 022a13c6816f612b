package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// Limits of the queue and its batches.
const (
	maxQueued      = 2048        // maximum number of queued spans
	maxQueuedBytes = 4 << 20     // maximum length of the encoded spans in the queue in bytes
	maxBatch       = 512         // maximum number of spans per export
	gather         = time.Second // maximum time that a span waits for more spans
)

// A format encodes spans. Each span is encoded once, when it ends, and the encoded span does not
// reference memory of the request.
type format interface {
	// appendSpan appends the encoded span in r.
	appendSpan(b []byte, r *record) []byte

	// body returns the body of an export. spans contains the encodings of one or more spans. The result may share
	// memory with spans only if the sender does not retain the body, because the caller reuses spans after the export.
	body(spans []byte) []byte
}

// An exporter queues encoded spans and sends them in batches.
type exporter struct {
	format  format
	send    export.Sender
	release func() // called after the last export
	lost    message.Tally
	attempt atomic.Pointer[error] // error of the last export attempt; nil if the attempt succeeded
	spans   *export.Batcher[byte]
}

// startExporter returns an exporter and starts its goroutine.
func startExporter(o *Options, f format, send export.Sender, release func()) *exporter {
	e := &exporter{format: f, release: release}
	e.send = func(ctx context.Context, body []byte) (int, error) {
		rejected, err := send(ctx, body)
		if err == nil {
			e.attempt.Store(nil)
		} else {
			e.attempt.Store(&err)
		}
		return rejected, err
	}
	e.lost.Usual, e.lost.Restored = errSlow, o.Restored
	if endpoint, report := o.Address(), o.Report; report != nil {
		e.lost.Report = func(spans uint64, err error) {
			if failure := e.attempt.Load(); failure != nil && errors.Is(err, errSlow) {
				err = *failure // the queue is full because the current export keeps failing
			}
			report(fmt.Errorf("%d spans to %s: %w", spans, endpoint, err))
		}
	}
	e.spans = export.NewBatcher(export.BatcherOptions[byte]{
		MaxMessages: maxQueued, MaxSize: maxQueuedBytes, MaxBatch: maxBatch, Delay: gather, FullMessages: maxBatch, Write: e.export,
	})
	return e
}

// errSlow is the default error for dropped spans. If export attempts fail, the last failure is reported
// instead.
var errSlow = errors.New("the queue is full because exports are too slow")

// exportSpan implements spanSink. If the queue is full, the span is dropped.
func (e *exporter) exportSpan(r *record) {
	r.encoded = e.format.appendSpan(r.encoded[:0], r)
	if !e.spans.Add(r.encoded...) {
		e.lost.Add(1, nil)
	}
}

// close implements [Tracer.Close].
func (e *exporter) close(ctx context.Context) error {
	defer e.release()
	defer e.lost.Flush()
	if lost, err := e.spans.Close(ctx); err != nil {
		return fmt.Errorf("tracing: failed to send %d spans: %w", lost, err)
	}
	return nil
}

// export sends a batch and returns the number of lost spans.
func (e *exporter) export(ctx context.Context, batch []byte, spans int) (lost int) {
	err := ctx.Err()
	if err == nil {
		lost, err = e.send.Retry(ctx, e.format.body(batch))
	}
	switch {
	case err != nil:
		lost = spans
	case lost == 0:
		e.lost.End()
		return 0
	default:
		lost = min(lost, spans)
		err = fmt.Errorf("%d of %d spans were rejected", lost, spans)
	}
	if ctx.Err() == nil { // otherwise close returns the number of lost spans
		e.lost.Add(uint64(lost), err)
	}
	return lost
}

// writeTo returns a sender that writes to w. A failed write is not retried, because part of the
// body may already be written.
func writeTo(w io.Writer) export.Sender {
	return func(_ context.Context, body []byte) (int, error) {
		if _, err := w.Write(body); err != nil {
			return 0, &export.Refusal{Err: err}
		}
		return 0, nil
	}
}
