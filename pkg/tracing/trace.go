package tracing

import (
	"encoding/hex"
	"math/rand/v2"
	"strings"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// A Trace follows one request, from Begin to End; its methods are called one after
// the other and not after End. The nil Trace does nothing. A *Trace is a queue.Trace;
// beware that a nil *Trace in that interface is not a nil interface.
//
// Where the request is traced, the user container is told that its parent is the span
// of the exchange with it. Where it is not, the sidecar is no hop: the client's own
// ids go on, or new ones when there are none.
type Trace struct {
	tracer  *Tracer
	parent  parent
	record  bool // it is traced: spans are made
	sampled bool // others are told that it is
	id      trace.TraceID
	server  trace.SpanID // of the whole, when it is traced
	app     trace.SpanID // of the exchange with the user container: the parent that it is told
	state   string       // the client's tracestate
	text    string       // the traceparent, of which the ids are parts
	fields  [maxFields]queue.Field
}

// maxFields is how many fields there are when all formats are written: one of W3C,
// four of B3, b3.
const maxFields = 6

// Places of the ids in a traceparent of version 00.
const (
	idAt, idEnd     = 3, 35
	spanAt, spanEnd = 36, 52
)

// Begin begins the trace of a request, which must stay as it is until End. Begin is
// not for probes, which are never traced.
func (t *Tracer) Begin(x queue.Exchange) *Trace {
	if t == nil {
		return nil
	}
	r := t.traces.Get().(*Trace)
	*r = Trace{tracer: t, parent: parentOf(x)}
	p := &r.parent
	r.id = p.id
	if p.id == (trace.TraceID{}) {
		r.id = newTraceID()
	}
	r.record = t.samples(r)
	r.sampled = r.record || p.decision >= yes
	switch {
	case r.record:
		r.server, r.app = newSpanID(), newSpanID()
		if p.w3c {
			r.state = stateOf(x)
		}
	case p.span != trace.SpanID{}:
		r.app = p.span
	default:
		r.app = newSpanID()
	}
	if line := only(x, traceparent); p.w3c && !r.record && len(line) == 55 && line[:2] == "00" && line[53:] == flagsOf(r.sampled) {
		r.text = line
	} else {
		r.text = r.makeText()
	}
	return r
}

// samples decides whether spans are made.
func (t *Tracer) samples(r *Trace) bool {
	s, d := t.options.Sampling, r.parent.decision
	if s.Follow && d != undecided || d == debug {
		return d >= yes
	}
	// A B3 id of 64 bits has nothing but zeros in its first half, on which the sampler
	// judges. W3C wants the second half to be random, and OpenTelemetry judges on it.
	var key trace.TraceID
	copy(key[:], r.id[8:])
	return t.sampler(trace.SamplingParameters{TraceID: key}).Sample
}

// makeText returns the traceparent for the user container.
func (r *Trace) makeText() string {
	var b [55]byte
	copy(b[:], "00-")
	hex.Encode(b[idAt:], r.id[:])
	b[idEnd] = '-'
	hex.Encode(b[spanAt:], r.app[:])
	b[spanEnd] = '-'
	copy(b[spanEnd+1:], flagsOf(r.sampled))
	return string(b[:])
}

func flagsOf(sampled bool) string {
	if sampled {
		return "01"
	}
	return "00"
}

// ID returns the id of the trace, 32 hexadecimal digits; "" when tracing is off. The
// string is valid until the request's memory is used again.
func (r *Trace) ID() string {
	if r == nil {
		return ""
	}
	return r.text[idAt:idEnd]
}

// Fields returns the fields that the request to the user container carries instead
// of those that Drop names. They are valid until End.
func (r *Trace) Fields() []queue.Field {
	if r == nil {
		return nil
	}
	fields := r.fields[:0]
	add := func(name, value string) { fields = append(fields, queue.Field{Name: name, Value: value}) }
	formats := r.tracer.options.Formats
	if formats&W3C != 0 {
		add(traceparent, r.text)
	}
	if formats&(B3|B3Single) == 0 {
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
	if r.record {
		server = r.server.String()
	}
	if formats&B3 != 0 {
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
	if formats&B3Single != 0 {
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
	if r == nil || name == "" {
		return false
	}
	formats := r.tracer.options.Formats
	switch name[0] | 0x20 {
	case 't':
		return formats&W3C != 0 && (strings.EqualFold(name, traceparent) || !r.parent.w3c && strings.EqualFold(name, tracestate))
	case 'b', 'x': // readers of B3 take either form, so neither may be stale
		if formats&(B3|B3Single) != 0 {
			for _, field := range [...]string{b3, b3TraceID, b3SpanID, b3ParentSpanID, b3Sampled, b3Flags} {
				if strings.EqualFold(name, field) {
					return true
				}
			}
		}
	}
	return false
}

// End sends the spans of a request that has ended, if it is traced. o is not kept.
func (r *Trace) End(o *queue.Observation) {
	if r == nil || r.tracer == nil {
		return
	}
	t := r.tracer
	if r.record {
		t.export.add(r.spans(o))
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
	for i := range id {
		id[i] = byte(n >> (8 * i))
	}
	return id
}
