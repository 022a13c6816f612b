package tracing

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"

	"go.opencensus.io/trace"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// A zipkinSpan is a span of Zipkin's v2 API (zipkin.io/zipkin-api).
type zipkinSpan struct {
	TraceID     string             `json:"traceId"`
	ParentID    string             `json:"parentId,omitempty"`
	ID          string             `json:"id"`
	Kind        string             `json:"kind,omitempty"`
	Name        string             `json:"name"`
	Timestamp   uint64             `json:"timestamp"` // microseconds since 1970
	Duration    uint64             `json:"duration"`  // microseconds, 1 or more
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

// zipkinArray makes the body of a POST to /api/v2/spans.
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

// zipkinLines makes a line for each span, of the same names and tags.
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

// zipkinLocal is the endpoint of this pod. Knative before 1.19 names the pod, not the
// service.
func zipkinLocal(r *export.Resource) *zipkinEndpoint {
	e := &zipkinEndpoint{ServiceName: export.Text(r.Pod)}
	if r.ServiceName != "" || r.Pod == "" {
		e.ServiceName = export.Text(r.Name())
	}
	e.setAddress(r.PodIP)
	return e
}

// setAddress sets an IP address; what is none is left out.
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
		z.TraceID = z.TraceID[16:] // as it came, or strict servers see another trace
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

// zipkinRemote is the peer that two attributes name; nil: they name none.
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
