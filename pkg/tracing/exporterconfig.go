package tracing

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// An ExporterConfig is what the settings say about exporting one signal, traces or
// metrics. Zero values are unset.
type ExporterConfig struct {
	// Of Knative from 1.19 on: tracing or requestMetrics of its observability config.
	Protocol        string
	Endpoint        string
	SamplingRate    float64       // of traces
	DefaultInterval time.Duration // of metrics

	// Of Knative before 1.19.
	Backend        string
	ZipkinEndpoint string
	SampleRate     float64
	Debug          bool

	// Of OpenTelemetry's variables.
	Disabled    bool
	ServiceName string
	Attributes  map[string]string
	Timeout     time.Duration
	Collector   Collector
	Propagators []string // unknown ones are not written; none: W3C and B3
	Sampler     string
	SamplerArg  *float64      // nil: unset
	Interval    time.Duration // of metrics; 0: DefaultInterval
}

// A Collector is where OpenTelemetry's variables send one signal, and hoc.
type Collector struct {
	Endpoint     string // taken to the letter; "": BaseEndpoint's
	BaseEndpoint string // for all signals: the signal's path is added
	Protocol     string // grpc, http/protobuf, http/json or ""
	Header       http.Header
}

// Options makes one choice of all settings. The first that is set decides whether there
// is tracing and how it is sent: Protocol, Backend, and without both a collector's
// endpoint. OpenTelemetry's variables then override the rest.
//
// What cannot be used falls back, or turns tracing off: each warning says which. The
// caller adds who we are, the output, the port and so on.
func (c ExporterConfig) Options() (o Options, warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	o = Options{Exporter: None, Timeout: c.Timeout, Resource: Resource{ServiceName: c.ServiceName, Attributes: c.Attributes}}
	if c.Disabled {
		return o, nil
	}
	switch {
	case c.Protocol != "":
		o.Exporter, o.Endpoint = Exporter(c.Protocol), c.Endpoint
		o.Sampling = Sampling{Rate: c.SamplingRate, Follow: c.SamplingRate > 0 && c.SamplingRate < 1}
	case c.Backend != "":
		o.Exporter, o.Endpoint = Exporter(c.Backend), c.ZipkinEndpoint
		o.Sampling = Sampling{Rate: c.SampleRate, Follow: c.SampleRate < 1}
		if c.Debug {
			o.Sampling = Sampling{Rate: 1}
		}
	case c.Collector.Endpoint != "" || c.Collector.BaseEndpoint != "":
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
		written = first(c.Collector.Endpoint, c.Collector.BaseEndpoint, o.Endpoint)
		c.Collector.choose(&o, traceSignal)
	default:
		warn("tracing protocol %q: not one of none, stdout, grpc, http/protobuf, http/json, zipkin; tracing is off", o.Exporter)
		o.Exporter = None
		return o, warnings
	}
	c.chooseSampling(&o, warn)
	o.Formats = c.formats()
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

// choose applies what is said about the way of a signal to a collector.
func (c *Collector) choose(o *Options, s signal) {
	if c.Protocol != "" {
		o.Exporter = Exporter(c.Protocol)
	}
	switch {
	case c.Endpoint != "": // without a path it is the root
		o.Endpoint = c.Endpoint
		if target, err := resolve(c.Endpoint); err == nil && target.Path == "" {
			target.Path = "/"
			o.Endpoint = target.String()
		}
	case c.BaseEndpoint != "":
		o.Endpoint = c.BaseEndpoint
		if target, err := resolve(c.BaseEndpoint); err == nil && o.Exporter != OTLPGRPC {
			target.Path = strings.TrimSuffix(target.Path, "/") + s.path
			target.RawPath = ""
			o.Endpoint = target.String()
		}
	}
	o.Header = c.Header
}

// chooseSampling applies OpenTelemetry's sampler and its argument, which alone
// overrides the rate.
func (c *ExporterConfig) chooseSampling(o *Options, warn func(string, ...any)) {
	rate, given := 1.0, c.SamplerArg != nil
	if given {
		rate = *c.SamplerArg
	}
	switch c.Sampler {
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
		if given && o.Exporter != Stdout {
			o.Sampling = Sampling{Rate: rate, Follow: rate > 0 && rate < 1}
		}
	}
	if !(o.Sampling.Rate >= 0 && o.Sampling.Rate <= 1) {
		warn("tracing sampling rate %v: not from 0 to 1; it is 0", o.Sampling.Rate)
		o.Sampling.Rate = 0
	}
}

// formats applies OpenTelemetry's propagators. Without them W3C and B3 are written, as
// Knative did before 1.19: from then on B3 was lost.
func (c *ExporterConfig) formats() (f Formats) {
	if len(c.Propagators) == 0 {
		return W3C | B3
	}
	for _, name := range c.Propagators {
		switch name {
		case "tracecontext":
			f |= W3C
		case "b3multi":
			f |= B3
		case "b3":
			f |= B3Single
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
