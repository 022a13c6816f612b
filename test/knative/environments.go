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

// fewestServices is how many environments a release must be tried with.
const fewestServices = 20

// A Knative Service of every kind becomes a pod whose sidecar starts with what the
// reconciler wrote, complains of nothing, becomes ready with its app, and serves.
func everyGeneratedEnvironmentServes(t *testing.T, r *Release) {
	names := serviceNames(t, r.Name)
	if len(names) < fewestServices {
		t.Errorf("got %d Services, want at least %d", len(names), fewestServices)
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
		t.Errorf("got ready without an app, want not ready")
	}
	a := startApp(p)
	p.waitUntilReady()

	answer, body := p.get(p.url("/a%2Fb?c=d"))
	if want := answer.Proto + " /a/b"; answer.StatusCode != http.StatusOK || body != want || a.requests.Load() != 1 {
		t.Errorf("got %s %q and %d requests of the app, want 200 %q and 1", answer.Status, body, a.requests.Load(), want)
	}
	stat, err := p.stat()
	if err != nil || stat.PodName != p.value("SERVING_POD") {
		t.Errorf("got the statistics of pod %q, %v; want those of %q", stat.PodName, err, p.value("SERVING_POD"))
	}
	if err := p.servesTLS(); (err == nil) != secure {
		t.Errorf("over TLS got %v, want success: %v", err, secure)
	}
	p.complainsOfNothing()
}

// servesTLS asks over the TLS port.
func (p *pod) servesTLS() error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	_, _, err := p.ask(&http.Client{Transport: transport}, "https://"+net.JoinHostPort(podIP, p.value("QUEUE_SERVING_TLS_PORT"))+"/")
	return err
}

// stat reads the statistics as the autoscaler does, once.
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

// expected is what the log rightly says: of the app, which was not there at first, and of
// OpenCensus, to which we push nothing (docs/metrics.md).
var expected = []string{"the user container is not ready", "it is not spoken"}

// complaints are how a line of the log says that something is wrong.
var complaints = []string{`"severity":"WARN`, `"severity":"ERROR`, `"level":"warn`, `"level":"error`, "panic", "DATA RACE"}

// complainsOfNothing fails the test if the sidecar found fault with its environment.
func (p *pod) complainsOfNothing() {
	p.t.Helper()
	for line := range strings.Lines(p.sidecar.out.String()) {
		has := func(words string) bool { return strings.Contains(line, words) }
		if slices.ContainsFunc(complaints, has) && !slices.ContainsFunc(expected, has) {
			p.t.Errorf("the sidecar complains: %s", line)
		}
	}
}
