package tracing

import (
	"net/netip"
	"time"

	"go.opencensus.io/trace"
)

// A record contains one span. It is reused for the next span, because the exporter encodes a span before
// exportSpan returns. The record also contains the attributes, because OpenCensus stores them in a map, which is
// expensive to build for each span.
type record struct {
	span       trace.SpanData
	attributes attributes
	state      string // tracestate; OpenCensus spans have no such field
	encoded    []byte // last encoded span; reused for the next span
	events     [1]trace.Annotation
}

// event adds an event to the span. A span has at most one event.
func (r *record) event(at time.Time, message string) {
	r.events[0] = trace.Annotation{Time: at, Message: message}
	r.span.Annotations = r.events[:]
}

// reset clears the status, the event and the attributes before the next span of the request.
func (r *record) reset() {
	r.span.Status, r.span.Annotations = trace.Status{}, nil
	clear(r.attributes) // the strings reference memory of the engine
	r.attributes = r.attributes[:0]
}

// An attribute describes a span. The value is a string, the boolean true or an integer.
type attribute struct {
	name   string
	kind   attributeKind
	text   string // set only for stringKind
	number int64  // set only for intKind
}

type attributeKind uint8

const (
	stringKind attributeKind = iota
	trueKind                 // attributes that are false are omitted
	intKind
)

// attributes are the attributes of one span. Each name occurs at most once.
type attributes []attribute

// string adds a string, which must be valid UTF-8.
func (a *attributes) string(name, value string) {
	*a = append(*a, attribute{name: name, kind: stringKind, text: value})
}

func (a *attributes) int(name string, value int64) {
	*a = append(*a, attribute{name: name, kind: intKind, number: value})
}

func (a *attributes) isTrue(name string) {
	*a = append(*a, attribute{name: name, kind: trueKind})
}

// peer returns the IP address and the port in the attributes with the names address and port. ok is false if
// there is no IP address.
func (a attributes) peer(address, port string) (ip netip.Addr, number int64, ok bool) {
	for i := range a {
		switch a[i].name {
		case address:
			var err error
			ip, err = netip.ParseAddr(a[i].text)
			ok = err == nil
		case port:
			number = a[i].number
		}
	}
	return ip, number, ok
}
