package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/accesslog"
	"github.com/queue-proxy/queue-proxy/pkg/certs"
	"github.com/queue-proxy/queue-proxy/pkg/export"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/metrics"
	"github.com/queue-proxy/queue-proxy/pkg/portlimit"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/status"
	"github.com/queue-proxy/queue-proxy/pkg/tracing"
)

// telemetry is what others get to see. None of it can take traffic down: what
// cannot be used is reported, and off (promises.md 3.9). Each part is nil when it
// is off.
type telemetry struct {
	metrics *metrics.Metrics
	log     *accesslog.Log
	tracer  *tracing.Tracer
	push    *metrics.Push
}

// tell makes the telemetry.
func (s *sidecar) tell() {
	s.telemetry.log = s.requestLog()
	s.telemetry.tracer = s.tracer()
	push := s.pushOptions()
	s.telemetry.metrics = s.makeMetrics(push.Protocol != export.None)
	if push.Protocol == export.None {
		return
	}
	var err error
	if s.telemetry.push, err = s.telemetry.metrics.Push(push); err != nil {
		s.log.Warn("metrics are not pushed", zap.Error(err))
	}
}

// requestLog returns the request log, nil when nobody asks for one.
func (s *sidecar) requestLog() *accesslog.Log {
	t := s.config
	o := &t.Observability.V
	if !t.WantRequestLog.V && !t.RequestLog.V && !o.EnableRequestLog {
		return nil
	}
	options := accesslog.Options{
		Probes:     t.ProbeRequestLog.V || o.EnableProbeRequestLog,
		ErrorsOnly: t.RequestLogErrorsOnly.V,
		SlowerThan: t.RequestLogSlowerThan.V,
		Sample:     t.RequestLogSample.V,
		Revision: accesslog.Revision{
			Name: s.config.Revision.V, Namespace: s.config.Namespace.V, Service: s.config.Service.V,
			Configuration: s.config.Configuration.V, PodName: s.config.Pod.V, PodIP: s.config.PodIP.V,
		},
		Report: func(err error) { s.log.Warn("request log", zap.Error(err)) },
	}
	if !t.WantRequestLog.V { // ours is JSON
		options.Template = t.RequestLogTemplate.V
		if o.EnableRequestLog {
			options.Template = o.RequestLogTemplate
		}
	}
	l, err := accesslog.New(options, os.Stdout)
	if err != nil {
		s.log.Warn("the request log falls back to JSON", zap.Error(err))
		options.Template = ""
		l, err = accesslog.New(options, os.Stdout)
	}
	if err != nil {
		s.log.Warn("the request log is off", zap.Error(err))
	}
	return l
}

// tracer returns the tracer, nil when nobody asks for one.
func (s *sidecar) tracer() *tracing.Tracer {
	c := s.config
	o, warnings := s.tracingConfig().Options()
	for _, w := range warnings {
		s.log.Warn("tracing", zap.String("problem", w))
	}
	o.Limited, o.AppPort, o.Output = c.Concurrency.V > 0, c.UserPort.V, os.Stdout
	s.identify(o.Resource)
	o.OwnPorts = s.ownPorts()
	o.Report = func(err error) { s.log.Warn("spans are lost", zap.Error(err)) }
	tracer, err := tracing.New(o)
	if err != nil {
		s.log.Warn("tracing is off", zap.Error(err))
	}
	return tracer
}

// pushOptions says where metrics are pushed, if anybody asks for that.
func (s *sidecar) pushOptions() metrics.PushOptions {
	otel, asked := &s.config.OTel, &s.config.Observability.V.RequestMetrics
	o, warnings := metrics.PushConfig{
		Protocol: asked.Protocol, Endpoint: asked.Endpoint, DefaultInterval: asked.ExportInterval,
		Disabled: otel.Disabled.V, ServiceName: otel.ServiceName.V, Attributes: otel.ResourceAttributes.V.Of, Timeout: otel.Timeout.V,
		Collector: export.Collector(otel.Metrics()), Interval: otel.MetricInterval.V,
	}.Options()
	for _, w := range warnings {
		s.log.Warn("metrics push", zap.String("problem", w))
	}
	s.identify(o.Resource)
	o.OwnPorts = s.ownPorts()
	o.Report = func(err error) { s.log.Warn("metrics push", zap.Error(err)) }
	return o
}

// identify says who we are.
func (s *sidecar) identify(r *export.Resource) {
	c := s.config
	r.Namespace, r.Service, r.Configuration = c.Namespace.V, c.Service.V, c.Configuration.V
	r.Revision, r.Pod, r.PodIP, r.Version = c.Revision.V, c.Pod.V, c.PodIP.V, s.process.Version
}

// ownPorts are those that this process listens on.
func (s *sidecar) ownPorts() []int {
	c := s.config
	all := []int{c.Port.V, c.TLSPort.V, c.AdminPort.V, c.AutoscalerPort.V, c.MetricsPort.V, c.StatusPort.V}
	return slices.DeleteFunc(all, func(port int) bool { return port == c.UserPort.V }) // where TLS would be, and is not
}

// tracingConfig is what the settings say about exporting traces.
func (s *sidecar) tracingConfig() tracing.ExporterConfig {
	t, otel, asked := s.config, &s.config.OTel, &s.config.Observability.V.Tracing
	return tracing.ExporterConfig{
		Protocol: asked.Protocol, Endpoint: asked.Endpoint, SamplingRate: asked.SamplingRate,
		Backend: t.TracingBackend.V, ZipkinEndpoint: t.ZipkinEndpoint.V, SampleRate: t.TracingSampleRate.V, Debug: t.TracingDebug.V,
		Disabled: otel.Disabled.V, ServiceName: otel.ServiceName.V, Attributes: otel.ResourceAttributes.V.Of, Timeout: otel.Timeout.V,
		Collector: export.Collector(otel.Traces()), Propagators: t.Propagators.V, Sampler: t.Sampler.V, SamplerArg: t.SamplerArg.V,
	}
}

// trace begins the trace of a request.
func (s *sidecar) trace(x queue.Exchange) queue.Trace {
	if t := s.telemetry.tracer.Begin(x); t != nil {
		return t
	}
	return nil
}

// makeMetrics returns the metrics, nil when nobody asks for them.
func (s *sidecar) makeMetrics(pushed bool) *metrics.Metrics {
	c := s.config
	if c.MetricsNames.V == "off" && !pushed {
		return nil
	}
	var reasons []string
	for _, w := range probe.Words() {
		reasons = append(reasons, string(w))
	}
	o := metrics.Options{
		Names: c.MetricsNames.V, Pushed: pushed, Version: s.process.Version, Commit: s.process.Commit, Start: s.process.Started,
		Namespace: c.Namespace.V, Service: c.Service.V, Configuration: c.Configuration.V, Revision: c.Revision.V, Pod: c.Pod.V,
		UserPort:        c.UserPort.V,
		NotReadyReasons: append(reasons, queue.Draining.String()),
		Merge:           metrics.Merge{Port: c.MergePort.V, Path: c.MergePath.V},
		Gauges: metrics.Gauges{
			Load:         s.load,
			OldestWaiter: s.proxy.Limit.OldestWaiter,
			Limit:        func() (int, int) { return c.Concurrency.V, c.QueueDepth.V },
			Ready:        s.readyReason,
			Draining:     s.proxy.Drain.Draining,
			CertExpiry:   s.pair.NotAfter,
		},
	}
	if s.telemetry.log != nil {
		o.Gauges.LogLinesDropped = s.telemetry.log.Dropped
	}
	if s.telemetry.tracer != nil {
		o.Gauges.SpansDropped = s.telemetry.tracer.Dropped
	}
	m, err := metrics.New(o)
	if err != nil {
		s.log.Warn("the app's metrics are not merged", zap.Error(err))
		o.Merge = metrics.Merge{}
		m, _ = metrics.New(o) // the names are one of config's
	}
	return m
}

// readyReason is what a queue probe would be answered, as far as is known.
func (s *sidecar) readyReason() (ready bool, reason string) {
	if s.proxy.Drain.Draining() {
		return false, queue.Draining.String()
	}
	state := s.prober.State()
	for _, p := range state.Probes {
		if p.Phase != probe.Ready {
			return false, string(p.Word)
		}
	}
	return state.Ready(), ""
}

// resolveTime is how long the name of the metrics' host may take, which nothing is
// served before.
const resolveTime = time.Second

// listenMetrics takes the port of the metrics; nil: they are not served.
func (s *sidecar) listenMetrics() (net.Listener, error) {
	t := s.config
	if t.MetricsNames.V == "off" {
		return nil, nil
	}
	var err error
	if s.metricsPair, err = s.metricsTLS(); err != nil {
		s.log.Warn("metrics are not served", zap.Error(err))
		return nil, nil
	}
	if s.metricsPair != nil && !hasPair(s.metricsPair) {
		s.log.Warn("metrics: no certificate yet", zap.String("file", t.MetricsTLS.Cert.V))
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTime)
	defer cancel()
	how := net.ListenConfig{Control: smallBuffers}
	ln, err := how.Listen(ctx, "tcp", net.JoinHostPort(t.MetricsHost.V, strconv.Itoa(s.config.MetricsPort.V)))
	if err != nil && t.MetricsHost.V != "" && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) { // those are the port's
		s.log.Warn("metrics are not served", zap.Error(fmt.Errorf("%s: %w", s.config.MetricsHost.Name(), err)))
		return nil, nil
	}
	if err != nil || s.metricsPair == nil {
		return ln, err
	}
	return portlimit.Handshakes{
		Config: s.metricsPair.Config(certs.Settings{
			MinVersion:   t.MetricsTLS.MinVersion.V,
			MaxVersion:   t.MetricsTLS.MaxVersion.V,
			CipherSuites: t.MetricsTLS.CipherSuites.V,
			Curves:       t.MetricsTLS.Curves.V,
			HTTP1:        true, // scrapers need no streams, and each would have to be bounded
		}),
		Max:   smallHandshakes,
		Bytes: smallShake,
		Time:  min(s.config.HeaderTimeout.V, smallRequest),
		Failed: func(client net.Addr, err error) {
			if n := s.failedHandshakes.add(time.Now()); n > 0 {
				s.log.Warn("metrics: TLS handshakes failed", zap.Int("handshakes", n), zap.Stringer("client", client), zap.String("error", queue.Shown(err.Error())))
			}
		},
	}.Listener(ln), nil
}

// observe is called for every request that has ended.
func (s *sidecar) observe(o *queue.Observation) {
	s.board.Observe(o)
	if o.Reason == queue.AppGarbage && s.board.FirstNotHTTP(o) {
		s.log.Error(status.NotHTTP, zap.Int("port", s.config.UserPort.V), zap.String("hint", "databases and TLS servers need no queue-proxy; "+s.config.UserPort.Name()+" names the port"), zap.NamedError("error", o.Err))
	}
	s.telemetry.metrics.Observe(o)
	if s.telemetry.log != nil {
		s.telemetry.log.Observe(o)
	}
	s.sayFailure(o)
}

// probed is called for every probe that has been answered.
func (s *sidecar) probed(o *queue.Observation) {
	if o.Kind == header.QueueProbe {
		s.telemetry.metrics.Answered(o.Start, o.Status == http.StatusOK)
	}
	if s.telemetry.log != nil {
		s.telemetry.log.Observe(o)
	}
}

// close sends and writes what has not been yet, all at the same time: one that waits in
// vain must not cost the others theirs. The error says what is lost.
func (t *telemetry) close(ctx context.Context) error {
	var all sync.WaitGroup
	var logged, traced, pushed error
	if t.log != nil {
		all.Go(func() { logged = t.log.Close(ctx) })
	}
	all.Go(func() { traced = t.tracer.Close(ctx) })
	all.Go(func() { pushed = t.push.Close(ctx) })
	all.Wait()
	return errors.Join(logged, traced, pushed)
}
