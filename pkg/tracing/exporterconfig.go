package tracing

import (
	"fmt"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/export"
)

// An ExporterConfig has the settings about exporting traces. Zero values are unset.
type ExporterConfig struct {
	export.Settings

	SamplingRate float64 // of Knative from 1.19 on

	// Of Knative before 1.19.
	Backend        string
	ZipkinEndpoint string
	SampleRate     float64
	Debug          bool

	// Of OpenTelemetry's variables.
	Propagators []string // unknown ones are not written; none: W3C and B3
	Sampler     string
	SamplerArg  *float64 // nil: unset
}

// Options makes one choice of all settings. The first that is set decides whether there
// is tracing and how it is sent: Protocol, Backend, and without both a collector's
// endpoint. OpenTelemetry's variables then override the rest.
//
// A value that cannot be used falls back to its default, or turns tracing off: each warning
// names one. The caller adds the output, the port and so on.
func (c ExporterConfig) Options() (o Options, warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	o.Target = c.Target(export.Traces)
	if c.Disabled {
		return o, nil
	}
	switch {
	case c.Protocol != "":
		o.Protocol, o.Endpoint = export.Protocol(c.Protocol), c.Endpoint
		o.Sampling = Sampling{Rate: c.SamplingRate, Follow: c.SamplingRate > 0 && c.SamplingRate < 1}
	case c.Backend != "":
		o.Protocol, o.Endpoint = export.Protocol(c.Backend), c.ZipkinEndpoint
		o.Sampling = Sampling{Rate: c.SampleRate, Follow: c.SampleRate < 1}
		if c.Debug {
			o.Sampling = Sampling{Rate: 1}
		}
	case c.Collector.Endpoint != "" || c.Collector.BaseEndpoint != "":
		o.Protocol = export.OTLP
		o.Sampling = Sampling{Rate: 1, Follow: true} // OpenTelemetry's default
	}
	written := o.Endpoint
	switch o.Protocol {
	case export.None:
		return o, warnings
	case export.Zipkin:
	case export.Stdout:
		o.Sampling = Sampling{Rate: 1} // as Knative has it: this is for looking
	case export.OTLP, export.OTLPJSON, export.OTLPGRPC:
		o.Protocol, o.Endpoint, written = c.Collector.Choose(o.Protocol, o.Endpoint, export.Traces)
		o.Header = c.Collector.Header
	default:
		warn("tracing protocol %q: not one of none, stdout, grpc, http/protobuf, http/json, zipkin; tracing is off", o.Protocol)
		o.Protocol = export.None
		return o, warnings
	}
	c.chooseSampling(&o, warn)
	o.Formats = c.formats()
	if o.Sampling.never() {
		warn("tracing has the sampling rate 0; it is off")
		o.Protocol = export.None
		return o, warnings
	}
	if o.Protocol != export.Stdout {
		remark, err := export.CheckEndpoint("tracing", o.Endpoint, written)
		switch {
		case err != nil:
			warn("tracing: %v; it is off", err)
			o.Protocol = export.None
		case remark != "":
			warn("%s", remark)
		}
	}
	return o, warnings
}

// chooseSampling applies OpenTelemetry's sampler and its argument, which alone
// overrides the rate.
func (c *ExporterConfig) chooseSampling(o *Options, warn func(string, ...any)) {
	rate, given := 1.0, c.SamplerArg != nil
	if given {
		rate = *c.SamplerArg
	}
	switch sampler, follow := strings.CutPrefix(c.Sampler, "parentbased_"); sampler {
	case "always_on":
		o.Sampling = Sampling{Rate: 1, Follow: follow}
	case "always_off":
		o.Sampling = Sampling{Follow: follow}
	case "traceidratio":
		o.Sampling = Sampling{Rate: rate, Follow: follow}
	default:
		if given && o.Protocol != export.Stdout {
			o.Sampling = Sampling{Rate: rate, Follow: rate > 0 && rate < 1}
		}
	}
	if !(o.Sampling.Rate >= 0 && o.Sampling.Rate <= 1) {
		warn("tracing sampling rate %v: not from 0 to 1; it is 0", o.Sampling.Rate)
		o.Sampling.Rate = 0
	}
}

// propagators are OpenTelemetry's names of the formats.
var propagators = map[string]Formats{"tracecontext": inW3C, "b3multi": inB3, "b3": inB3Single}

// formats applies OpenTelemetry's propagators. Without them W3C and B3 are written, as
// Knative did before 1.19: from then on B3 was lost.
func (c *ExporterConfig) formats() (f Formats) {
	if len(c.Propagators) == 0 {
		return inW3C | inB3
	}
	for _, name := range c.Propagators {
		f |= propagators[name]
	}
	return f
}
