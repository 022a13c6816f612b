package config

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func prometheusAt(endpoint string) string {
	return `{"requestMetrics":{"protocol":"prometheus","endpoint":"` + endpoint + `"}}`
}

// Knative sets the endpoint from request-metrics-endpoint in the ConfigMap config-observability.
func TestReadMetricsEndpointFromObservabilityConfig(t *testing.T) {
	for _, c := range []struct {
		settings []string
		host     string
		port     int
	}{
		{[]string{"OBSERVABILITY_CONFIG", prometheusAt("0.0.0.0:9191")}, "0.0.0.0", 9191},
		{[]string{"OBSERVABILITY_CONFIG", prometheusAt(":9191")}, "", 9191},
		{[]string{"OBSERVABILITY_CONFIG", prometheusAt("[::1]:9191")}, "::1", 9191},
		{[]string{"OBSERVABILITY_CONFIG", prometheusAt("")}, "", 9091},
		{[]string{"OBSERVABILITY_CONFIG", `{"requestMetrics":{"protocol":"grpc","endpoint":"collector:9191"}}`}, "", 9091},
		{[]string{"OBSERVABILITY_CONFIG", prometheusAt("0.0.0.0:9191"), "METRICS_PROMETHEUS_PORT", "9292"}, "0.0.0.0", 9292},
		{[]string{"OBSERVABILITY_CONFIG", prometheusAt("0.0.0.0:9191"), "METRICS_PROMETHEUS_HOST", "127.0.0.1"}, "127.0.0.1", 9191},
	} {
		got := read(t, c.settings...)
		harness.Equal(t, got.MetricsHost.V, c.host, c.settings, "host")
		harness.Equal(t, got.MetricsPort.V, c.port, c.settings, "port")
		harness.Equal(t, got.Warnings(false), nil, c.settings, "warnings")
	}
}

func TestInvalidMetricsHostIsReported(t *testing.T) {
	for host, valid := range map[string]bool{
		"127.0.0.1": true, "::1": true, "fe80::1%eth0": true, "localhost": true, "pod-1.example": true, "a.1.b.": true,
		"999.1.1.1": false, "1": false, "127.0.0.1:9091": false, "[::1]": false, "a b": false,
	} {
		c := read(t, "METRICS_PROMETHEUS_HOST", host)
		harness.Equal(t, c.MetricsHost.V, host)
		var want []string
		if !valid {
			want = []string{"METRICS_PROMETHEUS_HOST: \"" + host + "\": must be a host name or an IP address, without a port; metrics are not served"}
		}
		harness.Equal(t, c.Warnings(false), want, host)
	}
}

// Telemetry never stops traffic (docs/promises.md 3.9).
func TestReadInvalidMetricsEndpointUsesDefault(t *testing.T) {
	for _, endpoint := range []string{"9191", "host", "0.0.0.0:80", "0.0.0.0:70000", "0.0.0.0:http", ":8012", ":8008"} {
		c := read(t, "OBSERVABILITY_CONFIG", prometheusAt(endpoint))
		harness.Equal(t, c.MetricsPort.V, 9091, endpoint, "port")
		harness.Equal(t, c.MetricsHost.V, "", endpoint, "host")
		harness.Contains(t, strings.Join(c.Warnings(false), "\n"), "requestMetrics.endpoint", endpoint, "warnings")
	}
}
