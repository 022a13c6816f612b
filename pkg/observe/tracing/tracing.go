// Package tracing traces requests and exports their spans. It reads the trace context of the client
// from W3C or B3 header fields and forwards it to the user container with a span of the sidecar as
// the parent. It sends spans to Zipkin, to an OpenTelemetry collector or to standard output.
//
// The package uses the span type and the sampler of OpenCensus. It creates the spans when the request ends,
// because spans that OpenCensus starts and ends need locks and allocations. The attributes and the
// tracestate of a span are not stored in the OpenCensus type (see [record]). The package parses and
// writes header fields itself, because the OpenCensus packages for this purpose accept invalid fields,
// lose required fields and allocate (docs/dependencies.md).
package tracing

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// Formats is the set of header formats in which a trace context is written. For reading, all
// formats are supported: W3C has precedence over B3, and B3 over the single B3 header.
type Formats uint8

// Values of Formats. If none is set, the fields of the client are forwarded unchanged.
const (
	inW3C      Formats = 1 << iota // traceparent; tracestate is forwarded unchanged
	inB3                           // X-B3-*
	inB3Single                     // b3
)

// Sampling determines which requests are traced. The zero value selects no requests.
type Sampling struct {
	Rate   float64 // fraction of sampled traces, 0 to 1
	Follow bool    // use the decision of the client, if there is one, instead of Rate
}

// never reports whether s selects no requests.
func (s Sampling) never() bool { return !s.Follow && !(s.Rate > 0) }

// Options configure a tracer. [ExporterConfig.Options] derives them from the settings of Knative
// and OpenTelemetry.
type Options struct {
	export.Target           // if the protocol is None, nothing is traced
	Output        io.Writer // destination of the protocol Stdout

	Sampling Sampling
	Formats  Formats

	Limited bool // requests can wait for a slot, and have a span for the wait
	AppPort int  // port of the user container for span attributes; 0 if unknown

	// Report is called if spans are lost, at most once per minute. The error contains the number of
	// spans, the endpoint and the reason. Restored is called with the number of lost spans if an
	// export succeeds after a call to Report. Both are called on a goroutine of the tracer or by
	// Close. They may be nil.
	Report   func(error)
	Restored func(lost uint64)
}

// A Tracer creates traces and exports their spans. It is safe for concurrent use. The only method
// that supports a nil Tracer is Close.
type Tracer struct {
	options Options
	sampler trace.Sampler
	origin  string    // URL of the user container without a path
	traces  sync.Pool // contains *Trace
	export  *exporter
	sink    spanSink // receives the spans; the same as export, except in tests
}

// A spanSink exports the span in a record. It does not retain the record.
type spanSink interface{ exportSpan(r *record) }

// New starts a tracer. It returns nil if the protocol is None or the sampling selects no requests. It returns an
// error if the exporter or its endpoint is invalid.
func New(o Options) (*Tracer, error) {
	if o.Protocol == export.None || o.Protocol == "" || o.Sampling.never() {
		return nil, nil
	}
	f, send, release, err := route(&o)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	t := unstarted(o)
	t.export = startExporter(&o, f, send, release)
	t.sink = t.export
	return t, nil
}

// unstarted returns a tracer without an exporter.
func unstarted(o Options) *Tracer {
	t := &Tracer{
		options: o,
		sampler: trace.ProbabilitySampler(o.Sampling.Rate),
	}
	t.origin = "http://" + appHost
	if o.AppPort > 0 {
		t.origin = "http://" + net.JoinHostPort(appHost, strconv.Itoa(o.AppPort))
	}
	t.traces.New = func() any { return new(Trace) }
	return t
}

// route returns the format, the sender, and a function to call after the last export.
func route(o *Options) (format, export.Sender, func(), error) {
	f, err := formatOf(o.Protocol, &o.Resource)
	if err != nil {
		return nil, nil, nil, err
	}
	if o.Protocol == export.Stdout {
		if o.Output == nil {
			return nil, nil, nil, fmt.Errorf("%s has no output", o.Protocol)
		}
		return f, writeTo(o.Output), func() {}, nil
	}
	o.Signal = export.Traces
	send, release, err := export.New(o.Target)
	return f, send, release, err
}

func formatOf(p export.Protocol, r *export.Resource) (format, error) {
	switch p {
	case export.Stdout:
		f := newZipkin(r)
		f.lines = true
		return f, nil
	case export.Zipkin:
		return newZipkin(r), nil
	case export.OTLPJSON:
		return newOTLPJSON(r)
	}
	return newOTLPProto(r)
}

// Dropped returns the number of spans lost because the queue was full or an export failed.
func (t *Tracer) Dropped() uint64 { return t.export.spans.Dropped() }

// Close exports the queued spans and stops the tracer. Spans that end later are dropped. If ctx is
// done first, the error contains the number of spans that were not sent.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.export.close(ctx)
}
