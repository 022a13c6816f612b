package tracing

import (
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"go.opencensus.io/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// otlpProto returns the encoder for OTLP/HTTP and OTLP/gRPC.
func otlpProto(r *export.Resource) encoder {
	message := tracesData(r, func(id []byte) []byte { return id })
	return func(spans []*trace.SpanData) ([]byte, error) { return proto.Marshal(message(spans)) }
}

// otlpJSON returns the encoder for OTLP in JSON (OTLP 1.x, "JSON Protobuf Encoding"). It writes
// enums as numbers and IDs as hexadecimal digits.
func otlpJSON(r *export.Resource) encoder {
	message := tracesData(r, base64OfHex)
	options := protojson.MarshalOptions{UseEnumNumbers: true}
	return func(spans []*trace.SpanData) ([]byte, error) { return options.Marshal(message(spans)) }
}

// base64OfHex returns the bytes whose base64 encoding equals the hexadecimal encoding of id. It is
// needed because protojson encodes bytes in base64. An ID has 16 or 32 hexadecimal digits, which
// are also valid base64.
func base64OfHex(id []byte) []byte {
	b, _ := base64.StdEncoding.DecodeString(hex.EncodeToString(id))
	return b
}

// tracesData returns a function that converts spans. id encodes an ID. TracesData has the same
// fields as ExportTraceServiceRequest, but the Go package of the latter depends on grpc.
func tracesData(r *export.Resource, id func([]byte) []byte) func([]*trace.SpanData) *tracepb.TracesData {
	resource, scope := r.OTLP(), r.Scope()
	return func(spans []*trace.SpanData) *tracepb.TracesData {
		all := make([]*tracepb.Span, len(spans))
		for i, s := range spans {
			all[i] = otlpSpan(s, id)
		}
		return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
			Resource: resource, ScopeSpans: []*tracepb.ScopeSpans{{Scope: scope, Spans: all}},
		}}}
	}
}

func otlpSpan(s *trace.SpanData, id func([]byte) []byte) *tracepb.Span {
	state, _ := s.Attributes[stateAttribute].(string)
	span := &tracepb.Span{
		TraceId: id(s.TraceID[:]), SpanId: id(s.SpanID[:]), TraceState: state, Name: s.Name, Kind: otlpKinds[s.SpanKind],
		StartTimeUnixNano: uint64(s.StartTime.UnixNano()), EndTimeUnixNano: uint64(s.EndTime.UnixNano()),
		Attributes: otlpAttributes(s.Attributes),
		Flags:      uint32(s.TraceOptions) | uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK),
	}
	if s.ParentSpanID != (trace.SpanID{}) { // OpenCensus sets HasRemoteParent even for a trace ID that this process created
		span.ParentSpanId = id(s.ParentSpanID[:])
		if s.HasRemoteParent {
			span.Flags |= uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
		}
	}
	for _, a := range s.Annotations {
		span.Events = append(span.Events, &tracepb.Span_Event{TimeUnixNano: uint64(timeWithin(s, a.Time).UnixNano()), Name: a.Message})
	}
	if s.Code != trace.StatusCodeOK { // without an error, the status is unset
		span.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: s.Message}
	}
	return span
}

// otlpKinds maps OpenCensus span kinds to OpenTelemetry span kinds.
var otlpKinds = map[int]tracepb.Span_SpanKind{
	trace.SpanKindUnspecified: tracepb.Span_SPAN_KIND_INTERNAL,
	trace.SpanKindServer:      tracepb.Span_SPAN_KIND_SERVER,
	trace.SpanKindClient:      tracepb.Span_SPAN_KIND_CLIENT,
}

// timeWithin returns the wall clock time of an event in a span. Like OpenCensus for the end of a
// span, it uses the monotonic clock, because the wall clock may have been set during the span.
func timeWithin(s *trace.SpanData, at time.Time) time.Time {
	return s.StartTime.Add(at.Sub(s.StartTime))
}

// otlpAttributes returns the attributes sorted by name. OpenCensus supports three value types.
func otlpAttributes(attributes map[string]any) []*commonpb.KeyValue {
	all := make([]*commonpb.KeyValue, 0, len(attributes))
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if name == stateAttribute {
			continue
		}
		value := &commonpb.AnyValue{}
		switch v := attributes[name].(type) {
		case string:
			value.Value = &commonpb.AnyValue_StringValue{StringValue: v}
		case bool:
			value.Value = &commonpb.AnyValue_BoolValue{BoolValue: v}
		case int64:
			value.Value = &commonpb.AnyValue_IntValue{IntValue: v}
		}
		all = append(all, &commonpb.KeyValue{Key: name, Value: value})
	}
	return all
}
