package tracing

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// A zipkin encodes spans for the Zipkin v2 API (zipkin.io/zipkin-api).
type zipkin struct {
	local string // value of localEndpoint in JSON
	lines bool   // write one line for each span, instead of the body of a POST to /api/v2/spans
}

// newZipkin returns the format for a POST to /api/v2/spans. If no service name is set, localEndpoint
// contains the pod name, as in Knative before 1.19.
func newZipkin(r *export.Resource) *zipkin {
	name := export.Text(r.Pod)
	if r.ServiceName != "" || r.Pod == "" {
		name = export.Text(r.Name())
	}
	b := []byte("{")
	if name != "" {
		b = appendJSON(append(b, `"serviceName":`...), name)
	}
	if ip, err := netip.ParseAddr(r.PodIP); err == nil {
		if name != "" {
			b = append(b, ',')
		}
		b = appendZipkinAddress(b, ip)
	}
	return &zipkin{local: string(append(b, '}'))}
}

// appendZipkinAddress appends the field of an endpoint for an IP address.
func appendZipkinAddress(b []byte, ip netip.Addr) []byte {
	if ip = ip.Unmap().WithZone(""); ip.Is4() {
		b = append(b, `"ipv4":"`...)
	} else {
		b = append(b, `"ipv6":"`...)
	}
	return append(ip.AppendTo(b), '"')
}

// body implements format. Each span ends in a comma or in a line feed.
func (f *zipkin) body(spans []byte) []byte {
	if f.lines {
		return spans // writeTo does not retain the body
	}
	return slices.Concat([]byte("["), spans[:len(spans)-1], []byte("]"))
}

// appendSpan implements format. Times are in microseconds, and a duration is at least 1.
func (f *zipkin) appendSpan(b []byte, r *record) []byte {
	s := &r.span
	start, end := s.StartTime.UnixMicro(), s.EndTime.UnixMicro()
	id := s.TraceID[:]
	if [8]byte(id[:8]) == ([8]byte{}) {
		id = id[8:] // keep the 64-bit form, because some servers treat the padded ID as another trace
	}
	b = hex.AppendEncode(append(b, `{"traceId":"`...), id)
	if s.ParentSpanID != (trace.SpanID{}) {
		b = hex.AppendEncode(append(b, `","parentId":"`...), s.ParentSpanID[:])
	}
	b = hex.AppendEncode(append(b, `","id":"`...), s.SpanID[:])
	switch s.SpanKind {
	case trace.SpanKindServer:
		b = append(b, `","kind":"SERVER`...)
	case trace.SpanKindClient:
		b = append(b, `","kind":"CLIENT`...)
	}
	b = appendJSON(append(b, `","name":`...), s.Name)
	b = strconv.AppendInt(append(b, `,"timestamp":`...), start, 10)
	b = strconv.AppendInt(append(b, `,"duration":`...), max(end-start, 1), 10)
	b = append(append(b, `,"localEndpoint":`...), f.local...)
	b = appendZipkinRemote(b, r.attributes, s.SpanKind)
	for i, a := range s.Annotations {
		b = append(b, separator(i, `,"annotations":[`)...)
		b = strconv.AppendInt(append(b, `{"timestamp":`...), a.Time.UnixMicro(), 10)
		b = append(appendJSON(append(b, `,"value":`...), a.Message), '}')
	}
	if len(s.Annotations) > 0 {
		b = append(b, ']')
	}
	b = appendZipkinTags(b, r.attributes, s)
	if f.lines {
		return append(b, "}\n"...)
	}
	return append(b, "},"...)
}

// appendZipkinRemote appends the address of the client or of the user container, if it is an IP address.
func appendZipkinRemote(b []byte, all attributes, kind int) []byte {
	var ip netip.Addr
	var port int64
	var ok bool
	switch kind {
	case trace.SpanKindServer:
		ip, port, ok = all.peer("network.peer.address", "network.peer.port")
	case trace.SpanKindClient:
		ip, port, ok = all.peer("server.address", "server.port")
	}
	if !ok {
		return b
	}
	b = appendZipkinAddress(append(b, `,"remoteEndpoint":{`...), ip)
	if port > 0 {
		b = strconv.AppendInt(append(b, `,"port":`...), port, 10)
	}
	return append(b, '}')
}

// appendZipkinTags appends the attributes and the error.
func appendZipkinTags(b []byte, all attributes, s *trace.SpanData) []byte {
	failed := s.Code != trace.StatusCodeOK
	if len(all) == 0 && !failed {
		return b
	}
	b = append(b, `,"tags":{`...)
	for i := range all {
		a := &all[i]
		b = append(appendJSON(append(b, separator(i, "")...), a.name), ':')
		switch a.kind {
		case stringKind:
			b = appendJSON(b, a.text)
		case trueKind:
			b = append(b, `"true"`...)
		case intKind:
			b = append(strconv.AppendInt(append(b, '"'), a.number, 10), '"')
		}
	}
	if failed {
		b = appendJSON(append(append(b, separator(len(all), "")...), `"error":`...), s.Message)
	}
	return append(b, '}')
}
