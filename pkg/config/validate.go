package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/adapt"
	"github.com/queue-proxy/queue-proxy/pkg/probe"
)

const (
	depthPerSlot       = 10   // Knative's queue, docs/promises.md 3.1
	defaultStart       = 4    // of CONCURRENCY_START
	defaultMetricsPort = 9091 // Knative's for the metrics of a user container
	leastMetricsPort   = 1024 // Knative takes no less in requestMetrics.endpoint: below are the ports of privileged processes

	longestQuiet  = 30 * time.Second // Knative's, docs/promises.md 3.5
	graceDeadline = 27 * time.Second // Kubernetes' default grace of 30 s less afterDrain
	afterDrain    = 3 * time.Second  // what the end of the process may take after the drain
)

// Ceiling returns the maximum number of requests in the user container, including the maximum of
// an adaptive limit. 0 means no limit.
func (c *Config) Ceiling() int {
	if c.ConcurrencyMode.V == AdaptiveConcurrency {
		return adapt.Settings{Max: c.Concurrency.V}.Ceiling()
	}
	return c.Concurrency.V
}

// derive gives the settings that nobody has set, and that depend on others, their
// values. Each reads those above it.
func (c *Config) derive() {
	host, port := c.metricsEndpoint()
	c.OnKnative.derive(c.serving)
	c.MetricsPort.derive(cmp.Or(port, defaultMetricsPort))
	c.QueueDepth.derive(depthPerSlot * c.Ceiling())
	scope := WholeRequest
	if c.OnKnative.V && !c.Observability.V.sent() {
		scope = FirstByte
	}
	c.RequestTimeoutScope.derive(scope)
	var probes []probe.Probe
	if !c.OnKnative.V {
		// As soon and as often as an aggressive one asks (docs/promises.md 2.1).
		probes = []probe.Probe{{TCPSocket: &probe.TCPSocketAction{Port: probe.Port{Number: int32(c.UserPort.V)}}}}
	}
	c.Probes.derive(probes)
	c.DrainDeadline.derive(c.defaultDeadline())
	c.DrainQuietPeriod.derive(min(longestQuiet, c.DrainDeadline.V/2))
	c.MetricsNames.derive(c.metricsNames())
	c.MetricsHost.derive(host)
}

// defaultDeadline is docs/promises.md 3.5. Knative makes the grace period as long as
// the request timeout; one of less than four seconds leaves the drain what it can.
func (c *Config) defaultDeadline() time.Duration {
	timeout := c.RequestTimeout.V
	if !c.OnKnative.V || timeout == 0 {
		return graceDeadline
	}
	return max(timeout-afterDrain, min(timeout/2, time.Second), time.Millisecond)
}

// metricsNames returns the metrics that are served where nobody names them: those
// that a Knative control plane asks for, by whichever variable it has, and ours
// elsewhere.
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

// metricsEndpoint returns the address and the port that a Knative control plane wants
// the metrics on; port 0: it says nothing, or what is no "host:port". A port that is
// taken does not stop us, because telemetry never does (docs/promises.md 3.9).
func (c *Config) metricsEndpoint() (host string, port int) {
	asked := &c.Observability.V.RequestMetrics
	if asked.Protocol != "prometheus" || asked.Endpoint == "" {
		return "", 0
	}
	host, text, err := net.SplitHostPort(asked.Endpoint)
	if err != nil {
		return "", 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	others := []int{c.UserPort.V, c.Port.V, c.TLSPort.V, c.AdminPort.V, c.AutoscalerPort.V, c.StatusPort.V}
	if err != nil || n < leastMetricsPort || slices.Contains(others, int(n)) {
		return "", 0
	}
	return host, int(n)
}

// validate looks at settings that must fit one another. What is known to be bad is not
// reported a second time. Warnings need no such care: none is seen beside a problem.
func (in *reading) validate() {
	c := in.c
	if c.serving && c.OnKnative.V && c.OnKnative.unset() && c.Namespace.V == "" {
		// No release of Knative does that; somebody who writes the sidecar by hand does.
		in.warn("%s: true is assumed, because a %s* variable is set, though %s is not; outside Knative, set it to false",
			c.OnKnative.Name(), servingPrefix, c.Namespace.Name())
	}
	in.validatePorts()
	asked := &c.Observability.V.RequestMetrics
	if _, port := c.metricsEndpoint(); port == 0 && asked.Protocol == "prometheus" && asked.Endpoint != "" {
		in.warn("%s: requestMetrics.endpoint: %s: not host:port with a free port from %d to 65535; the default is used",
			c.Observability.Name(), quote(redactURL(asked.Endpoint)), leastMetricsPort)
	}
	in.warnOfProbeHosts()
	in.validateConcurrency()
	in.validateTLS()
	in.warnOfNoEffect()
	in.validateDrain()
}

// warnOfProbeHosts warns of readiness probes that pass although the user container does not listen
// on localhost.
func (in *reading) warnOfProbeHosts() {
	c := in.c
	for i := range c.Probes.V {
		if field, host := c.Probes.V[i].OtherHost(); host != "" {
			in.warn("%s: %s: %q: the probe checks this address, but requests are sent to 127.0.0.1:%d or [::1]:%d; omit the host",
				c.Probes.Name(), field, host, c.UserPort.V, c.UserPort.V)
		}
	}
}

// validatePorts holds that two listeners cannot share a port.
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
			// Knative allows this one, and it works while there is no certificate.
			if p == &c.TLSPort && other == &c.UserPort {
				in.warn("%s: %s: %s has the same port, so TLS cannot be served", p.Name(), quote(p.String()), other.Name())
				continue
			}
			this, that := p, other
			if this.unset() && !that.unset() {
				this, that = that, this // complain of what somebody wrote
			}
			in.problem("%s: %s: a port of its own; %s has the same", this.Name(), quote(this.String()), that.Name())
		}
		seen = append(seen, p)
		if c.MergePort.V == p.V && p != &c.UserPort {
			// A scrape would scrape itself, or count as a request.
			in.warn("%s: %s: %s has the same, so nothing is merged", c.MergePort.Name(), quote(p.String()), p.Name())
			c.MergePort.V = 0
		}
	}
}

// validateConcurrency holds the floor of an adaptive limit below its ceiling.
func (in *reading) validateConcurrency() {
	c := in.c
	if c.ConcurrencyMode.V != AdaptiveConcurrency && c.ConcurrencyStart.V != defaultStart {
		in.warn("%s: without effect, because %s is %s", c.ConcurrencyStart.Name(), c.ConcurrencyMode.Name(), c.ConcurrencyMode.V)
	}
	least, most := &c.ConcurrencyMin, &c.Concurrency
	switch {
	case most.bad() || least.V == 1:
	case c.ConcurrencyMode.V != AdaptiveConcurrency:
		in.warn("%s: without effect, because %s is %s", least.Name(), c.ConcurrencyMode.Name(), c.ConcurrencyMode.V)
	case least.V > c.Ceiling():
		in.problem("%s: %s: at most %s, which is %d", least.Name(), quote(least.String()), most.Name(), c.Ceiling())
	}
}

func (in *reading) validateTLS() {
	c := in.c
	least, most := &c.TLSMinVersion, &c.TLSMaxVersion
	if !least.bad() && most.V != 0 && most.V < least.V {
		in.problem("%s: %s: at least %s, which is %s", most.Name(), quote(most.String()), least.Name(), least)
	}
	if in.ownFiles {
		in.warnOfNoCertificate()
	}
	if c.TLSCipherSuites.V != nil && least.V == tls.VersionTLS13 {
		in.warn("%s: without effect, because %s is %s", c.TLSCipherSuites.Name(), least.Name(), least)
	}
}

// warnOfNoCertificate looks into a certificate directory that somebody has named.
// Knative mounts one that stays empty where it does not encrypt.
func (in *reading) warnOfNoCertificate() {
	dir := &in.c.CertDir
	if dir.unset() || in.c.OnKnative.V {
		return
	}
	for _, file := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir.V, file)); !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	in.warn("%s: %s: neither tls.crt nor tls.key is there; TLS is not served before they are", dir.Name(), quote(dir.V))
}

// warnOfNoEffect names the settings that others make pointless.
func (in *reading) warnOfNoEffect() {
	c := in.c
	if c.Ceiling() == 0 && c.QueueDepth.V != 0 {
		in.warn("%s: without effect, because %s is 0", c.QueueDepth.Name(), c.Concurrency.Name())
	}
	if c.Ceiling() == 0 && c.QueueTimeout.V != 0 {
		in.warn("%s: without effect, because %s is 0", c.QueueTimeout.Name(), c.Concurrency.Name())
	}
	if c.MergePort.V != 0 && c.MetricsNames.V == "off" {
		in.warn("%s: without effect, because %s is off", c.MergePort.Name(), c.MetricsNames.Name())
	}
	if c.MetricsBackend.V == "opencensus" {
		in.warn("%s: %s: it is not spoken, and no metrics are pushed to it; %s has those that can be scraped",
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
		in.problem("%s: %s: at most %s, which is %v", c.DrainMin.Name(), quote(c.DrainMin.V.String()), deadline.Name(), deadline.V)
	}
	if half := deadline.V / 2; quiet.V > half {
		in.warn("%s: %s: at most half of %s; %v is used", quiet.Name(), quote(quiet.V.String()), deadline.Name(), half)
		quiet.V, quiet.from = half, ""
	}
}

// Words of METRICS_PROMETHEUS_TLS_CLIENT_AUTH.
const (
	noClients       = "none"
	optionalClients = "optional"
	requireClients  = "require"
)

// clients is what the setting of client authentication says, in its own case.
func (m *MetricsTLS) clients() string {
	return strings.ToLower(strings.TrimSpace(m.ClientAuth.V))
}

// ClientOptional reports whether a scraper may come without a certificate, though one
// that it shows must be good.
func (m *MetricsTLS) ClientOptional() bool { return m.clients() == optionalClients }

// Validate says what is wrong with these settings together. Metrics must not be
// served then: who asks for encryption or for clients' certificates never gets them
// without.
func (m *MetricsTLS) Validate() error {
	auth := m.clients()
	asks := auth == optionalClients || auth == requireClients
	switch {
	case (m.Cert.V == "") != (m.Key.V == ""):
		return fmt.Errorf("%s and %s: one is set without the other", m.Cert.Name(), m.Key.Name())
	case auth != "" && auth != noClients && !asks:
		return fmt.Errorf("%s: %q is not none, optional or require", m.ClientAuth.Name(), m.ClientAuth.V)
	case asks != (m.ClientCA.V != ""):
		return fmt.Errorf("%s: it needs %s to be optional or require, which need it", m.ClientCA.Name(), m.ClientAuth.Name())
	case m.ClientCA.V != "" && m.Cert.V == "":
		return fmt.Errorf("%s: it needs %s", m.ClientAuth.Name(), m.Cert.Name())
	}
	return nil
}
