package tracing

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// A zipkinSpan is a span of the Zipkin v2 API (zipkin.io/zipkin-api).
type zipkinSpan struct {
	TraceID     string             `json:"traceId"`
	ParentID    string             `json:"parentId,omitempty"`
	ID          string             `json:"id"`
	Kind        string             `json:"kind,omitempty"`
	Name        string             `json:"name"`
	Timestamp   uint64             `json:"timestamp"` // microseconds since 1970
	Duration    uint64             `json:"duration"`  // microseconds, at least 1
	Local       *zipkinEndpoint    `json:"localEndpoint,omitempty"`
	Remote      *zipkinEndpoint    `json:"remoteEndpoint,omitempty"`
	Annotations []zipkinAnnotation `json:"annotations,omitempty"`
	Tags        map[string]string  `json:"tags,omitempty"`
}

type zipkinEndpoint struct {
	ServiceName string `json:"serviceName,omitempty"`
	IPv4        string `json:"ipv4,omitempty"`
	IPv6        string `json:"ipv6,omitempty"`
	Port        uint16 `json:"port,omitempty"`
}

type zipkinAnnotation struct {
	Timestamp uint64 `json:"timestamp"`
	Value     string `json:"value"`
}

// zipkinArray returns the encoder for the body of a POST to /api/v2/spans.
func zipkinArray(r *export.Resource) encoder {
	local := zipkinLocal(r)
	return func(spans []*trace.SpanData) ([]byte, error) {
		all := make([]zipkinSpan, len(spans))
		for i, s := range spans {
			all[i] = zipkinOf(s, local)
		}
		return json.Marshal(all)
	}
}

// zipkinLines returns an encoder that writes one line of JSON for each span.
func zipkinLines(r *export.Resource) encoder {
	local := zipkinLocal(r)
	return func(spans []*trace.SpanData) ([]byte, error) {
		var b bytes.Buffer
		for _, s := range spans {
			if err := json.NewEncoder(&b).Encode(zipkinOf(s, local)); err != nil {
				return nil, err
			}
		}
		return b.Bytes(), nil
	}
}

// zipkinLocal returns the endpoint of this pod. If no service name is set, it contains the pod
// name, as in Knative before 1.19.
func zipkinLocal(r *export.Resource) *zipkinEndpoint {
	e := &zipkinEndpoint{ServiceName: export.Text(r.Pod)}
	if r.ServiceName != "" || r.Pod == "" {
		e.ServiceName = export.Text(r.Name())
	}
	e.setAddress(r.PodIP)
	return e
}

// setAddress sets the IP address. If s is not an IP address, it does nothing.
func (e *zipkinEndpoint) setAddress(s string) {
	ip, err := netip.ParseAddr(s)
	switch {
	case err != nil:
	case ip.Unmap().Is4():
		e.IPv4 = ip.Unmap().String()
	default:
		e.IPv6 = ip.WithZone("").String()
	}
}

func zipkinOf(s *trace.SpanData, local *zipkinEndpoint) zipkinSpan {
	start, end := uint64(s.StartTime.UnixMicro()), uint64(s.EndTime.UnixMicro())
	z := zipkinSpan{
		TraceID: hex.EncodeToString(s.TraceID[:]), ID: hex.EncodeToString(s.SpanID[:]), Name: s.Name,
		Timestamp: start, Duration: max(end-start, 1), Local: local,
	}
	if [8]byte(s.TraceID[:8]) == ([8]byte{}) {
		z.TraceID = z.TraceID[16:] // keep the 64-bit form, because some servers treat the padded ID as another trace
	}
	if s.ParentSpanID != (trace.SpanID{}) {
		z.ParentID = hex.EncodeToString(s.ParentSpanID[:])
	}
	switch s.SpanKind {
	case trace.SpanKindServer:
		z.Kind = "SERVER"
		z.Remote = zipkinRemote(s, "network.peer.address", "network.peer.port")
	case trace.SpanKindClient:
		z.Kind = "CLIENT"
		z.Remote = zipkinRemote(s, "server.address", "server.port")
	}
	for _, a := range s.Annotations {
		z.Annotations = append(z.Annotations, zipkinAnnotation{uint64(timeWithin(s, a.Time).UnixMicro()), a.Message})
	}
	z.Tags = make(map[string]string, len(s.Attributes)+1)
	for name, value := range s.Attributes {
		if name != stateAttribute {
			z.Tags[name] = fmt.Sprint(value)
		}
	}
	if s.Code != trace.StatusCodeOK {
		z.Tags["error"] = s.Message
	}
	return z
}

// zipkinRemote returns the peer from two attributes, or nil if they contain no IP address.
func zipkinRemote(s *trace.SpanData, address, port string) *zipkinEndpoint {
	var e zipkinEndpoint
	host, _ := s.Attributes[address].(string)
	if e.setAddress(host); e == (zipkinEndpoint{}) {
		return nil
	}
	if n, ok := s.Attributes[port].(int64); ok {
		e.Port = uint16(n)
	}
	return &e
}
