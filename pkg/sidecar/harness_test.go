package sidecar

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// built returns a sidecar without probes and with the settings that change modifies. The sidecar
// serves no port and stops at the end of the test.
func built(t testing.TB, change func(c *config.Config)) *sidecar {
	t.Helper()
	c := config.Default()
	c.Probes.V = nil
	change(c)
	s := &sidecar{process: Process{Log: zap.NewNop(), Started: time.Now()}, config: c, log: zap.NewNop()}
	s.divideFiles()
	harness.NoError(t, s.build())
	t.Cleanup(func() {
		s.proxy.Drain.Abort()
		harness.Equal(t, s.stop(), nil, "stop")
	})
	return s
}
