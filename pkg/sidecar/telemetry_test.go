package sidecar

import (
	"testing"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestTracesDoNotLeadBackToTheSidecar(t *testing.T) {
	for endpoint, on := range map[string]bool{"http://127.0.0.1:8012": false, "http://127.0.0.1:8112": false, "http://127.0.0.1:8080": true} {
		c := config.Default()
		c.OTel.Endpoint.V = endpoint
		s := &sidecar{log: zap.NewNop(), config: c}
		tracer := s.tracer()
		harness.Equal(t, (tracer != nil), on, endpoint, "tracing", tracer != nil)
		harness.Equal(t, tracer.Close(t.Context()), nil, endpoint)
	}
}
