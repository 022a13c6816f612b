package tracing

import (
	"fmt"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// An ExporterConfig contains the settings for exporting traces. A zero value means that the setting
// is not set.
type ExporterConfig struct {
	export.Settings

	SamplingRate float64 // setting of Knative 1.19 and later

	// Settings of Knative before 1.19.
	Backend        string
	ZipkinEndpoint string
	SampleRate     float64
	Debug          bool

	// Settings from OpenTelemetry environment variables.
	Propagators []string // unknown names are ignored; if empty, W3C and B3 are used
	Sampler     string
	SamplerArg  *float64 // nil if not set
}

// Options combines all settings. The first of Protocol, Backend and the collector endpoint that is
// set determines whether tracing is on and how spans are sent. OpenTelemetry variables override the
// other settings.
//
// If a value is invalid, it is replaced with its default, or tracing is turned off. Each
// warning describes one invalid value. The caller must set the other fields of the result, such as
// Output and AppPort.
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
		o.Sampling = Sampling{Rate: 1, Follow: true} // the OpenTelemetry default
	}
	written := o.Endpoint
	switch o.Protocol {
	case export.None:
		return o, warnings
	case export.Zipkin:
	case export.Stdout:
		o.Sampling = Sampling{Rate: 1} // as in Knative, because stdout is for debugging
	case export.OTLP, export.OTLPJSON, export.OTLPGRPC:
		o.Protocol, o.Endpoint, written = c.Collector.Choose(o.Protocol, o.Endpoint, export.Traces)
		o.Header = c.Collector.Header
	default:
		warn("tracing protocol %q: must be one of none, stdout, grpc, http/protobuf, http/json, zipkin; tracing is disabled", o.Protocol)
		o.Protocol = export.None
		return o, warnings
	}
	c.chooseSampling(&o, warn)
	o.Formats = c.formats()
	if o.Sampling.never() {
		warn("tracing is disabled because the sampling rate is 0")
		o.Protocol = export.None
		return o, warnings
	}
	if o.Protocol != export.Stdout {
		remark, err := export.CheckEndpoint("tracing", o.Endpoint, written)
		switch {
		case err != nil:
			warn("tracing: %v; tracing is disabled", err)
			o.Protocol = export.None
		case remark != "":
			warn("%s", remark)
		}
	}
	return o, warnings
}

// chooseSampling applies the OpenTelemetry sampler and its argument. Without a sampler, the argument
// overrides the rate, and the decision of the client is used if the rate is between 0 and 1.
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
		warn("tracing sampling rate %v: must be between 0 and 1; using 0", o.Sampling.Rate)
		o.Sampling.Rate = 0
	}
}

// propagators maps OpenTelemetry propagator names to formats.
var propagators = map[string]Formats{"tracecontext": inW3C, "b3multi": inB3, "b3": inB3Single}

// formats returns the formats of the OpenTelemetry propagators. The default is W3C and B3, as in
// Knative before 1.19. Later versions of Knative do not write B3.
func (c *ExporterConfig) formats() (f Formats) {
	if len(c.Propagators) == 0 {
		return inW3C | inB3
	}
	for _, name := range c.Propagators {
		f |= propagators[name]
	}
	return f
}
