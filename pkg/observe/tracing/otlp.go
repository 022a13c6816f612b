package tracing

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"

	"go.opencensus.io/trace"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// Numbers of fields and values in OTLP messages (opentelemetry/proto/trace/v1/trace.proto and
// common.proto). The generated Go types are not used, because they need more CPU time than forwarding a
// request.
const (
	// Fields of TracesData, which has the same fields as ExportTraceServiceRequest.
	resourceSpans = 1

	// Fields of ResourceSpans.
	resourceField = 1
	scopeSpans    = 2

	// Fields of ScopeSpans.
	scopeField = 1
	spansField = 2

	// Fields of Span, and values of its flags.
	traceIDField    = 1
	spanIDField     = 2
	traceStateField = 3
	parentField     = 4
	nameField       = 5
	kindField       = 6
	startField      = 7
	endField        = 8
	attributesField = 9
	eventsField     = 11
	statusField     = 15
	flagsField      = 16
	hasIsRemoteFlag = 0x100
	isRemoteFlag    = 0x200

	// Fields of Event.
	eventTimeField = 1
	eventNameField = 2

	// Fields of Status, and the code for an error.
	statusMessageField = 2
	statusCodeField    = 3
	statusError        = 2

	// Fields of KeyValue.
	keyField   = 1
	valueField = 2

	// Fields of AnyValue.
	stringValueField = 1
	boolValueField   = 2
	intValueField    = 3
)

// maxPrefix is the maximum total size, in bytes, of a message's tag and encoded length.
const maxPrefix = 1 + 5

// otlpKind returns the OTLP span kind for an OpenCensus span kind.
func otlpKind(kind int) uint64 {
	switch kind {
	case trace.SpanKindServer:
		return 2
	case trace.SpanKindClient:
		return 3
	}
	return 1 // SPAN_KIND_INTERNAL
}

// otlpFlags returns the flags of a span. It also checks the parent ID, because HasRemoteParent is set in each
// server span, even if the client sent no span ID.
func otlpFlags(s *trace.SpanData) uint32 {
	flags := uint32(s.TraceOptions) | hasIsRemoteFlag
	if s.HasRemoteParent && s.ParentSpanID != (trace.SpanID{}) {
		flags |= isRemoteFlag
	}
	return flags
}

// An otlpProto encodes spans for OTLP/HTTP and OTLP/gRPC.
type otlpProto struct {
	resource []byte // encoded field of ResourceSpans
	scope    []byte // encoded field of ScopeSpans
}

func newOTLPProto(r *export.Resource) (format, error) {
	resource, err := proto.Marshal(r.OTLP())
	if err != nil {
		return nil, err
	}
	scope, err := proto.Marshal(r.Scope())
	if err != nil {
		return nil, err
	}
	return &otlpProto{resource: appendBytes(nil, resourceField, resource), scope: appendBytes(nil, scopeField, scope)}, nil
}

func appendBytes[T string | []byte](b []byte, field protowire.Number, value T) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(value)))
	return append(b, value...)
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendFixed64(b []byte, field protowire.Number, n uint64) []byte {
	return binary.LittleEndian.AppendUint64(protowire.AppendTag(b, field, protowire.Fixed64Type), n)
}

// body implements format.
func (f *otlpProto) body(spans []byte) []byte {
	inner := len(f.scope) + len(spans)
	outer := len(f.resource) + protowire.SizeTag(scopeSpans) + protowire.SizeBytes(inner)
	b := make([]byte, 0, maxPrefix+outer)
	b = protowire.AppendVarint(protowire.AppendTag(b, resourceSpans, protowire.BytesType), uint64(outer))
	b = append(b, f.resource...)
	b = protowire.AppendVarint(protowire.AppendTag(b, scopeSpans, protowire.BytesType), uint64(inner))
	return append(append(b, f.scope...), spans...)
}

// appendSpan implements format.
func (f *otlpProto) appendSpan(b []byte, r *record) []byte {
	start, s := len(b), &r.span
	b = appendBytes(b, traceIDField, s.TraceID[:])
	b = appendBytes(b, spanIDField, s.SpanID[:])
	if r.state != "" {
		b = appendBytes(b, traceStateField, r.state)
	}
	if s.ParentSpanID != (trace.SpanID{}) {
		b = appendBytes(b, parentField, s.ParentSpanID[:])
	}
	b = appendBytes(b, nameField, s.Name)
	b = appendNumber(b, kindField, otlpKind(s.SpanKind))
	b = appendFixed64(b, startField, uint64(s.StartTime.UnixNano()))
	b = appendFixed64(b, endField, uint64(s.EndTime.UnixNano()))
	for i := range r.attributes {
		b = appendOTLPAttribute(b, &r.attributes[i])
	}
	for _, a := range s.Annotations {
		const timeSize = 1 + 8
		b = protowire.AppendTag(b, eventsField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(timeSize+1+protowire.SizeBytes(len(a.Message))))
		b = appendFixed64(b, eventTimeField, uint64(a.Time.UnixNano()))
		b = appendBytes(b, eventNameField, a.Message)
	}
	if s.Code != trace.StatusCodeOK { // without an error, the status is unset
		const codeSize = 1 + 1
		b = protowire.AppendTag(b, statusField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(len(s.Message))+codeSize))
		b = appendBytes(b, statusMessageField, s.Message)
		b = appendNumber(b, statusCodeField, statusError)
	}
	b = binary.LittleEndian.AppendUint32(protowire.AppendTag(b, flagsField, protowire.Fixed32Type), otlpFlags(s))
	var made [maxPrefix]byte
	prefix := protowire.AppendTag(made[:0], spansField, protowire.BytesType)
	return slices.Insert(b, start, protowire.AppendVarint(prefix, uint64(len(b)-start))...)
}

// appendOTLPAttribute appends an attribute. A name has at most 100 bytes. Lengths up to 127 are encoded as
// one byte. For such lengths, this code takes a third of the time that the functions in protowire take.
func appendOTLPAttribute(b []byte, a *attribute) []byte {
	const (
		attributeTag = attributesField<<3 | byte(protowire.BytesType)
		keyTag       = keyField<<3 | byte(protowire.BytesType)
		valueTag     = valueField<<3 | byte(protowire.BytesType)
		stringTag    = stringValueField<<3 | byte(protowire.BytesType)
		boolTag      = boolValueField << 3
		intTag       = intValueField << 3
	)
	n := len(a.name)
	switch a.kind {
	case stringKind:
		size := len(a.text)
		if n+size > 127-6 {
			return appendLongAttribute(b, a)
		}
		b = append(b, attributeTag, byte(n+size+6), keyTag, byte(n))
		b = append(b, a.name...)
		b = append(b, valueTag, byte(size+2), stringTag, byte(size))
		return append(b, a.text...)
	case trueKind:
		b = append(b, attributeTag, byte(n+6), keyTag, byte(n))
		b = append(b, a.name...)
		return append(b, valueTag, 2, boolTag, 1)
	}
	size := 1 + protowire.SizeVarint(uint64(a.number))
	b = append(b, attributeTag, byte(n+size+4), keyTag, byte(n))
	b = append(b, a.name...)
	b = append(b, valueTag, byte(size), intTag)
	return protowire.AppendVarint(b, uint64(a.number))
}

// appendLongAttribute appends an attribute whose value is a string.
func appendLongAttribute(b []byte, a *attribute) []byte {
	size := 1 + protowire.SizeBytes(len(a.text))
	b = protowire.AppendTag(b, attributesField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(len(a.name))+1+protowire.SizeBytes(size)))
	b = appendBytes(b, keyField, a.name)
	b = protowire.AppendVarint(protowire.AppendTag(b, valueField, protowire.BytesType), uint64(size))
	return appendBytes(b, stringValueField, a.text)
}

// An otlpJSON encodes spans for OTLP in JSON (OTLP 1.x, "JSON Protobuf Encoding"). It writes enums as
// numbers, IDs as hexadecimal digits, and 64-bit integers as strings.
type otlpJSON struct {
	start []byte // JSON text before the spans
}

func newOTLPJSON(r *export.Resource) (format, error) {
	var all attributes
	for _, a := range r.OTLP().GetAttributes() {
		all.string(a.GetKey(), a.GetValue().GetStringValue())
	}
	b := appendJSONAttributes([]byte(`{"resourceSpans":[{"resource":{"attributes":`), all)
	b = appendJSON(append(b, `},"scopeSpans":[{"scope":{"name":`...), r.Scope().GetName())
	b = appendJSON(append(b, `,"version":`...), r.Scope().GetVersion())
	return &otlpJSON{start: append(b, `},"spans":[`...)}, nil
}

// body implements format. Each span ends in a comma.
func (f *otlpJSON) body(spans []byte) []byte {
	return slices.Concat(f.start, spans[:len(spans)-1], []byte("]}]}]}"))
}

// appendSpan implements format.
func (f *otlpJSON) appendSpan(b []byte, r *record) []byte {
	s := &r.span
	b = hex.AppendEncode(append(b, `{"traceId":"`...), s.TraceID[:])
	b = hex.AppendEncode(append(b, `","spanId":"`...), s.SpanID[:])
	b = append(b, '"')
	if r.state != "" {
		b = appendJSON(append(b, `,"traceState":`...), r.state)
	}
	if s.ParentSpanID != (trace.SpanID{}) {
		b = hex.AppendEncode(append(b, `,"parentSpanId":"`...), s.ParentSpanID[:])
		b = append(b, '"')
	}
	b = appendJSON(append(b, `,"name":`...), s.Name)
	b = strconv.AppendUint(append(b, `,"kind":`...), otlpKind(s.SpanKind), 10)
	b = strconv.AppendInt(append(b, `,"startTimeUnixNano":"`...), s.StartTime.UnixNano(), 10)
	b = strconv.AppendInt(append(b, `","endTimeUnixNano":"`...), s.EndTime.UnixNano(), 10)
	b = appendJSONAttributes(append(b, `","attributes":`...), r.attributes)
	for i, a := range s.Annotations {
		b = append(b, separator(i, `,"events":[`)...)
		b = strconv.AppendInt(append(b, `{"timeUnixNano":"`...), a.Time.UnixNano(), 10)
		b = append(appendJSON(append(b, `","name":`...), a.Message), '}')
	}
	if len(s.Annotations) > 0 {
		b = append(b, ']')
	}
	if s.Code != trace.StatusCodeOK {
		b = append(appendJSON(append(b, `,"status":{"message":`...), s.Message), `,"code":2}`...)
	}
	b = strconv.AppendUint(append(b, `,"flags":`...), uint64(otlpFlags(s)), 10)
	return append(b, "},"...)
}

// appendJSONAttributes appends attributes as a JSON array.
func appendJSONAttributes(b []byte, all attributes) []byte {
	b = append(b, '[')
	for i := range all {
		a := &all[i]
		b = append(b, separator(i, "")...)
		b = appendJSON(append(b, `{"key":`...), a.name)
		switch a.kind {
		case stringKind:
			b = append(appendJSON(append(b, `,"value":{"stringValue":`...), a.text), "}}"...)
		case trueKind:
			b = append(b, `,"value":{"boolValue":true}}`...)
		case intKind:
			b = append(strconv.AppendInt(append(b, `,"value":{"intValue":"`...), a.number, 10), `"}}`...)
		}
	}
	return append(b, ']')
}

// separator returns the string before element i of a list. It is start before the first element, and a
// comma before the other elements.
func separator(i int, start string) string {
	if i == 0 {
		return start
	}
	return ","
}

// appendJSON appends s as a JSON string. s must be valid UTF-8 of at most [export.MaxText] bytes.
func appendJSON(b []byte, s string) []byte { return message.AppendJSONString(b, s, maxEscaped) }

// maxEscaped is the maximum length of an escaped string in bytes. An escape sequence has at most 6 bytes.
const maxEscaped = 6 * export.MaxText
