package sidecar

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/certs"
	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/metrics"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// makeMetrics returns the metrics, or nil if they are neither served nor pushed.
func (s *sidecar) makeMetrics(pushed bool) *metrics.Metrics {
	c := s.config
	if c.MetricsNames.V == "off" && !pushed {
		return nil
	}
	var reasons []string
	for _, w := range observation.ReadinessWords() {
		reasons = append(reasons, string(w))
	}
	o := metrics.Options{
		Names: c.MetricsNames.V, Pushed: pushed, Version: s.process.Version, Commit: s.process.Commit, Start: s.process.Started,
		Namespace: c.Namespace.V, Service: c.Service.V, Configuration: c.Configuration.V, Revision: c.Revision.V, Pod: c.Pod.V,
		UserPort:         c.UserPort.V,
		NativeHistograms: c.NativeHistograms.V,
		NotReadyReasons:  append(reasons, observation.Draining.String()),
		Merge:            metrics.Merge{Dial: netconn.DialLoopback, Port: c.MergePort.V, Path: c.MergePath.V},
		Gauges: metrics.Gauges{
			Load:         s.load,
			OldestWaiter: s.proxy.Limit.OldestWaiter,
			Limit:        s.limit,
			Adaptive:     s.proxy.Limit.Adaptive,
			Ready:        s.readyReason,
			AppHangs:     func() bool { return s.board.Hangs() }, // created after the metrics
			Draining:     s.proxy.Drain.Draining,
			CertValidity: s.certificateValidity,
			Memory:       s.budget.Usage,
			Bounds:       s.bounds,
			Connections:  s.pools,
		},
	}
	if s.telemetry.log != nil {
		o.Gauges.LogLinesDropped = s.telemetry.log.Dropped
	}
	if s.telemetry.tracer != nil {
		o.Gauges.SpansDropped = s.telemetry.tracer.Dropped
	}
	m, _ := metrics.New(o) // cannot fail because config has validated the names and the path
	return m
}

// readyReason returns the result of a queue probe for the current state, without running the
// probes. probed is false until a probe attempt has completed.
func (s *sidecar) readyReason() (ready, probed bool, reason string) {
	if s.proxy.Drain.Draining() {
		return false, true, observation.Draining.String()
	}
	state := s.prober.State()
	for _, p := range state.Probes {
		if p.Phase != observation.PhaseReady {
			return false, state.Probed(), string(p.Word)
		}
	}
	return state.Ready(), true, ""
}

// resolveTime is the maximum time for resolving the host name of the metrics port. The process serves
// no port until the name is resolved.
const resolveTime = time.Second

// listenMetrics listens on the metrics port. It returns a nil listener if metrics are not served.
func (s *sidecar) listenMetrics() (net.Listener, error) {
	t := s.config
	if t.MetricsNames.V == "off" {
		return nil, nil
	}
	var err error
	if s.metricsPair, err = s.metricsTLS(); err != nil {
		s.warnSetting("metrics are not served", err)
		return nil, nil
	}
	if s.metricsPair != nil && s.metricsPair.NotAfter().IsZero() {
		s.log.Warn("metrics: no certificate yet", zap.String("file", t.MetricsTLS.Cert.V))
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTime)
	defer cancel()
	ln, err := s.listen(ctx, net.JoinHostPort(t.MetricsHost.V, s.config.MetricsPort.String()), s.smallBuffers)
	if err != nil && t.MetricsHost.V != "" && !isConfigError(err) {
		s.log.Warn("metrics are not served", zap.Error(fmt.Errorf("%s: %w", s.config.MetricsHost.Name(), err)))
		return nil, nil
	}
	if err != nil || s.metricsPair == nil {
		return ln, err
	}
	return fair.Handshakes{
		Config: s.metricsPair.Config(&tls.Config{
			MinVersion:       t.MetricsTLS.MinVersion.V,
			MaxVersion:       t.MetricsTLS.MaxVersion.V,
			CipherSuites:     t.MetricsTLS.CipherSuites.V,
			CurvePreferences: t.MetricsTLS.Curves.V,
			NextProtos:       []string{"http/1.1"}, // scrapers do not need HTTP/2, and HTTP/2 streams would require bounds
		}),
		Max:    s.files.handshakes,
		Bytes:  smallShake,
		Time:   min(s.config.HeaderTimeout.V, smallRequest),
		Bounds: s.bounds,
		Failed: func(client net.Addr, err error) {
			if n := s.failedHandshakes.Add(time.Now()); n > 0 {
				s.log.Warn("metrics: TLS handshakes failed", zap.Int("handshakes", n), zap.Stringer("client", client), zap.String("error", observation.Shown(err.Error())))
			}
		},
	}.Listener(ln), nil
}

// metricsTLS returns the certificate of the metrics port, or nil if none is configured. The
// settings have the same names as in the main branch of Knative. metricsTLS returns an error if they
// are invalid.
func (s *sidecar) metricsTLS() (*certs.Watcher, error) {
	c := &s.config.MetricsTLS
	if err := c.Validate(); err != nil || c.Cert.V == "" {
		return nil, err
	}
	o := s.certificateOptions("metrics: ")
	o.ClientCA, o.ClientOptional = c.ClientCA.V, c.ClientOptional()
	return certs.OpenFiles(c.Cert.V, c.Key.V, o)
}
