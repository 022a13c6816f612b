package tracing

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Wishes are what control planes and people say about tracing, each in the words of
// their own variables. Zero values were not said. A caller with a config.Telemetry t
// fills them so:
//
//	tracing.Wishes{
//		Observability: t.Observability,
//		Backend: t.TracingBackend, ZipkinEndpoint: t.ZipkinEndpoint, SampleRate: t.TracingSampleRate, Debug: t.TracingDebug,
//		Disabled: t.OTel.Disabled, ServiceName: t.OTel.ServiceName, ResourceAttributes: t.OTel.ResourceAttributes,
//		Propagators: t.OTel.Propagators, Sampler: t.OTel.Sampler, SamplerArg: t.OTel.SamplerArg, Timeout: t.OTel.Timeout,
//		BaseEndpoint: t.OTel.Endpoint, Endpoint: t.OTel.TracesEndpoint,
//		BaseProtocol: t.OTel.Protocol, Protocol: t.OTel.TracesProtocol,
//		BaseHeaders: t.OTel.Headers, Headers: t.OTel.TracesHeaders,
//	}.Options()
type Wishes struct {
	Observability string // OBSERVABILITY_CONFIG, sent by Knative from 1.19 on

	// TRACING_CONFIG_*, of Knative before 1.19.
	Backend        string
	ZipkinEndpoint string
	SampleRate     float64
	Debug          bool

	// OTEL_*: Base* are for all signals; Endpoint, Protocol and Headers are those of the
	// one that is asked for, and win.
	Disabled               bool
	ServiceName            string
	ResourceAttributes     string
	Propagators            []string
	Sampler, SamplerArg    string
	Timeout                time.Duration
	BaseEndpoint, Endpoint string
	BaseProtocol, Protocol string
	BaseHeaders, Headers   string
	Interval               time.Duration // of metrics
}

// observability is the part of OBSERVABILITY_CONFIG that we read.
type observability struct {
	Tracing struct {
		Protocol     string
		Endpoint     string
		SamplingRate float64
	}
}

// Options makes one choice of all wishes. Who speaks first decides whether there is
// tracing and how it is sent: OBSERVABILITY_CONFIG, TRACING_CONFIG_*, and where both
// are silent an OTEL_* endpoint. The OTEL_* variables then override the rest.
//
// What cannot be used falls back, or turns tracing off: each warning says which. The
// caller adds who we are, the output, the port and so on.
func (w Wishes) Options() (o Options, warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	o = Options{Exporter: None, Timeout: w.Timeout, Resource: Resource{ServiceName: w.ServiceName}}
	if w.Disabled {
		return o, nil
	}
	var seen observability
	if w.Observability != "" {
		if err := json.Unmarshal([]byte(w.Observability), &seen); err != nil {
			warn("OBSERVABILITY_CONFIG: %v", err)
		}
	}
	tracing := &seen.Tracing

	switch {
	case tracing.Protocol != "":
		o.Exporter, o.Endpoint = Exporter(tracing.Protocol), tracing.Endpoint
		o.Sampling = Sampling{Rate: tracing.SamplingRate, Follow: tracing.SamplingRate > 0 && tracing.SamplingRate < 1}
	case w.Backend != "":
		o.Exporter, o.Endpoint = Exporter(w.Backend), w.ZipkinEndpoint
		o.Sampling = Sampling{Rate: w.SampleRate, Follow: w.SampleRate < 1}
		if w.Debug {
			o.Sampling = Sampling{Rate: 1}
		}
	case w.Endpoint != "" || w.BaseEndpoint != "":
		o.Exporter = OTLP
		o.Sampling = Sampling{Rate: 1, Follow: true} // OpenTelemetry's default
	}
	written := o.Endpoint
	switch o.Exporter {
	case None:
		return o, warnings
	case Zipkin:
	case Stdout:
		o.Sampling = Sampling{Rate: 1} // as Knative has it: this is for looking
	case OTLP, OTLPJSON, OTLPGRPC:
		written = first(w.Endpoint, w.BaseEndpoint, o.Endpoint)
		w.chooseOTLP(&o, "TRACES", traceSignal, warn)
	default:
		warn("tracing protocol %q: not one of none, stdout, grpc, http/protobuf, http/json, zipkin; tracing is off", o.Exporter)
		o.Exporter = None
		return o, warnings
	}
	w.chooseSampling(&o, warn)
	o.Formats = w.formats(warn)
	o.Resource.Attributes = w.attributes(warn)
	if o.Sampling.never() {
		warn("tracing has the sampling rate 0; it is off")
		o.Exporter = None
		return o, warnings
	}
	if o.Exporter != Stdout {
		target, err := resolve(o.Endpoint)
		switch {
		case err != nil:
			warn("tracing: %v; it is off", err)
			o.Exporter = None
		case !hasScheme(written):
			warn("the tracing endpoint has no scheme; it is taken for %s", target.Redacted())
		}
	}
	return o, warnings
}

// attributes reads OTEL_RESOURCE_ATTRIBUTES.
func (w *Wishes) attributes(warn func(string, ...any)) map[string]string {
	attributes, err := parsePairs(w.ResourceAttributes)
	if err != nil {
		warn("OTEL_RESOURCE_ATTRIBUTES: %v; they are left out", err)
	}
	return attributes
}

// chooseOTLP applies what OTEL_* says about the way of a signal to a collector.
func (w *Wishes) chooseOTLP(o *Options, word string, s signal, warn func(string, ...any)) {
	if protocol := first(w.Protocol, w.BaseProtocol); protocol != "" {
		o.Exporter = Exporter(protocol)
	}
	switch {
	case w.Endpoint != "": // to the letter: without a path it is the root
		o.Endpoint = w.Endpoint
		if target, err := resolve(w.Endpoint); err == nil && target.Path == "" {
			target.Path = "/"
			o.Endpoint = target.String()
		}
	case w.BaseEndpoint != "": // the signal's path is added
		o.Endpoint = w.BaseEndpoint
		if target, err := resolve(w.BaseEndpoint); err == nil && o.Exporter != OTLPGRPC {
			target.Path = strings.TrimSuffix(target.Path, "/") + s.path
			target.RawPath = ""
			o.Endpoint = target.String()
		}
	}
	list, name := w.Headers, "OTEL_EXPORTER_OTLP_"+word+"_HEADERS"
	if list == "" {
		list, name = w.BaseHeaders, "OTEL_EXPORTER_OTLP_HEADERS"
	}
	pairs, err := parsePairs(list)
	if err != nil {
		warn("%s: %v; none are sent", name, err)
	}
	for _, field := range slices.Sorted(maps.Keys(pairs)) {
		if !validField(field, pairs[field]) {
			warn("%s: %q is not a header field; it is not sent", name, field)
			continue
		}
		if o.Header == nil {
			o.Header = http.Header{}
		}
		o.Header.Set(field, pairs[field])
	}
}

// validField reports whether net/http would send a field.
func validField(name, value string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return name != ""
}

// chooseSampling applies OTEL_TRACES_SAMPLER and its argument, which alone overrides
// the rate.
func (w *Wishes) chooseSampling(o *Options, warn func(string, ...any)) {
	rate, given := 1.0, false
	if w.SamplerArg != "" {
		n, err := strconv.ParseFloat(strings.TrimSpace(w.SamplerArg), 64)
		if given = err == nil && n >= 0 && n <= 1; given {
			rate = n
		} else {
			warn("OTEL_TRACES_SAMPLER_ARG: %.64q is not a number from 0 to 1; it is left out", w.SamplerArg)
		}
	}
	switch w.Sampler {
	case "always_on":
		o.Sampling = Sampling{Rate: 1}
	case "always_off":
		o.Sampling = Sampling{}
	case "traceidratio":
		o.Sampling = Sampling{Rate: rate}
	case "parentbased_always_on":
		o.Sampling = Sampling{Rate: 1, Follow: true}
	case "parentbased_always_off":
		o.Sampling = Sampling{Follow: true}
	case "parentbased_traceidratio":
		o.Sampling = Sampling{Rate: rate, Follow: true}
	default:
		if w.Sampler != "" {
			warn("OTEL_TRACES_SAMPLER: %.64q is not a sampler; it is left out", w.Sampler)
		}
		if given && o.Exporter != Stdout {
			o.Sampling = Sampling{Rate: rate, Follow: rate > 0 && rate < 1}
		}
	}
	if !(o.Sampling.Rate >= 0 && o.Sampling.Rate <= 1) {
		warn("tracing sampling rate %v: not from 0 to 1; it is 0", o.Sampling.Rate)
		o.Sampling.Rate = 0
	}
}

// formats applies OTEL_PROPAGATORS. Without it W3C and B3 are written, as Knative did
// before 1.19: from then on B3 was lost.
func (w *Wishes) formats(warn func(string, ...any)) (f Formats) {
	if len(w.Propagators) == 0 {
		return W3C | B3
	}
	for _, name := range w.Propagators {
		switch strings.TrimSpace(name) {
		case "tracecontext":
			f |= W3C
		case "b3multi":
			f |= B3
		case "b3":
			f |= B3Single
		case "baggage", "none", "": // baggage always goes through unchanged
		default:
			warn("OTEL_PROPAGATORS: %.64q is not written; its fields go through unchanged", name)
		}
	}
	return f
}

// first returns the first string that is not empty.
func first(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}
