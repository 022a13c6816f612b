package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// ObservabilityConfig is the configuration of the request log, metrics and traces in Knative 1.19 and
// later.
type ObservabilityConfig struct {
	EnableRequestLog      bool   `json:"enableRequestLog"`
	EnableProbeRequestLog bool   `json:"enableProbeRequestLog"`
	RequestLogTemplate    string `json:"requestLogTemplate"`
	RequestMetrics        struct {
		Protocol       string        `json:"protocol"` // prometheus, none, or an OTLP protocol
		Endpoint       string        `json:"endpoint"`
		ExportInterval time.Duration `json:"exportInterval"` // in nanoseconds
	} `json:"requestMetrics"`
	Tracing struct {
		Protocol     string  `json:"protocol"` // none, stdout, zipkin, or an OTLP protocol
		Endpoint     string  `json:"endpoint"`
		SamplingRate float64 `json:"samplingRate"`
	} `json:"tracing"`

	text string
}

// isSet reports whether the variable is set, even to an empty object.
func (o *ObservabilityConfig) isSet() bool { return o.text != "" }

// Observability is a JSON object. Any other value is replaced with an empty object, because the presence
// of the variable indicates Knative 1.19 or later.
type Observability struct{ Value[ObservabilityConfig] }

func (*Observability) allowed() string  { return "a JSON object" }
func (o *Observability) String() string { return o.V.text }

func (o *Observability) parse(text string) error {
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &members) != nil || members == nil {
		o.V = ObservabilityConfig{text: "{}"}
		return errNotAllowed
	}
	o.V = ObservabilityConfig{text: text}
	if err := json.Unmarshal([]byte(text), &o.V); err != nil { // members with the correct type are set even if Unmarshal returns an error
		o.warn("%s; the member is ignored", describeType(err))
	}
	return nil
}

// maxNumber is the maximum length in bytes of a number in a message.
const maxNumber = 40

// describeType rewrites the error that package json returns for a member with the wrong type. It
// uses the JSON names and types instead of the Go names and types.
func describeType(err error) string {
	e, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err.Error()
	}
	want := map[reflect.Kind]string{
		reflect.String: "a string", reflect.Bool: "a boolean", reflect.Float64: "a number", reflect.Int64: "a number of nanoseconds",
	}[e.Type.Kind()]
	kind, number, _ := strings.Cut(e.Value, " ") // for a number that is out of range, Value is "number", a space and the number
	got := map[string]string{"string": "a string", "bool": "a boolean", "number": "a number", "array": "an array", "object": "an object"}[kind]
	if number != "" {
		got = message.Truncate(number, maxNumber)
	}
	return fmt.Sprintf("%s: got %s, want %s", e.Field, got, cmp.Or(want, "an object"))
}

// shown returns the object without the secrets of its endpoints. It decodes the object only if it
// contains a character that can precede a secret, because decoding takes 5 % of the CPU time at
// startup.
func (o *Observability) shown() string {
	if !strings.ContainsAny(o.V.text, `@?#\`) {
		return o.V.text
	}
	var object map[string]any
	d := json.NewDecoder(strings.NewReader(o.V.text))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		return hidden
	}
	redactEndpoints(object)
	return message.CompactJSON(object)
}

// pairs is a comma-separated list of name=value. The values are percent-encoded.
type pairs struct {
	Value[map[string]string]
	text string
}

func (*pairs) allowed() string  { return "a string" }
func (p *pairs) String() string { return p.text }

// read parses the list. It stores the text even if there is an error.
func (p *pairs) read(text string) (err error) {
	p.text = text
	p.V, err = parsePairs(text)
	return err
}

// parsePairs parses the list. The returned errors do not contain values, which may be secrets.
func parsePairs(text string) (map[string]string, error) {
	all := map[string]string{}
	for _, pair := range split(text) {
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("entry %d is not name=value", len(all)+1)
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("the value of %q is not percent-encoded", name)
		}
		all[name] = value
	}
	return all, nil
}

// Attributes are attributes of the OpenTelemetry resource.
type Attributes struct{ pairs }

func (a *Attributes) parse(text string) error {
	if err := a.read(text); err != nil {
		a.warn("%v; all attributes are ignored", err)
	}
	return nil
}

// Headers are the header fields of requests to a collector. parse removes fields that net/http would not
// send.
type Headers struct{ pairs }

func (h *Headers) parse(text string) error {
	if err := h.read(text); err != nil {
		h.warn("%v; all header fields are ignored", err)
	}
	for _, name := range slices.Sorted(maps.Keys(h.V)) {
		if !isField(name, h.V[name]) {
			h.warn("%q is not a valid header field and is ignored", name)
			delete(h.V, name)
		}
	}
	return nil
}

// header returns the fields of a request, or nil if there are no fields.
func (h *Headers) header() http.Header {
	var all http.Header
	for name, value := range h.V {
		if all == nil {
			all = http.Header{}
		}
		all.Set(name, value)
	}
	return all
}

// isField reports whether net/http sends a field with this name and value (RFC 9110 5.1, 5.5).
func isField(name, value string) bool {
	noName := func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) }
	noValue := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
	return name != "" && !strings.ContainsFunc(name, noName) && !strings.ContainsFunc(value, noValue)
}

// Propagators are names of trace header formats, as defined by OpenTelemetry. Unknown names are kept. If
// all names are unknown, no trace headers are written.
type Propagators struct{ list }

func (*Propagators) allowed() string { return "a comma-separated list" }

func (p *Propagators) parse(text string) error {
	p.V = split(text)
	for _, name := range p.V {
		if !slices.Contains([]string{"tracecontext", "b3", "b3multi", "baggage", "none"}, name) {
			p.warn("%.64q is not supported; the header fields of this format are forwarded unchanged", name)
		}
	}
	return nil
}

// SamplerArg is the fraction of requests that are sampled, from 0 to 1. nil means unset.
type SamplerArg struct{ Value[*float64] }

func (*SamplerArg) allowed() string { return "a number from 0 to 1" }

func (s *SamplerArg) String() string {
	if s.V == nil {
		return ""
	}
	return strconv.FormatFloat(*s.V, 'g', -1, 64)
}

func (s *SamplerArg) parse(text string) error {
	n, err := parseFraction(strings.TrimSpace(text))
	return s.assign(&n, err)
}

// A Collector is the destination of traces or metrics that the OpenTelemetry variables configure.
type Collector struct {
	Endpoint     string // complete URL; "" means that BaseEndpoint is used
	BaseEndpoint string // URL to which the path of the signal is added
	Protocol     string // grpc, http/protobuf, http/json or ""
	Header       http.Header
}

// Traces returns the collector for traces. Variables for traces override variables for all signals.
func (o *OTel) Traces() Collector {
	return o.collector(&o.TracesEndpoint, &o.TracesProtocol, &o.TracesHeaders)
}

// Metrics returns the collector for metrics. Variables for metrics override variables for all signals.
func (o *OTel) Metrics() Collector {
	return o.collector(&o.MetricsEndpoint, &o.MetricsProtocol, &o.MetricsHeaders)
}

func (o *OTel) collector(endpoint *Text, protocol *Choice[string], headers *Headers) Collector {
	if protocol.V == "" {
		protocol = &o.Protocol
	}
	if headers.text == "" {
		headers = &o.Headers
	}
	return Collector{Endpoint: endpoint.V, BaseEndpoint: o.Endpoint.V, Protocol: protocol.V, Header: headers.header()}
}
