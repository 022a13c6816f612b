package metrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// PushConfig contains the settings for pushing metrics. A zero value means that the setting is not set.
type PushConfig struct {
	export.Settings

	DefaultInterval time.Duration // interval of Knative 1.19 and later
	Interval        time.Duration // value of OTEL_METRIC_EXPORT_INTERVAL; 0 means DefaultInterval
}

// PushOptions contains the settings of a [Push]. [PushConfig.Options] derives them from the settings of
// Knative and OpenTelemetry.
type PushOptions struct {
	export.Target // the protocol must be OTLP, OTLPGRPC or None; None disables the push

	Interval time.Duration // time between two pushes; 0 means 60 s

	// Report is called with the reason if a push fails, at most once a minute. It may be nil.
	Report func(error)
}

const (
	defaultInterval = time.Minute // default of OpenTelemetry
	minInterval     = time.Second // a push takes 1 ms of CPU time
)

// Options combines all settings. Metrics are pushed if Protocol is an OTLP protocol, or if Protocol is unset
// and there is an endpoint for metrics. If a setting is invalid, Options uses its default or disables the
// push, and returns a warning.
func (c PushConfig) Options() (o PushOptions, warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	o.Target = c.Target(export.Metrics)
	protocol := export.Protocol(c.Protocol)
	switch {
	case c.Disabled, protocol == export.None, protocol == "prometheus", protocol == "" && c.Collector.Endpoint == "":
		return o, nil
	case protocol == "":
		protocol = export.OTLP
	case protocol == export.OTLP, protocol == export.OTLPGRPC:
		o.Interval = c.DefaultInterval
	default:
		warn("metrics protocol %q: must be one of none, prometheus, grpc, http/protobuf; metrics are not pushed", protocol)
		return o, warnings
	}
	protocol, endpoint, written := c.Collector.Choose(protocol, c.Endpoint, export.Metrics)
	if protocol == export.OTLPJSON {
		warn("metrics push: http/json is not supported; using http/protobuf")
		protocol = export.OTLP
	}
	if c.Interval > 0 {
		o.Interval = c.Interval
	}
	if o.Interval > 0 && o.Interval < minInterval {
		warn("metrics push: the interval is too short (%v); using %v", o.Interval, minInterval)
		o.Interval = minInterval
	}
	remark, err := export.CheckEndpoint("metrics", endpoint, written)
	if err != nil {
		warn("metrics push: %v; metrics are not pushed", err)
		return o, warnings
	}
	if remark != "" {
		warn("%s", remark)
	}
	o.Protocol, o.Endpoint, o.Header = protocol, endpoint, c.Collector.Header
	return o, warnings
}

// A Push pushes metrics over OTLP. A failed push is not repeated, because all counters are totals since the
// start of the process, and the next push therefore includes the data. A nil *Push does nothing.
type Push struct {
	options  PushOptions
	gatherer prometheus.Gatherer
	start    time.Time
	send     export.Sender
	release  func() // called after the last push
	failures message.Throttle
	pushes   *export.Batcher[struct{}]
	last     error // error of the last push; valid after pushes is closed
}

// Push starts to push the metrics that have OpenTelemetry names, as in Knative after 1.18. The names depend
// on Options.Names. If the protocol is None or empty, Push returns nil. It returns an error if the protocol or
// the endpoint is invalid.
func (m *Metrics) Push(o PushOptions) (*Push, error) {
	switch o.Protocol {
	case export.None, "":
		return nil, nil
	case export.OTLP, export.OTLPGRPC:
	default:
		return nil, fmt.Errorf("metrics push: protocol %q: must be http/protobuf or grpc", o.Protocol)
	}
	o.Signal = export.Metrics
	send, release, err := export.New(o.Target)
	if err != nil {
		return nil, fmt.Errorf("metrics push: %w", err)
	}
	return startPush(o, m.gatherer, send, release), nil
}

// startPush returns a Push and starts its goroutine.
func startPush(o PushOptions, gatherer prometheus.Gatherer, send export.Sender, release func()) *Push {
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	p := &Push{options: o, gatherer: gatherer, start: time.Now(), send: send, release: release}
	p.pushes = export.NewBatcher(export.BatcherOptions[struct{}]{Delay: o.Interval, Periodic: true, Write: p.push})
	return p
}

// push implements BatcherOptions.Write. It pushes the current metrics, and returns 1 if the push failed.
func (p *Push) push(ctx context.Context, _ []struct{}, _ int) (lost int) {
	gathered, err := p.gatherer.Gather() // returns some metrics even if there is an error
	now := p.start.Add(time.Since(p.start))
	body, wrong := proto.Marshal(metricsData(&p.options.Resource, gathered, p.start, now))
	err = errors.Join(err, wrong)
	if wrong == nil {
		rejected, wrong := p.send(ctx, body)
		if wrong == nil && rejected > 0 {
			wrong = fmt.Errorf("the collector rejected %d points", rejected)
		}
		err = errors.Join(err, wrong)
	}
	p.last = err
	if err == nil {
		return 0
	}
	p.failures.Error(fmt.Errorf("metrics push: %w", err), p.options.Report)
	return 1
}

// Close pushes the metrics one last time and stops the goroutine. It returns an error if ctx is done first or if
// the last push fails.
func (p *Push) Close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	defer p.release()
	_, err := p.pushes.Close(ctx)
	if err == nil {
		err = p.last
	}
	if err != nil {
		return fmt.Errorf("last metrics push: %w", err)
	}
	return nil
}
