package tracing

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A collector that does not respond or that resets connections must not delay the exit of the
// process. Package export limits the time of an export in all other cases.
func TestTracerCloseIgnoresSlowCollector(t *testing.T) {
	for name, serve := range map[string]func(*harness.AppConn){
		"no answer": (*harness.AppConn).Hang,
		"a reset":   (*harness.AppConn).Reset,
	} {
		for _, protocol := range []export.Protocol{export.Zipkin, export.OTLP, export.OTLPJSON, export.OTLPGRPC} {
			t.Run(string(protocol)+", "+name, func(t *testing.T) {
				closeOnTime(t, protocol, "http://"+harness.NewApp(t, serve).Address())
			})
		}
	}
}

func closeOnTime(t *testing.T, protocol export.Protocol, endpoint string) {
	t.Helper()
	tracer, err := New(Options{Target: export.Target{Protocol: protocol, Endpoint: endpoint, Timeout: time.Minute}, Sampling: always})
	harness.NoError(t, err)
	for range maxQueued / 2 {
		finish(tracer.Begin(carrying(http.Header{})), get("/"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = harness.Within(t, "end of Close", func() error { return tracer.Close(ctx) }) // spans may be lost
	// Close returns one second after the context is done, even if the exporter is still running.
	harness.NoError(t, harness.Within(t, "end of the exporter", func() error { return tracer.Close(t.Context()) }))
}
