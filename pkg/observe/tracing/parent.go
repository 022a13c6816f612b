package tracing

import (
	"encoding/hex"
	"strings"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// Header fields that carry trace contexts, in canonical form.
const (
	traceparent    = "Traceparent"
	tracestate     = "Tracestate"
	b3             = "B3"
	b3TraceID      = "X-B3-Traceid"
	b3SpanID       = "X-B3-Spanid"
	b3ParentSpanID = "X-B3-Parentspanid"
	b3Sampled      = "X-B3-Sampled"
	b3Flags        = "X-B3-Flags"
)

// decision is the sampling decision of the client.
type decision uint8

const (
	undecided decision = iota
	no
	yes
	debug // B3 debug flag: sampled, and all following services must sample too
)

// A parent contains the trace context that a client sent.
type parent struct {
	id       trace.TraceID // zero if the client sent no trace ID
	span     trace.SpanID
	decision decision
	w3c      bool // received as traceparent
	short    bool // the B3 trace ID has 64 bits
}

// parentOf reads the trace context of the client. If the fields of a format are not strictly valid,
// they are ignored and the next format is tried, so that a request never joins the wrong trace.
func parentOf(x transport.Request) parent {
	if p, ok := parseTraceparent(only(x, traceparent)); ok {
		return p
	}
	sampled := b3Decision(only(x, b3Flags), only(x, b3Sampled))
	if p, ok := parseB3(only(x, b3TraceID), only(x, b3SpanID), sampled); ok {
		return p
	}
	if p, ok := parseB3Single(only(x, b3)); ok {
		return p
	}
	return parent{decision: sampled} // B3 can contain a decision without a trace ID
}

// only returns the value of a header field, or "" if the field is repeated.
func only(x transport.Request, name string) string {
	value := x.Header(name)
	if value != "" && x.Repeats(name) {
		return ""
	}
	return value
}

// stateOf returns the tracestate of the client. The field can have several lines (W3C Trace Context
// 3.3.1.1).
func stateOf(x transport.Request) string {
	if !x.Repeats(tracestate) {
		return x.Header(tracestate)
	}
	return strings.Join(x.Request().Header[tracestate], ",")
}

// parseTraceparent parses a traceparent of version 00. For later versions, it parses the part that
// is defined to be compatible (W3C Trace Context 3.2.2 and 3.3).
func parseTraceparent(s string) (p parent, ok bool) {
	const length = len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	var version, flags [1]byte
	switch {
	case len(s) < length || s[2] != '-' || s[35] != '-' || s[52] != '-',
		strings.ContainsAny(s[:length], "ABCDEF"),
		!decode(version[:], s[0:2]) || version[0] == 0xff,
		len(s) > length && (version[0] == 0 || s[length] != '-'),
		!decode(p.id[:], s[3:35]) || !decode(p.span[:], s[36:52]) || !decode(flags[:], s[53:55]),
		p.id == trace.TraceID{} || p.span == trace.SpanID{}:
		return p, false
	}
	p.w3c, p.decision = true, no
	if flags[0]&1 != 0 {
		p.decision = yes
	}
	return p, true
}

// b3Decision parses X-B3-Flags and X-B3-Sampled. X-B3-Flags has precedence. The values true and
// false are older than 1 and 0 but still in use.
func b3Decision(flags, sampled string) decision {
	switch {
	case flags == "1":
		return debug
	case sampled == "1", sampled == "true":
		return yes
	case sampled == "0", sampled == "false":
		return no
	}
	return undecided
}

// parseB3 parses B3 IDs. A trace ID has 64 or 128 bits, and a span ID has 64 bits.
func parseB3(id, span string, d decision) (p parent, ok bool) {
	p.decision, p.short = d, len(id) == 16
	if !p.short && len(id) != 32 || len(span) != 16 {
		return p, false
	}
	ok = decode(p.id[16-len(id)/2:], id) && decode(p.span[:], span)
	return p, ok && p.id != (trace.TraceID{}) && p.span != (trace.SpanID{})
}

// b3States contains the sampling states of the single B3 header.
var b3States = map[string]decision{"0": no, "1": yes, "d": debug}

// parseB3Single parses the single B3 header. Its form is trace-span, trace-span-state,
// trace-span-state-parent or state.
func parseB3Single(s string) (p parent, ok bool) {
	if len(s) == 1 {
		d, ok := b3States[s]
		return parent{decision: d}, ok
	}
	id, rest, _ := strings.Cut(s, "-")
	span, rest, more := strings.Cut(rest, "-")
	d := undecided
	if more {
		state, grandparent, more := strings.Cut(rest, "-")
		if d, ok = b3States[state]; !ok {
			return p, false
		}
		var ignored trace.SpanID
		if more && (len(grandparent) != 16 || !decode(ignored[:], grandparent)) {
			return p, false
		}
	}
	return parseB3(id, span, d)
}

// decode decodes hexadecimal digits into b. It returns false if s is invalid.
func decode(b []byte, s string) bool {
	_, err := hex.Decode(b, []byte(s))
	return err == nil
}
