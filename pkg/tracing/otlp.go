package tracing

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// Kinds of spans in OTLP (trace/v1/trace.proto, SpanKind).
const (
	kindInternal = 1
	kindServer   = 2
	kindClient   = 3
)

func otlpKind(kind int) uint64 {
	switch kind {
	case trace.SpanKindServer:
		return kindServer
	case trace.SpanKindClient:
		return kindClient
	}
	return kindInternal
}

// Flags of a span (trace/v1/trace.proto, SpanFlags).
const (
	flagSampled       = 1
	flagKnowsIsRemote = 0x100
	flagIsRemote      = 0x200
)

func otlpFlags(s *trace.SpanData) uint32 {
	flags := uint32(flagSampled | flagKnowsIsRemote)
	if s.HasRemoteParent && s.ParentSpanID != (trace.SpanID{}) {
		flags |= flagIsRemote
	}
	return flags
}

// statusError is STATUS_CODE_ERROR; without an error the status stays unset.
const statusError = 2

// nanosOf returns the times of a span in nanoseconds since 1970.
func nanosOf(s *trace.SpanData) (start, end uint64) {
	return uint64(s.StartTime.UnixNano()), uint64(s.EndTime.UnixNano())
}

// nanosWithin returns a moment of a span, as OpenCensus does its end: by the monotonic
// clock, since the wall clock may have been set in between.
func nanosWithin(s *trace.SpanData, at time.Time) uint64 {
	return uint64(s.StartTime.Add(at.Sub(s.StartTime)).UnixNano())
}

// shownAttributes returns the names of the attributes that are sent as such.
func shownAttributes(s *trace.SpanData) map[string]any {
	if _, ok := s.Attributes[stateAttribute]; !ok {
		return s.Attributes
	}
	a := maps.Clone(s.Attributes)
	delete(a, stateAttribute)
	return a
}

// stateIn returns the tracestate of a span.
func stateIn(s *trace.SpanData) string {
	state, _ := s.Attributes[stateAttribute].(string)
	return state
}

// otlpProto makes ExportTraceServiceRequests (collector/trace/v1/trace_service.proto).
func otlpProto(r *export.Resource) encoder {
	head := resourceProto(r)
	return func(spans []*trace.SpanData) ([]byte, error) {
		var m message
		m.nested(1, func(m *message) { // ResourceSpans
			*m = append(*m, head...)
			m.nested(2, func(m *message) { // ScopeSpans
				m.nested(1, scopeProto(r))
				for _, s := range spans {
					m.nested(2, func(m *message) { spanProto(m, s) })
				}
			})
		})
		return m, nil
	}
}

// resourceProto returns the resource as field 1 of a ResourceSpans or ResourceMetrics.
func resourceProto(r *export.Resource) []byte {
	var m message
	m.nested(1, func(m *message) { attributesProto(m, 1, r.All()) })
	return m
}

func scopeProto(r *export.Resource) func(*message) {
	return func(m *message) {
		m.string(1, export.ScopeName)
		m.string(2, export.Text(r.Version))
	}
}

func spanProto(m *message, s *trace.SpanData) {
	start, end := nanosOf(s)
	m.bytes(1, s.TraceID[:])
	m.bytes(2, s.SpanID[:])
	m.string(3, stateIn(s))
	if s.ParentSpanID != (trace.SpanID{}) {
		m.bytes(4, s.ParentSpanID[:])
	}
	m.string(5, s.Name)
	m.uint(6, otlpKind(s.SpanKind))
	m.fixed64(7, start)
	m.fixed64(8, end)
	attributesProto(m, 9, shownAttributes(s))
	for _, a := range s.Annotations {
		m.nested(11, func(m *message) {
			m.fixed64(1, nanosWithin(s, a.Time))
			m.string(2, a.Message)
			attributesProto(m, 3, a.Attributes)
		})
	}
	if s.Code != trace.StatusCodeOK {
		m.nested(15, func(m *message) {
			m.string(2, s.Message)
			m.uint(3, statusError)
		})
	}
	m.fixed32(16, otlpFlags(s))
}

// attributesProto writes KeyValues in the order of their names.
func attributesProto[V any](m *message, field int, attributes map[string]V) {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		m.nested(field, func(m *message) {
			m.string(1, name)
			m.nested(2, func(m *message) { valueProto(m, attributes[name]) })
		})
	}
}

// valueProto writes an AnyValue, one of whose fields is always there.
func valueProto(m *message, value any) {
	switch v := value.(type) {
	case string:
		m.stringAlways(1, v)
	case bool:
		n := uint64(0)
		if v {
			n = 1
		}
		m.uintAlways(2, n)
	case int64:
		m.uintAlways(3, uint64(v))
	case float64:
		m.doubleAlways(4, v)
	default:
		m.stringAlways(1, export.Text(fmt.Sprint(v)))
	}
}

// The same as JSON: protobuf's names in lowerCamelCase, 64-bit numbers as strings,
// ids in hexadecimal digits (OTLP 1.x, "JSON Protobuf Encoding").
type (
	jsonSpans struct {
		ResourceSpans []jsonResourceSpans `json:"resourceSpans"`
	}
	jsonResourceSpans struct {
		Resource   jsonResource     `json:"resource"`
		ScopeSpans []jsonScopeSpans `json:"scopeSpans"`
	}
	jsonResource struct {
		Attributes []jsonAttribute `json:"attributes"`
	}
	jsonScopeSpans struct {
		Scope jsonScope  `json:"scope"`
		Spans []jsonSpan `json:"spans"`
	}
	jsonScope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	jsonSpan struct {
		TraceID    string          `json:"traceId"`
		SpanID     string          `json:"spanId"`
		TraceState string          `json:"traceState,omitempty"`
		ParentID   string          `json:"parentSpanId,omitempty"`
		Name       string          `json:"name"`
		Kind       uint64          `json:"kind"`
		Start      uint64          `json:"startTimeUnixNano,string"`
		End        uint64          `json:"endTimeUnixNano,string"`
		Attributes []jsonAttribute `json:"attributes,omitempty"`
		Events     []jsonEvent     `json:"events,omitempty"`
		Status     *jsonStatus     `json:"status,omitempty"`
		Flags      uint32          `json:"flags"`
	}
	jsonEvent struct {
		Time       uint64          `json:"timeUnixNano,string"`
		Name       string          `json:"name"`
		Attributes []jsonAttribute `json:"attributes,omitempty"`
	}
	jsonStatus struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code"`
	}
	jsonAttribute struct {
		Key   string    `json:"key"`
		Value jsonValue `json:"value"`
	}
	jsonValue struct {
		String *string  `json:"stringValue,omitempty"`
		Bool   *bool    `json:"boolValue,omitempty"`
		Int    *string  `json:"intValue,omitempty"`
		Double *float64 `json:"doubleValue,omitempty"`
	}
)

// otlpJSON makes ExportTraceServiceRequests as JSON.
func otlpJSON(r *export.Resource) encoder {
	resource := jsonResource{attributesJSON(r.All())}
	scope := jsonScope{export.ScopeName, export.Text(r.Version)}
	return func(spans []*trace.SpanData) ([]byte, error) {
		all := make([]jsonSpan, len(spans))
		for i, s := range spans {
			all[i] = spanJSON(s)
		}
		return json.Marshal(jsonSpans{[]jsonResourceSpans{{resource, []jsonScopeSpans{{scope, all}}}}})
	}
}

func spanJSON(s *trace.SpanData) jsonSpan {
	start, end := nanosOf(s)
	j := jsonSpan{
		TraceID: hex.EncodeToString(s.TraceID[:]), SpanID: hex.EncodeToString(s.SpanID[:]),
		TraceState: stateIn(s), Name: s.Name, Kind: otlpKind(s.SpanKind),
		Start: start, End: end, Attributes: attributesJSON(shownAttributes(s)), Flags: otlpFlags(s),
	}
	if s.ParentSpanID != (trace.SpanID{}) {
		j.ParentID = hex.EncodeToString(s.ParentSpanID[:])
	}
	for _, a := range s.Annotations {
		j.Events = append(j.Events, jsonEvent{nanosWithin(s, a.Time), a.Message, attributesJSON(a.Attributes)})
	}
	if s.Code != trace.StatusCodeOK {
		j.Status = &jsonStatus{s.Message, statusError}
	}
	return j
}

func attributesJSON[V any](attributes map[string]V) []jsonAttribute {
	var all []jsonAttribute
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		all = append(all, jsonAttribute{name, valueJSON(attributes[name])})
	}
	return all
}

func valueJSON(value any) jsonValue {
	switch v := value.(type) {
	case string:
		return jsonValue{String: &v}
	case bool:
		return jsonValue{Bool: &v}
	case int64:
		s := strconv.FormatInt(v, 10)
		return jsonValue{Int: &s}
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return jsonValue{Double: &v}
		}
	}
	s := export.Text(fmt.Sprint(value))
	return jsonValue{String: &s}
}
