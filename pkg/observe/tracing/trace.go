package tracing

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
	"unsafe"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// A Trace implements proxy.Trace for one request, from Begin to End.
//
// If the request is traced, the spans of the user container are children of the span for the exchange with the
// user container. Otherwise, the user container receives the IDs of the client, or new IDs if the client sent none.
type Trace struct {
	tracer  *Tracer
	parent  parent
	id      trace.TraceID
	sampled bool         // value of the sampled flag that the user container receives
	next    trace.SpanID // parent span ID that the user container receives
	text    string       // traceparent that contains the IDs; either the value received from the client, or the value in made
	made    [55]byte
	fields  [maxFields]transport.Field

	record *record // span that is being encoded; nil until the first request is traced, and then reused

	// The following fields are set only if the request is traced.
	traced  bool
	server  trace.SpanID // ID of the span of the complete request
	began   time.Time    // start of the request
	dialled time.Time    // start of the exchange with the user container; zero before the exchange
	first   time.Time    // first byte of the response of the user container; zero before the response
	method  method
	hexID   [16]byte // ID of the server span as hexadecimal digits
}

// maxFields is the number of fields if all formats are written: traceparent, four B3 fields and b3.
const maxFields = 6

// Offsets of the IDs in a version 00 traceparent.
const (
	idAt, idEnd     = 3, 35
	spanAt, spanEnd = 36, 52
)

// Begin starts the trace of a request. x must not change until End. t must not be nil. Package proxy
// does not call Begin for probes.
func (t *Tracer) Begin(x transport.Request) *Trace {
	r := t.traces.Get().(*Trace)
	r.tracer, r.parent = t, parentOf(x)
	p := &r.parent
	r.id = p.id
	if p.id == (trace.TraceID{}) {
		r.id = newTraceID()
	}
	record := t.samples(r)
	r.sampled = record || p.decision >= yes
	switch {
	case record:
		r.start(x)
	case p.span != trace.SpanID{}:
		r.next = p.span
	default:
		r.next = newSpanID()
	}
	if line := only(x, traceparent); p.w3c && !record && len(line) == 55 && line[:2] == "00" && line[53:] == flagsOf(r.sampled) {
		r.text = line
	} else {
		r.makeText()
	}
	return r
}

// start records the start of a traced request. End creates the spans, because starting and ending a span
// with OpenCensus takes more CPU time than encoding the span.
func (r *Trace) start(x transport.Request) {
	r.method = methodOf(x.Line().Method)
	if r.record == nil {
		r.record = new(record)
	}
	if r.parent.w3c {
		r.record.state = shownState(stateOf(x))
	}
	r.traced, r.began = true, time.Now()
	r.server = newSpanID()
	r.next = r.server // until the exchange begins
	hex.Encode(r.hexID[:], r.server[:])
}

// now returns the start of the request plus the elapsed monotonic time, because the wall clock may have been
// changed.
func (r *Trace) now() time.Time { return r.began.Add(time.Since(r.began)) }

// Enter records the time at which a traced request enters a phase.
func (r *Trace) Enter(p observation.Phase) {
	if !r.traced {
		return
	}
	switch p {
	case observation.Dialling: // the request holds a slot
		r.dialled = r.now()
		r.next = newSpanID()
		r.makeText()
	case observation.Streaming, observation.Tunnelled:
		if r.first.IsZero() {
			r.first = r.now()
		}
	}
}

// samples reports whether the request is traced.
func (t *Tracer) samples(r *Trace) bool {
	s, d := t.options.Sampling, r.parent.decision
	if s.Follow && d != undecided || d == debug {
		return d >= yes
	}
	// The sampler uses the first 8 bytes of an ID, which are zero in a 64-bit B3 ID. W3C requires
	// only the last bytes to be random, and OpenTelemetry samples by these bytes.
	var key trace.TraceID
	copy(key[:], r.id[8:])
	return t.sampler(trace.SamplingParameters{TraceID: key}).Sample
}

// makeText builds the traceparent for the user container in r.made. r.text is valid until End.
func (r *Trace) makeText() {
	b := r.made[:]
	copy(b, "00-")
	hex.Encode(b[idAt:], r.id[:])
	b[idEnd] = '-'
	hex.Encode(b[spanAt:], r.next[:])
	b[spanEnd] = '-'
	copy(b[spanEnd+1:], flagsOf(r.sampled))
	r.text = unsafe.String(&b[0], len(b))
}

func flagsOf(sampled bool) string {
	if sampled {
		return "01"
	}
	return "00"
}

// ID returns the trace ID as 32 hexadecimal digits. The string is valid until End.
func (r *Trace) ID() string { return r.text[idAt:idEnd] }

// Sampled reports whether the spans of the request are exported.
func (r *Trace) Sampled() bool { return r.traced }

// Fields returns the header fields to add to the request to the user container. They replace the
// fields for which Drop returns true. The strings are valid until End.
func (r *Trace) Fields() []transport.Field {
	fields := r.fields[:0]
	add := func(name, value string) { fields = append(fields, transport.Field{Name: name, Value: value}) }
	formats := r.tracer.options.Formats
	if formats&inW3C != 0 {
		add(traceparent, r.text)
	}
	if formats&(inB3|inB3Single) == 0 {
		return fields
	}
	id, span := r.text[idAt:idEnd], r.text[spanAt:spanEnd]
	if r.parent.short {
		id = id[16:]
	}
	state, server := r.text[len(r.text)-1:], "" // state is the sampled flag, 0 or 1
	if r.parent.decision == debug {
		state = "d"
	}
	if r.traced {
		server = unsafe.String(&r.hexID[0], len(r.hexID))
	}
	if formats&inB3 != 0 {
		add(b3TraceID, id)
		add(b3SpanID, span)
		if server != "" {
			add(b3ParentSpanID, server)
		}
		if state == "d" {
			add(b3Flags, "1")
		} else {
			add(b3Sampled, state)
		}
	}
	if formats&inB3Single != 0 {
		value := id + "-" + span + "-" + state
		if server != "" {
			value += "-" + server
		}
		add(b3, value)
	}
	return fields
}

// Drop reports whether a header field of the client must not be forwarded, because Fields replaces
// it or because it belongs to another trace. Baggage is always forwarded.
func (r *Trace) Drop(name string) bool {
	if name == "" {
		return false
	}
	formats := r.tracer.options.Formats
	switch name[0] | 0x20 {
	case 't':
		return formats&inW3C != 0 && (strings.EqualFold(name, traceparent) || !r.parent.w3c && strings.EqualFold(name, tracestate))
	case 'b', 'x': // a receiver may read either form of B3, so both are replaced
		fields := []string{b3, b3TraceID, b3SpanID, b3ParentSpanID, b3Sampled, b3Flags}
		return formats&(inB3|inB3Single) != 0 && slices.ContainsFunc(fields, func(field string) bool { return strings.EqualFold(name, field) })
	}
	return false
}

// End exports the spans of a completed request if it is traced. It does not retain o.
func (r *Trace) End(o *observation.Observation) {
	t := r.tracer
	if r.traced {
		r.exportSpans(o)
	}
	if r.record != nil {
		r.record.state = "" // the string references memory of the engine
	}
	*r = Trace{record: r.record}
	t.traces.Put(r)
}

// newTraceID returns a random ID. Both halves are nonzero.
func newTraceID() (id trace.TraceID) {
	a, b := newSpanID(), newSpanID()
	copy(id[:8], a[:])
	copy(id[8:], b[:])
	return id
}

// newSpanID returns a random nonzero ID.
func newSpanID() (id trace.SpanID) {
	n := rand.Uint64()
	for n == 0 {
		n = rand.Uint64()
	}
	binary.LittleEndian.PutUint64(id[:], n)
	return id
}
