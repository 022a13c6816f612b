package sidecar

import (
	"testing"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
)

func TestTracesDoNotLeadBackToTheSidecar(t *testing.T) {
	for endpoint, on := range map[string]bool{"http://127.0.0.1:8012": false, "http://127.0.0.1:8112": false, "http://127.0.0.1:8080": true} {
		c := config.Default()
		c.OTel.Endpoint.V = endpoint
		s := &sidecar{log: zap.NewNop(), config: c}
		tracer := s.tracer()
		if (tracer != nil) != on {
			t.Errorf("%s: got tracing %v, want %v", endpoint, tracer != nil, on)
		}
		if err := tracer.Close(t.Context()); err != nil {
			t.Errorf("%s: got %v, want no error", endpoint, err)
		}
	}
}
