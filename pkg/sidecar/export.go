package sidecar

import (
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/pkg/observe/metrics"
	"github.com/queue-proxy/queue-proxy/pkg/observe/tracing"
)

// tracer returns the tracer, or nil if tracing is disabled.
func (s *sidecar) tracer() *tracing.Tracer {
	c, asked := s.config, &s.config.Observability.V.Tracing
	o, warnings := tracing.ExporterConfig{
		Settings: s.exportSettings(asked.Protocol, asked.Endpoint, c.OTel.Traces()), SamplingRate: asked.SamplingRate,
		Backend: c.TracingBackend.V, ZipkinEndpoint: c.ZipkinEndpoint.V, SampleRate: c.TracingSampleRate.V, Debug: c.TracingDebug.V,
		Propagators: c.Propagators.V, Sampler: c.Sampler.V, SamplerArg: c.SamplerArg.V,
	}.Options()
	s.settingWarnings = append(s.settingWarnings, warnings...)
	o.Limited = c.Concurrency.V > 0 || c.ConcurrencyMode.V == config.AdaptiveConcurrency
	o.AppPort, o.Output = c.UserPort.V, os.Stdout
	o.Report = func(err error) {
		text := err.Error()
		s.spanError.Store(&text)
		s.log.Warn("spans were dropped", zap.Error(err))
	}
	o.Restored = func(lost uint64) {
		s.spanError.Store(nil)
		s.log.Info("span export resumed", zap.Uint64("dropped", lost), zap.String("endpoint", o.Address()))
	}
	tracer, err := tracing.New(o)
	if err != nil {
		s.warnSetting("tracing is disabled", err)
	}
	return tracer
}

// pushOptions returns the options for pushing metrics. The protocol is export.None if metrics are
// not pushed.
func (s *sidecar) pushOptions() metrics.PushOptions {
	otel, asked := &s.config.OTel, &s.config.Observability.V.RequestMetrics
	o, warnings := metrics.PushConfig{
		Settings:        s.exportSettings(asked.Protocol, asked.Endpoint, otel.Metrics()),
		DefaultInterval: asked.ExportInterval, Interval: otel.MetricInterval.V,
	}.Options()
	s.settingWarnings = append(s.settingWarnings, warnings...)
	o.Report = func(err error) { s.log.Warn("metrics push", zap.Error(err)) }
	return o
}

// exportSettings returns the settings for exporting one signal. protocol and endpoint are the
// Knative settings for this signal, and collector contains the OpenTelemetry settings.
func (s *sidecar) exportSettings(protocol, endpoint string, collector config.Collector) export.Settings {
	c := s.config
	return export.Settings{
		Protocol: protocol, Endpoint: endpoint,
		Disabled: c.OTel.Disabled.V, Timeout: c.OTel.Timeout.V, Collector: export.Collector(collector),
		Resource: export.Resource{
			Namespace: c.Namespace.V, Service: c.Service.V, Configuration: c.Configuration.V, Revision: c.Revision.V,
			Pod: c.Pod.V, PodIP: c.PodIP.V, Version: s.process.Version,
			ServiceName: c.OTel.ServiceName.V, Attributes: c.OTel.ResourceAttributes.V,
		},
		OwnPorts: s.ownPorts(),
	}
}

// ownPorts returns the ports that this process listens on.
func (s *sidecar) ownPorts() []int {
	c := s.config
	all := []int{c.Port.V, c.TLSPort.V, c.AdminPort.V, c.AutoscalerPort.V, c.MetricsPort.V, c.StatusPort.V}
	return slices.DeleteFunc(all, func(port int) bool { return port == c.UserPort.V }) // if UserPort equals TLSPort, TLS is not served
}
