package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// Limits of the queue and its batches.
const (
	maxQueued = 2048        // maximum number of queued spans, which use a few MB
	maxBatch  = 512         // maximum number of spans per export
	gather    = time.Second // maximum time that a span waits for more spans
)

// An encoder encodes spans as the body of an export.
type encoder func([]*trace.SpanData) ([]byte, error)

// An exporter queues spans and sends them in batches.
type exporter struct {
	encode  encoder
	send    export.Sender
	release func() // called after the last export
	lost    message.Tally
	spans   *export.Batcher[*trace.SpanData]
}

// startExporter returns an exporter and starts its goroutine.
func startExporter(o *Options, encode encoder, send export.Sender, release func()) *exporter {
	e := &exporter{encode: encode, send: send, release: release}
	e.lost.Usual, e.lost.Restored = errSlow, o.Restored
	if endpoint, report := o.Address(), o.Report; report != nil {
		e.lost.Report = func(spans uint64, err error) { report(fmt.Errorf("%d spans to %s: %w", spans, endpoint, err)) }
	}
	e.spans = export.NewBatcher(export.BatcherOptions[*trace.SpanData]{
		MaxMessages: maxQueued, MaxBatch: maxBatch, Delay: gather, FullMessages: maxBatch, Write: e.export,
	})
	return e
}

// errSlow is the reason for a full queue.
var errSlow = errors.New("the queue is full because exports are too slow")

// ExportSpan implements [trace.Exporter]. If the queue is full, the span is dropped.
func (e *exporter) ExportSpan(s *trace.SpanData) {
	if !e.spans.Add(s) {
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
func (e *exporter) export(ctx context.Context, batch []*trace.SpanData, spans int) (lost int) {
	var body []byte
	err := ctx.Err() // do not encode a batch that cannot be sent
	if err == nil {
		body, err = e.encode(batch)
	}
	if err == nil {
		lost, err = e.send.Retry(ctx, body)
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
