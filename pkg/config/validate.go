package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/probe"
	"github.com/queue-proxy/queue-proxy/pkg/proxy/adapt"
)

const (
	depthPerSlot       = 10   // queue depth per slot, as in Knative (docs/promises.md 3.1)
	defaultStart       = 4    // default of CONCURRENCY_START
	defaultMetricsPort = 9091 // port of request metrics in Knative
	minMetricsPort     = 1024 // minimum port in requestMetrics.endpoint, as in Knative; lower ports are privileged

	defaultQuiet  = 30 * time.Second // quiet period of Knative (docs/promises.md 3.5)
	graceDeadline = 27 * time.Second // default grace period of Kubernetes (30 s) minus afterDrain
	afterDrain    = 3 * time.Second  // maximum time from the end of the drain until the process exits
)

// Ceiling returns the maximum number of concurrent requests in the user container. If the limit is adaptive,
// this is the maximum of the adaptive limit. 0 means no limit.
func (c *Config) Ceiling() int {
	if c.ConcurrencyMode.V == AdaptiveConcurrency {
		return adapt.Settings{Max: c.Concurrency.V}.Ceiling()
	}
	return c.Concurrency.V
}

// derive sets the unset settings that depend on other settings. The order of the statements matters,
// because a setting can depend on the settings above it.
func (c *Config) derive() {
	host, port := c.metricsEndpoint()
	c.OnKnative.derive(c.serving)
	c.MetricsPort.derive(cmp.Or(port, defaultMetricsPort))
	c.QueueDepth.derive(depthPerSlot * c.Ceiling())
	scope := WholeRequest
	if c.OnKnative.V && !c.Observability.V.isSet() {
		scope = FirstByte
	}
	c.RequestTimeoutScope.derive(scope)
	var probes []probe.Probe
	if !c.OnKnative.V {
		// The default is an aggressive TCP probe (docs/promises.md 2.1).
		probes = []probe.Probe{{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: int32(c.UserPort.V)}}}}
	}
	c.Probes.derive(probes)
	c.DrainDeadline.derive(c.defaultDeadline())
	c.DrainQuietPeriod.derive(min(defaultQuiet, c.DrainDeadline.V/2))
	c.MetricsNames.derive(c.metricsNames())
	c.MetricsHost.derive(host)
}

// defaultDeadline returns the default of DrainDeadline (docs/promises.md 3.5). In Knative, the grace period is equal to
// the request timeout. If the request timeout is less than 4 s, the drain takes half of this timeout, but at most 1 s.
func (c *Config) defaultDeadline() time.Duration {
	timeout := c.RequestTimeout.V
	if !c.OnKnative.V || timeout == 0 {
		return graceDeadline
	}
	return max(timeout-afterDrain, min(timeout/2, time.Second), time.Millisecond)
}

// metricsNames returns the default of MetricsNames. On Knative, the control plane requests metrics in one
// of two variables. If it requests no metrics, the default is "off".
func (c *Config) metricsNames() string {
	switch {
	case c.Observability.V.RequestMetrics.Protocol == "prometheus":
		return "knative-head"
	case c.MetricsBackend.V == "prometheus":
		return "knative-1.18"
	case c.OnKnative.V:
		return "off"
	}
	return "default"
}

// metricsEndpoint returns the address and the port for metrics that a Knative control plane configured.
// The port is 0 if the endpoint is unset or invalid, or if another listener uses the port. This is not an
// error, because telemetry never stops traffic (docs/promises.md 3.9).
func (c *Config) metricsEndpoint() (host string, port int) {
	requested := &c.Observability.V.RequestMetrics
	if requested.Protocol != "prometheus" || requested.Endpoint == "" {
		return "", 0
	}
	host, text, err := net.SplitHostPort(requested.Endpoint)
	if err != nil {
		return "", 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	others := []int{c.UserPort.V, c.Port.V, c.TLSPort.V, c.AdminPort.V, c.AutoscalerPort.V, c.StatusPort.V}
	if err != nil || n < minMetricsPort || slices.Contains(others, int(n)) {
		return "", 0
	}
	return host, int(n)
}

// validate validates settings that depend on each other. It does not report a second error for a value that
// is invalid. It may record a warning about such a value, because warnings are not shown if there is an error.
func (in *reading) validate() {
	c := in.c
	if c.serving && c.OnKnative.V && c.OnKnative.unset() && c.Namespace.V == "" {
		// All releases of Knative set the namespace, but a manifest that was written by hand may omit it.
		in.warn("%s: the default is true because a %s* variable is set, but %s is not set; outside Knative, set %s=false",
			c.OnKnative.Name(), servingPrefix, c.Namespace.Name(), c.OnKnative.Name())
	}
	in.validatePorts()
	requested := &c.Observability.V.RequestMetrics
	if _, port := c.metricsEndpoint(); port == 0 && requested.Protocol == "prometheus" && requested.Endpoint != "" {
		in.warn("%s: requestMetrics.endpoint: %s: the value must contain a host and a free port from %d to 65535; using port %d",
			c.Observability.Name(), quote(redactURL(requested.Endpoint)), minMetricsPort, c.MetricsPort.V)
	}
	in.warnMetricsHost()
	in.warnProbeHosts()
	in.validateConcurrency()
	in.validateTLS()
	in.warnNoEffect()
	in.validateDrain()
}

// quoted returns the quoted text of the variable, or the quoted value of an unset variable.
func quoted(s setting) string {
	return quote(cmp.Or(s.at().field.text, s.String()))
}

// warnMetricsHost reports an invalid host for metrics. The host is not replaced with the default, because metrics
// must not be served on more addresses than the user configured.
func (in *reading) warnMetricsHost() {
	host := &in.c.MetricsHost
	if host.unset() || isHost(host.V) {
		return
	}
	in.warn("%s: %s: must be a host name or an IP address, without a port; metrics are not served", host.Name(), quote(host.V))
}

// isHost reports whether a text is an IP address or can be a host name. The last label of a host name is not a number.
func isHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	labels := strings.Split(strings.TrimSuffix(text, "."), ".")
	_, err := strconv.Atoi(labels[len(labels)-1])
	return err != nil && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

// warnProbeHosts reports readiness probes that may pass even if the user container does not listen on the
// loopback address.
func (in *reading) warnProbeHosts() {
	c := in.c
	for i := range c.Probes.V {
		if field, host := c.Probes.V[i].OtherHost(); host != "" {
			in.warn("%s: %s: %q: the host of a probe must be a loopback address, because requests are sent to port %d of the loopback interface; omit the host",
				c.Probes.Name(), field, host, c.UserPort.V)
		}
	}
}

// validatePorts reports listeners that have the same port.
func (in *reading) validatePorts() {
	c := in.c
	var seen []*Port
	for _, f := range in.fields {
		p, ok := f.setting.(*Port)
		if !ok || p.bad() {
			continue
		}
		for _, other := range seen {
			if other.V != p.V {
				continue
			}
			// Knative allows TLSPort to be equal to UserPort. This works in Knative only if there is
			// no certificate.
			if p == &c.TLSPort && other == &c.UserPort {
				in.warn("%s: %s: the port is also used by %s; TLS is not served", p.Name(), quoted(p), other.Name())
				continue
			}
			this, that := p, other
			if this.unset() && !that.unset() {
				this, that = that, this // report the variable that is set
			}
			in.problem(this.Name(), "%s: must be different from %s", quoted(this), that.Name())
		}
		seen = append(seen, p)
		if c.MergePort.V == p.V && p != &c.UserPort {
			// If MergePort were the metrics port, each scrape would start another scrape. If it were
			// another port of the sidecar, a scrape would count as a request.
			in.warn("%s: %s: the port is also used by %s; the application metrics are not merged", c.MergePort.Name(), quoted(&c.MergePort), p.Name())
			c.MergePort.V = 0
		}
	}
}

// validateConcurrency validates the settings of an adaptive limit.
func (in *reading) validateConcurrency() {
	c := in.c
	if c.ConcurrencyMode.V != AdaptiveConcurrency && c.ConcurrencyStart.V != defaultStart {
		in.warn("%s: ignored because %s is %s", c.ConcurrencyStart.Name(), c.ConcurrencyMode.Name(), c.ConcurrencyMode.V)
	}
	minimum, maximum := &c.ConcurrencyMin, &c.Concurrency
	switch {
	case maximum.bad() || minimum.V == 1:
	case c.ConcurrencyMode.V != AdaptiveConcurrency:
		in.warn("%s: ignored because %s is %s", minimum.Name(), c.ConcurrencyMode.Name(), c.ConcurrencyMode.V)
	case minimum.V > c.Ceiling():
		in.problem(minimum.Name(), "%s: must be at most %s, which is %d", quoted(minimum), maximum.Name(), c.Ceiling())
	}
}

func (in *reading) validateTLS() {
	c := in.c
	minimum, maximum := &c.TLSMinVersion, &c.TLSMaxVersion
	if !minimum.bad() && maximum.V != 0 && maximum.V < minimum.V {
		in.problem(maximum.Name(), "%s: must be at least %s, which is %s", quoted(maximum), minimum.Name(), minimum)
	}
	if c.TLSCipherSuites.V != nil && minimum.V == tls.VersionTLS13 {
		in.warn("%s: ignored because %s is %s", c.TLSCipherSuites.Name(), minimum.Name(), minimum)
	}
}

// noCertificate returns a warning if the certificate directory contains no certificate, and otherwise nil. It ignores
// the default directory, and all directories on Knative, because Knative mounts an empty directory if TLS is disabled.
func (c *Config) noCertificate() []string {
	dir := &c.CertDir
	if !c.ownFiles || dir.unset() || c.OnKnative.V {
		return nil
	}
	for _, file := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir.V, file)); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s: %s: tls.crt and tls.key not found; TLS is not served", dir.Name(), quote(dir.V))}
}

// warnNoEffect reports settings that have no effect because of other settings.
func (in *reading) warnNoEffect() {
	c := in.c
	if c.Ceiling() == 0 && c.QueueDepth.V != 0 {
		in.warn("%s: ignored because %s is 0", c.QueueDepth.Name(), c.Concurrency.Name())
	}
	if c.Ceiling() == 0 && c.QueueTimeout.V != 0 {
		in.warn("%s: ignored because %s is 0", c.QueueTimeout.Name(), c.Concurrency.Name())
	}
	if c.MergePort.V != 0 && c.MetricsNames.V == "off" {
		in.warn("%s: ignored because %s is %s", c.MergePort.Name(), c.MetricsNames.Name(), c.MetricsNames.V)
	}
	const ignoredTemplate = "ignored because %s is true, which writes JSON; to use the template, set %s instead of %s"
	if c.WantRequestLog.V && c.RequestLogTemplate.V != "" {
		in.warn("%s: "+ignoredTemplate, c.RequestLogTemplate.Name(), c.WantRequestLog.Name(), c.RequestLog.Name(), c.WantRequestLog.Name())
	}
	if c.WantRequestLog.V && c.Observability.V.RequestLogTemplate != "" {
		in.warn("%s: requestLogTemplate: "+ignoredTemplate, c.Observability.Name(), c.WantRequestLog.Name(), "enableRequestLog", c.WantRequestLog.Name())
	}
	if c.MetricsBackend.V == "opencensus" {
		in.warn("%s: %s: metrics are not pushed, because the backend is not supported; use %s to select the served metrics",
			c.MetricsBackend.Name(), quote(c.MetricsBackend.V), c.MetricsNames.Name())
	}
}

func (in *reading) validateDrain() {
	c := in.c
	deadline, quiet := &c.DrainDeadline, &c.DrainQuietPeriod
	if deadline.bad() || c.RequestTimeout.bad() {
		return
	}
	if c.DrainMin.V > deadline.V {
		in.problem(c.DrainMin.Name(), "%s: must be at most %s, which is %v", quoted(&c.DrainMin), deadline.Name(), deadline.V)
	}
	if half := deadline.V / 2; quiet.V > half {
		in.warn("%s: %s: must be at most half of %s; using %v", quiet.Name(), quoted(quiet), deadline.Name(), half)
		quiet.V, quiet.from = half, ""
	}
}

// Values of METRICS_PROMETHEUS_TLS_CLIENT_AUTH.
const (
	optionalClients = "optional"
	requireClients  = "require"
)

// clientAuth returns the value of ClientAuth in lower case, without spaces around it.
func (m *MetricsTLS) clientAuth() string {
	return strings.ToLower(strings.TrimSpace(m.ClientAuth.V))
}

// ClientOptional reports whether a scraper can connect without a certificate. If a scraper presents a
// certificate, the certificate must be valid.
func (m *MetricsTLS) ClientOptional() bool { return m.clientAuth() == optionalClients }

// Validate returns an error if the settings are inconsistent. In this case, the caller must not serve
// metrics. Otherwise metrics could be served without the TLS or client authentication that the user
// configured.
func (m *MetricsTLS) Validate() error {
	auth := m.clientAuth()
	verifies := auth == optionalClients || auth == requireClients
	switch {
	case (m.Cert.V == "") != (m.Key.V == ""):
		return fmt.Errorf("%s and %s: must be set together", m.Cert.Name(), m.Key.Name())
	case auth != "" && m.ClientAuth.Check(auth) != nil:
		return fmt.Errorf("%s: %w", m.ClientAuth.Name(), m.ClientAuth.Check(m.ClientAuth.V))
	case verifies != (m.ClientCA.V != ""):
		return fmt.Errorf("%s: requires %s=optional or %s=require", m.ClientCA.Name(), m.ClientAuth.Name(), m.ClientAuth.Name())
	case m.ClientCA.V != "" && m.Cert.V == "":
		return fmt.Errorf("%s: requires %s", m.ClientAuth.Name(), m.Cert.Name())
	}
	return nil
}
