package tracing

import (
	"net/netip"
	"time"

	"go.opencensus.io/trace"
)

// A record contains the parts of a span that are not stored in the OpenCensus span. It may be reused after
// the span has ended, because OpenCensus calls the exporter synchronously.
//
// OpenCensus stores attributes in a map, and copies this map when a span ends. Building and copying the map
// takes more CPU time than everything else that is done for a span. Therefore, each span has a link whose
// only attribute is the record, and the exporter reads the attributes of the span from the record. The link
// is not exported.
type record struct {
	attributes attributes
	state      string         // tracestate; OpenCensus spans have no such field
	start      time.Time      // time when the span started; zero if OpenCensus recorded it
	encoded    []byte         // last encoded span; reused for the next span
	link       map[string]any // attributes of the link; contains the record
}

// recordName is the attribute of the link.
const recordName = "record"

func newRecord() *record {
	r := &record{}
	r.link = map[string]any{recordName: r}
	return r
}

// end ends a span with the attributes of the record. It then resets the attributes and the start time.
func (r *record) end(s *trace.Span) {
	s.AddLink(trace.Link{Attributes: r.link})
	s.End()
	r.start = time.Time{}
	clear(r.attributes) // the strings reference memory of the engine
	r.attributes = r.attributes[:0]
}

// recordOf returns the record of a span, or an empty record if the span was not ended by [record.end].
func recordOf(s *trace.SpanData) *record {
	if len(s.Links) > 0 {
		if r, ok := s.Links[0].Attributes[recordName].(*record); ok {
			return r
		}
	}
	return &record{}
}

// An attribute describes a span. The value is a string, the boolean true or an integer.
type attribute struct {
	name   string
	kind   attributeKind
	text   string // only for stringKind
	number int64  // only for intKind
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

// peer returns the address and the port in two attributes. ok is false if there is no IP address.
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

// timeWithin returns the wall clock time of an event in a span. As OpenCensus does for the end of a span, it
// adds the elapsed monotonic time to the start time, because the wall clock may have been changed.
func timeWithin(s *trace.SpanData, at time.Time) time.Time {
	return s.StartTime.Add(at.Sub(s.StartTime))
}
