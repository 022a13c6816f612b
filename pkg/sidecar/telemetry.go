package sidecar

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/observe/accesslog"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/pkg/observe/metrics"
	"github.com/queue-proxy/queue-proxy/pkg/observe/status"
	"github.com/queue-proxy/queue-proxy/pkg/observe/tracing"
)

// telemetry contains the metrics, the request log, the tracer and the metrics push. Each part is nil if it is disabled.
// Telemetry never prevents serving (docs/promises.md 3.9). If the settings of a part are invalid, a warning is logged,
// and the part uses defaults or is disabled.
type telemetry struct {
	metrics *metrics.Metrics
	log     *accesslog.Log
	tracer  *tracing.Tracer
	push    *metrics.Push
}

// createTelemetry creates the enabled parts of the telemetry.
func (s *sidecar) createTelemetry() {
	s.telemetry.log = s.requestLog()
	s.telemetry.tracer = s.tracer()
	push := s.pushOptions()
	s.telemetry.metrics = s.makeMetrics(push.Protocol != export.None)
	if push.Protocol == export.None {
		return
	}
	var err error
	if s.telemetry.push, err = s.telemetry.metrics.Push(push); err != nil {
		s.warnSetting("metrics are not pushed", err)
	}
}

// observe is called after each request completes.
func (s *sidecar) observe(o *observation.Observation) {
	s.board.Observe(o)
	if o.Reason == observation.Local {
		s.shortages.recordShortage("connection to the user container", o.Err)
	}
	if problem := s.board.FirstProblem(o); problem != "" {
		hint := map[string]string{
			status.NotHTTP:      "databases and TLS servers are not supported",
			status.NotListening: "the user container must accept connections on the loopback address",
		}[problem]
		s.log.Error(problem, zap.Int("port", s.config.UserPort.V), zap.String("hint", hint+"; set "+s.config.UserPort.Name()+" to the port of the application"), zap.NamedError("error", o.Err))
	}
	s.telemetry.metrics.Observe(o)
	if s.telemetry.log != nil {
		s.telemetry.log.Observe(o)
	}
	s.logFailure(o)
}

// readinessChanged is called each time that the user container becomes ready or stops being ready.
func (s *sidecar) readinessChanged(ready bool) {
	s.telemetry.metrics.ReadinessChanged(ready)
	if !ready {
		s.board.BecameUnready()
	}
}

// probed is called after each probe is answered.
func (s *sidecar) probed(o *observation.Observation) {
	if o.Kind == observation.QueueProbe {
		s.telemetry.metrics.Answered(o.Start, o.Status == http.StatusOK)
	}
	if s.telemetry.log != nil {
		s.telemetry.log.Observe(o)
	}
}

// close flushes all telemetry and reports lost data as an error. It flushes the parts concurrently, so
// that a blocked output does not use up the time for the other outputs.
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
