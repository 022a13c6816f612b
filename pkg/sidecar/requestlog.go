package sidecar

import (
	"os"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/observe/accesslog"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// requestLog returns the request log, or nil if it is disabled.
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
		Restored: func(dropped uint64) {
			s.log.Info("request log resumed", zap.Uint64("dropped", dropped))
		},
		WriteNow: netconn.WriteNow,
	}
	if !t.WantRequestLog.V { // REQUEST_LOG always writes JSON
		options.Template = t.RequestLogTemplate.V
		if o.EnableRequestLog {
			options.Template = o.RequestLogTemplate
		}
	}
	l, err := accesslog.New(options, os.Stdout)
	if err != nil {
		s.warnSetting("lines of the request log are written as JSON", err)
		options.Template = ""
		l, _ = accesslog.New(options, os.Stdout) // only the template can be invalid
	}
	return l
}
