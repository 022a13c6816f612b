package knative

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/networking/pkg/certificates"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/queue"
	"knative.dev/serving/pkg/reconciler/revision/resources"
)

// minServices is the minimum number of environments for each release.
const minServices = 20

// Each Knative Service becomes a pod. Its sidecar starts with the generated environment, logs
// no warnings, becomes ready with its app, and serves requests.
func generatedEnvironmentStartsSidecar(t *testing.T, r *Release) {
	names := serviceNames(t, r.Name)
	if len(names) < minServices {
		t.Errorf("got %d Services, want at least %d", len(names), minServices)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { environmentServes(t, name) })
	}
}

func environmentServes(t *testing.T, service string) {
	startCollector(t)
	p := newPod(t, service)
	c := p.container(t, resources.QueueContainerName)
	secure := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == queue.CertDirectory })
	if secure {
		mountCertificate(t, queue.CertDirectory, newCertificate(t, certificates.DataPlaneUserSAN(p.Namespace)))
	}
	p.start()
	if err := p.readiness(); err == nil && c.ReadinessProbe != nil {
		t.Errorf("the sidecar is ready, but the app has not started")
	}
	a := startApp(p)
	p.waitUntilReady()

	answer, body := p.get(p.url("/a%2Fb?c=d"))
	if want := answer.Proto + " /a/b"; answer.StatusCode != http.StatusOK || body != want || a.requests.Load() != 1 {
		t.Errorf("got %s %q and %d requests in the app, want 200 %q and 1", answer.Status, body, a.requests.Load(), want)
	}
	stat, err := p.stat()
	if err != nil || stat.PodName != p.value("SERVING_POD") {
		t.Errorf("got statistics of pod %q, %v, want %q", stat.PodName, err, p.value("SERVING_POD"))
	}
	if err := p.servesTLS(); (err == nil) != secure {
		t.Errorf("request with TLS: got %v, want success: %v", err, secure)
	}
	p.logsNoWarnings()
}

// servesTLS sends a request to the TLS port.
func (p *pod) servesTLS() error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	_, _, err := p.ask(&http.Client{Transport: transport}, "https://"+net.JoinHostPort(podIP, p.value("QUEUE_SERVING_TLS_PORT"))+"/")
	return err
}

// stat scrapes the statistics once, like the autoscaler.
func (p *pod) stat() (metrics.Stat, error) {
	answer, body, err := p.ask(&http.Client{}, "http://"+at(statisticsPort)+"/metrics", "Accept: application/protobuf")
	if err != nil {
		return metrics.Stat{}, err
	}
	var s metrics.Stat
	if answer.StatusCode != http.StatusOK {
		return s, errors.New(answer.Status)
	}
	return s, s.Unmarshal([]byte(body))
}

// expected lists the expected warnings: the app was not ready at first, and OpenCensus is not
// supported (docs/metrics.md).
var expected = []string{"the user container is not ready", "metrics are not pushed"}

// problemMarkers are substrings of log lines that report problems.
var problemMarkers = []string{`"severity":"WARN`, `"severity":"ERROR`, `"level":"warn`, `"level":"error`, "panic", "DATA RACE"}

// logsNoWarnings reports an error for each unexpected warning in the log of the sidecar.
func (p *pod) logsNoWarnings() {
	p.t.Helper()
	for line := range strings.Lines(p.sidecar.out.String()) {
		has := func(words string) bool { return strings.Contains(line, words) }
		if slices.ContainsFunc(problemMarkers, has) && !slices.ContainsFunc(expected, has) {
			p.t.Errorf("unexpected log line %s", line)
		}
	}
}
