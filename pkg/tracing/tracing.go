// Package tracing follows requests through the sidecar: it reads the client's trace
// from W3C or B3 fields, passes it on to the user container with a span of the sidecar as
// the parent, and sends its spans to Zipkin, to an OpenTelemetry collector or to standard
// output.
//
// Spans are OpenCensus's: started, sampled and ended by its API, and what sends them is one
// of its exporters. A request whose trace is not sampled starts none, because that would
// allocate. Header fields are read and written here: OpenCensus's packages for them take
// what the standards forbid, lose what they require, and allocate (docs/dependencies.md).
package tracing

import (
	"context"
	"fmt"
	"io"
	"sync"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// Formats is a set of ways to write a trace into header fields. All of them are
// always read, W3C first, then B3, then B3 in one field.
type Formats uint8

// The formats. None of them leaves the client's fields as they are.
const (
	inW3C      Formats = 1 << iota // traceparent; tracestate goes on unchanged
	inB3                           // X-B3-*
	inB3Single                     // b3
)

// Sampling decides which requests are traced. The zero value is none.
type Sampling struct {
	Rate   float64 // share of the traces that begin here, 0 to 1
	Follow bool    // of others the client's own decision counts, where it made one; otherwise Rate does
}

// never reports whether no request can be traced.
func (s Sampling) never() bool { return !s.Follow && !(s.Rate > 0) }

// Options are what is traced and where spans go. [ExporterConfig.Options] makes them from
// the settings of Knative and OpenTelemetry.
type Options struct {
	export.Target           // with the protocol None: nothing is traced
	Output        io.Writer // of Stdout

	Sampling Sampling
	Formats  Formats

	Limited bool // requests may have to wait for a slot: make spans of the wait
	AppPort int  // the user container's, for span attributes; 0: unknown

	// Report is called with the reason if spans are lost, at most once a minute, by a goroutine
	// of the tracer. It may be nil.
	Report func(error)
}

// A Tracer makes traces and sends their spans. A nil Tracer only supports Close. A
// Tracer is safe for concurrent use.
type Tracer struct {
	options Options
	sampler trace.Sampler
	start   []trace.StartOption // of the span of a request, which is known to be sampled
	client  []trace.StartOption // of the span of the exchange with the user container
	traces  sync.Pool           // of *Trace
	export  *exporter
}

// New starts a tracer. OpenCensus has one list of exporters, so a tracer sends the spans of
// all tracers of the process: there should be one. It returns nil when there is nothing to trace: no exporter,
// or a sampling that never samples. The error is about the exporter or its endpoint.
func New(o Options) (*Tracer, error) {
	if o.Protocol == export.None || o.Protocol == "" || o.Sampling.never() {
		return nil, nil
	}
	encode, send, release, err := route(&o)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	t := unstarted(o)
	t.export = startExporter(encode, send, release, o.Report)
	trace.RegisterExporter(t.export)
	return t, nil
}

// idGenerator replaces the generator of OpenCensus, which panics on 32-bit platforms because of an
// unaligned atomic operation.
type idGenerator struct{}

func (idGenerator) NewTraceID() [16]byte { return newTraceID() }
func (idGenerator) NewSpanID() [8]byte   { return newSpanID() }

// unstarted returns a tracer that exports nothing yet.
func unstarted(o Options) *Tracer {
	trace.ApplyConfig(trace.Config{IDGenerator: idGenerator{}})
	t := &Tracer{
		options: o,
		sampler: trace.ProbabilitySampler(o.Sampling.Rate),
		start:   []trace.StartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithSampler(trace.AlwaysSample())},
		client:  []trace.StartOption{trace.WithSpanKind(trace.SpanKindClient)},
	}
	t.traces.New = func() any { return new(Trace) }
	return t
}

// route returns how spans are encoded and sent, and what to do when no more are.
func route(o *Options) (encoder, export.Sender, func(), error) {
	if o.Protocol == export.Stdout {
		if o.Output == nil {
			return nil, nil, nil, fmt.Errorf("%s has no output", o.Protocol)
		}
		return zipkinLines(&o.Resource), writeTo(o.Output), func() {}, nil
	}
	o.Signal = export.Traces
	send, release, err := export.New(o.Target)
	encode := otlpProto
	switch o.Protocol {
	case export.Zipkin:
		encode = zipkinArray
	case export.OTLPJSON:
		encode = otlpJSON
	}
	return encode(&o.Resource), send, release, err
}

// Dropped returns the number of spans that were lost because the queue was full or an export failed.
func (t *Tracer) Dropped() uint64 { return t.export.spans.Dropped() }

// Close sends the queued spans and stops the tracer. Later spans are dropped. If ctx is done first, the
// error contains the number of spans that were not sent.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	trace.UnregisterExporter(t.export)
	return t.export.close(ctx)
}
