package tracing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"unsafe"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// A Trace is the [queue.Trace] of one request, from Begin to End.
//
// If the request is sampled, the parent of the spans of the user container is the span of its exchange.
// Otherwise, the user container receives the IDs of the client, or new IDs if the client sent none.
type Trace struct {
	tracer  *Tracer
	parent  parent
	id      trace.TraceID
	sampled bool         // the sampled flag that the user container gets
	next    trace.SpanID // the parent that the user container gets
	text    string       // the traceparent, of which the ids are parts: the client's, or made
	made    [55]byte
	fields  [maxFields]queue.Field

	// Of a request that is traced; nil otherwise.
	server *trace.Span // the whole
	wait   *trace.Span // for a slot; nil once it has one
	app    *trace.Span // the exchange with the user container; nil until then
	method method
	state  string // the client's tracestate, as spans show it
}

// maxFields is how many fields there are when all formats are written: one of W3C,
// four of B3, b3.
const maxFields = 6

// Places of the ids in a traceparent of version 00.
const (
	idAt, idEnd     = 3, 35
	spanAt, spanEnd = 36, 52
)

// Begin begins the trace of a request, which must not change until End. The tracer must not be nil.
// Probes are never traced.
func (t *Tracer) Begin(x queue.Exchange) *Trace {
	r := t.traces.Get().(*Trace)
	*r = Trace{tracer: t, parent: parentOf(x)}
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

// start starts the spans of a request that is traced.
func (r *Trace) start(x queue.Exchange) {
	r.method = methodOf(x.Line().Method)
	if r.parent.w3c {
		r.state = shownState(stateOf(x))
	}
	// Without a client's span the parent is the trace alone.
	parent := trace.SpanContext{TraceID: r.id, SpanID: r.parent.span}
	_, r.server = trace.StartSpanWithRemoteParent(context.Background(), r.method.span, parent, r.tracer.start...)
	r.addState(r.server)
	r.wait = r.child(waitName)
	r.next = r.server.SpanContext().SpanID // until there is app
}

// child starts a span below that of the request.
func (r *Trace) child(name string, o ...trace.StartOption) *trace.Span {
	_, s := trace.StartSpan(trace.NewContext(context.Background(), r.server), name, o...)
	r.addState(s)
	return s
}

func (r *Trace) addState(s *trace.Span) {
	if r.state != "" {
		s.AddAttributes(trace.StringAttribute(stateAttribute, r.state))
	}
}

// Enter ends and starts spans where a request that is traced goes from one phase to the
// next.
func (r *Trace) Enter(p queue.Phase) {
	if r.server == nil {
		return
	}
	switch p {
	case queue.Dialling: // it has its slot
		if r.tracer.options.Limited {
			r.wait.End()
		}
		r.wait = nil // and is never exported, if it has not ended
		r.app = r.child("HTTP "+r.method.span, r.tracer.client...)
		r.next = r.app.SpanContext().SpanID
		r.makeText()
	case queue.Streaming, queue.Tunnelled:
		r.app.Annotate(nil, "first byte")
	}
}

// samples decides whether spans are made.
func (t *Tracer) samples(r *Trace) bool {
	s, d := t.options.Sampling, r.parent.decision
	if s.Follow && d != undecided || d == debug {
		return d >= yes
	}
	// The sampler decides by the first half of an id, which in a B3 id of 64 bits is
	// zeros. W3C requires the second half to be random, and OpenTelemetry decides by it.
	var key trace.TraceID
	copy(key[:], r.id[8:])
	return t.sampler(trace.SamplingParameters{TraceID: key}).Sample
}

// makeText makes the traceparent for the user container, in place: it is valid until End.
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

// ID returns the ID of the trace, which has 32 hexadecimal digits. The string is valid until End.
func (r *Trace) ID() string { return r.text[idAt:idEnd] }

// Fields returns the fields that the request to the user container carries instead
// of those that Drop names. They are valid until End.
func (r *Trace) Fields() []queue.Field {
	fields := r.fields[:0]
	add := func(name, value string) { fields = append(fields, queue.Field{Name: name, Value: value}) }
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
	state, server := r.text[len(r.text)-1:], "" // 0 or 1
	if r.parent.decision == debug {
		state = "d"
	}
	if r.server != nil {
		server = r.server.SpanContext().SpanID.String()
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

// Drop reports whether a field of the client's must not be passed on: Fields writes
// another one, or it belongs to another trace. Baggage never is one.
func (r *Trace) Drop(name string) bool {
	if name == "" {
		return false
	}
	formats := r.tracer.options.Formats
	switch name[0] | 0x20 {
	case 't':
		return formats&inW3C != 0 && (strings.EqualFold(name, traceparent) || !r.parent.w3c && strings.EqualFold(name, tracestate))
	case 'b', 'x': // readers of B3 take either form, so neither may be stale
		fields := []string{b3, b3TraceID, b3SpanID, b3ParentSpanID, b3Sampled, b3Flags}
		return formats&(inB3|inB3Single) != 0 && slices.ContainsFunc(fields, func(field string) bool { return strings.EqualFold(name, field) })
	}
	return false
}

// End ends the spans of a request that has ended, if it is traced. o is not kept.
func (r *Trace) End(o *queue.Observation) {
	t := r.tracer
	if r.server != nil {
		r.endSpans(o)
	}
	*r = Trace{}
	t.traces.Put(r)
}

// newTraceID returns a random id that is not zero in either half.
func newTraceID() (id trace.TraceID) {
	a, b := newSpanID(), newSpanID()
	copy(id[:8], a[:])
	copy(id[8:], b[:])
	return id
}

// newSpanID returns a random id that is not zero.
func newSpanID() (id trace.SpanID) {
	n := rand.Uint64()
	for n == 0 {
		n = rand.Uint64()
	}
	binary.LittleEndian.PutUint64(id[:], n)
	return id
}
