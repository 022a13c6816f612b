package sidecar

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/zap"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestTracerRejectsOwnPorts(t *testing.T) {
	for endpoint, on := range map[string]bool{"http://127.0.0.1:8012": false, "http://127.0.0.1:8112": false, "http://127.0.0.1:8080": true} {
		c := config.Default()
		c.OTel.Endpoint.V = endpoint
		s := &sidecar{log: zap.NewNop(), config: c}
		tracer := s.tracer()
		harness.Equal(t, (tracer != nil), on, endpoint, "tracing", tracer != nil)
		harness.Equal(t, tracer.Close(t.Context()), nil, endpoint)
	}
}

// If the command `queue-proxy why` changed the recorded readiness, it could resolve an alert.
func TestCheckForStatusIsNotRecorded(t *testing.T) {
	app := httptest.NewServer(http.NotFoundHandler())
	defer app.Close()
	port := app.Listener.Addr().(*net.TCPAddr).Port
	s := built(t, func(c *config.Config) {
		c.Probes.V = []probe.Probe{{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: int32(port)}}, PeriodSeconds: 1}}
	})
	before := s.prober.State()
	harness.Equal(t, s.check(t.Context()).Ready(), true, "result of the check")
	after := s.prober.State()
	after.At = before.At
	harness.Equal(t, fmt.Sprint(after), fmt.Sprint(before), "state")
	_, probed, _ := s.readyReason()
	harness.Equal(t, probed, false, "probed")
	harness.NoError(t, s.prober.Ready(t.Context()))
	ready, probed, _ := s.readyReason()
	harness.Equal(t, ready && probed, true, "ready after a probe")
}

// If TLSPort equals UserPort, TLS is not served and the port does not belong to the sidecar.
func TestProbeFollowsRedirectToUserPort(t *testing.T) {
	app := httptest.NewServer(http.RedirectHandler("/", http.StatusFound))
	defer app.Close()
	port := app.Listener.Addr().(*net.TCPAddr).Port
	s := built(t, func(c *config.Config) {
		c.UserPort.V, c.TLSPort.V = port, port
		c.Probes.V = []probe.Probe{{HTTPGet: &probe.HTTPGetAction{Port: probe.Port{Number: int32(port)}}, PeriodSeconds: 1}}
	})
	harness.Contains(t, fmt.Sprint(s.prober.Ready(t.Context())), "redirect", "a redirect without an end")
}
