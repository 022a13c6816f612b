package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/accesslog"
	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/pkg/metrics"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/tracing"
)

// telemetry is what others are told. None of it can take traffic down: what
// cannot be used is reported, and off (promises.md 3.9). Each part is nil when it
// is off.
type telemetry struct {
	metrics *metrics.Metrics
	log     *accesslog.Log
	tracer  *tracing.Tracer
}

// observability is the part of OBSERVABILITY_CONFIG that is read here.
type observability struct {
	EnableRequestLog      bool
	RequestLogTemplate    string
	EnableProbeRequestLog bool
}

// tell makes the telemetry.
func (s *sidecar) tell() {
	s.telemetry.log = s.requestLog()
	s.telemetry.tracer = s.tracer()
	s.telemetry.metrics = s.makeMetrics()
}

// requestLog returns the request log, nil when nobody asks for one.
func (s *sidecar) requestLog() *accesslog.Log {
	t := &s.config.Telemetry
	var o observability
	_ = json.Unmarshal([]byte(t.Observability), &o) // what is no JSON has been reported
	if !t.WantRequestLog && !t.RequestLog && !o.EnableRequestLog {
		return nil
	}
	options := accesslog.Options{
		Probes:     t.ProbeRequestLog || o.EnableProbeRequestLog,
		ErrorsOnly: t.RequestLogErrorsOnly,
		SlowerThan: t.RequestLogSlowerThan,
		Sample:     t.RequestLogSample,
		Revision: accesslog.Revision{
			Name: s.config.Revision, Namespace: s.config.Namespace, Service: s.config.Service,
			Configuration: s.config.Configuration, PodName: s.config.Pod, PodIP: s.config.PodIP,
		},
		Report: func(err error) { s.log.Warn("request log", zap.Error(err)) },
	}
	if !t.WantRequestLog { // ours is JSON
		options.Template = t.RequestLogTemplate
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
	c, t := s.config, &s.config.Telemetry
	o, warnings := tracing.Wishes{
		Observability: t.Observability,
		Backend:       t.TracingBackend, ZipkinEndpoint: t.ZipkinEndpoint, SampleRate: t.TracingSampleRate, Debug: t.TracingDebug,
		Disabled: t.OTel.Disabled, ServiceName: t.OTel.ServiceName, ResourceAttributes: t.OTel.ResourceAttributes,
		Propagators: t.OTel.Propagators, Sampler: t.OTel.Sampler, SamplerArg: t.OTel.SamplerArg, Timeout: t.OTel.Timeout,
		BaseEndpoint: t.OTel.Endpoint, Endpoint: t.OTel.TracesEndpoint,
		BaseProtocol: t.OTel.Protocol, Protocol: t.OTel.TracesProtocol,
		BaseHeaders: t.OTel.Headers, Headers: t.OTel.TracesHeaders,
	}.Options()
	for _, w := range warnings {
		s.log.Warn("tracing", zap.String("problem", w))
	}
	o.Limited, o.AppPort, o.Output = c.Concurrency > 0, c.UserPort, os.Stdout
	o.Resource.Namespace, o.Resource.Service, o.Resource.Configuration = c.Namespace, c.Service, c.Configuration
	o.Resource.Revision, o.Resource.Pod, o.Resource.PodIP = c.Revision, c.Pod, c.PodIP
	o.Resource.Version = s.process.Version
	o.Report = func(err error) { s.log.Warn("spans are lost", zap.Error(err)) }
	tracer, err := tracing.New(o)
	if err != nil {
		s.log.Warn("tracing is off", zap.Error(err))
	}
	return tracer
}

// trace begins the trace of a request.
func (s *sidecar) trace(x queue.Exchange) queue.Trace {
	fields := x.Request().Header
	if t := s.telemetry.tracer.Begin(func(name string) []string { return fields[name] }); t != nil {
		return t
	}
	return nil
}

// makeMetrics returns the metrics, nil when nobody asks for them.
func (s *sidecar) makeMetrics() *metrics.Metrics {
	c, t := s.config, &s.config.Telemetry
	if t.MetricsNames == "off" {
		return nil
	}
	names, err := metrics.ParseNames(t.MetricsNames)
	if err != nil {
		s.log.Warn("metrics", zap.Error(err)) // and the default
	}
	var reasons []string
	for _, w := range probe.Words() {
		reasons = append(reasons, string(w))
	}
	o := metrics.Options{
		Names: names, Version: s.process.Version, Commit: s.process.Commit, Start: s.process.Started,
		Namespace: c.Namespace, Service: c.Service, Configuration: c.Configuration, Revision: c.Revision, Pod: c.Pod,
		UserPort:        c.UserPort,
		NotReadyReasons: append(reasons, queue.Draining.String()),
		Merge:           metrics.Merge{Port: t.MergePort, Path: t.MergePath},
		Gauges: metrics.Gauges{
			Load:         s.load,
			OldestWaiter: s.proxy.Limit.OldestWaiter,
			Limit:        func() (int, int) { return c.Concurrency, c.QueueDepth },
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
		m, _ = metrics.New(o) // which can go wrong with a merge alone
	}
	return m
}

// readyReason is what a queue probe would hear, as far as is known.
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

// listenMetrics takes the port of the metrics.
func (s *sidecar) listenMetrics() (net.Listener, error) {
	t := &s.config.Telemetry
	if t.MetricsNames == "off" {
		return nil, nil
	}
	return net.Listen("tcp", net.JoinHostPort(t.MetricsHost, strconv.Itoa(s.config.MetricsPort)))
}

// observe hears of every request that has ended.
func (s *sidecar) observe(o *queue.Observation) {
	s.board.Observe(o)
	s.telemetry.metrics.Observe(o)
	if s.telemetry.log != nil {
		s.telemetry.log.Observe(o)
	}
	s.sayFailure(o)
}

// probed hears of every probe that has been answered.
func (s *sidecar) probed(o *queue.Observation) {
	if o.Kind == header.QueueProbe {
		s.telemetry.metrics.Answered(o.Start, o.Status == http.StatusOK)
	}
	if s.telemetry.log != nil {
		s.telemetry.log.Observe(o)
	}
}

// close sends and writes what has not been yet.
func (t *telemetry) close(ctx context.Context) error {
	var err error
	if t.log != nil {
		err = t.log.Close(ctx)
	}
	return errors.Join(err, t.tracer.Close(ctx))
}
