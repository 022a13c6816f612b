package sidecar

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

// Warnings returns the warnings about settings that the sidecar logs when it starts. It reads the files that the
// settings name, and opens the outputs of the log.
func Warnings(c *config.Config) []string {
	log, _, warnings := NewLogger(c)
	_ = log.Sync()
	s := &sidecar{config: c, log: zap.NewNop(), settingWarnings: warnings}
	if c.MetricsNames.V != "off" {
		if _, err := s.metricsTLS(); err != nil {
			s.warnSetting("metrics are not served", err)
		}
	}
	if _, err := s.openCertificates(); err != nil {
		s.warnSetting("the sidecar does not start", err)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	if l := s.requestLog(); l != nil {
		_ = l.Close(stopped)
	}
	if t := s.tracer(); t != nil {
		_ = t.Close(stopped)
	}
	if push := s.pushOptions(); push.Protocol != export.None && push.Protocol != "" {
		if _, release, err := export.New(push.Target); err != nil {
			s.warnSetting("metrics are not pushed", fmt.Errorf("metrics push: %w", err))
		} else {
			release()
		}
	}
	return s.warnings()
}

// warnings returns the warnings about settings.
func (s *sidecar) warnings() []string {
	hasCertificate := false // a missing certificate can be created after startup
	if s.pair != nil {
		t := s.tlsState()
		hasCertificate = t.On || t.Error != ""
	}
	return append(s.config.Warnings(hasCertificate), s.settingWarnings...)
}

// warnSetting adds a warning about a setting that package config does not validate.
func (s *sidecar) warnSetting(effect string, err error) {
	s.settingWarnings = append(s.settingWarnings, effect+": "+err.Error())
}
