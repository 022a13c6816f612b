package knative

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	pkgnet "knative.dev/networking/pkg/apis/networking"
	"knative.dev/serving/pkg/reconciler/revision/resources"
)

const (
	adminPort, statisticsPort, metricsPort = 8022, 9090, 9091 // fixed ports of Knative's queue-proxy

	userContainer = "user-container"
)

// A pod represents a pod of a Revision: the sidecar as a process and a replacement for the user
// container. The test performs the actions of the kubelet.
type pod struct {
	t *testing.T
	*revision
	env     []string // environment of the sidecar
	sidecar *process
	client  *http.Client // client that uses the protocol of the Revision's port
}

// newPod creates a pod without starting its processes.
func newPod(t *testing.T, service string) *pod {
	t.Helper()
	p := &pod{t: t, revision: reconcile(t, service)}
	p.env = p.environment(t, p.container(t, resources.QueueContainerName))
	var speaks http.Protocols
	speaks.SetHTTP1(p.GetProtocol() == pkgnet.ProtocolHTTP1)
	speaks.SetUnencryptedHTTP2(p.GetProtocol() == pkgnet.ProtocolH2C)
	transport := &http.Transport{Protocols: &speaks, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	p.client = &http.Client{Transport: transport}
	return p
}

// start starts the sidecar and waits until it answers a network probe, which does not depend on
// the user container.
func (p *pod) start() {
	p.t.Helper()
	p.sidecar = start(p.t, "the sidecar", sidecarUnderTest(p.t), p.env)
	poll(p.t, "the sidecar serves", func() error {
		if p.sidecar.ended() {
			p.t.Fatalf("the sidecar exited with code %d at startup", p.sidecar.code())
		}
		answer, _, err := p.ask(p.client, p.url("/"), "K-Network-Probe: probe", "K-Network-Hash: h")
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}
		return err
	})
}

func sidecarUnderTest(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(sidecarName); filepath.IsAbs(path) {
		return path
	}
	return program(t, "queue-proxy")
}

// value returns a variable in the sidecar's environment.
func (p *pod) value(name string) string {
	p.t.Helper()
	i := slices.IndexFunc(p.env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	if i < 0 {
		p.t.Fatalf("environment of the sidecar: %s not found", name)
	}
	return strings.TrimPrefix(p.env[i], name+"=")
}

func (p *pod) port() int {
	p.t.Helper()
	n, err := strconv.Atoi(p.value("QUEUE_SERVING_PORT"))
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *pod) userPort() int {
	p.t.Helper()
	return int(p.container(p.t, userContainer).Ports[0].ContainerPort)
}

func (p *pod) addr() string           { return at(p.port()) }
func (p *pod) url(path string) string { return "http://" + p.addr() + path }

func at(port int) string { return net.JoinHostPort(podIP, strconv.Itoa(port)) }

// image starts a test program of Knative as the user container with the environment that
// Knative generates. It returns when the program listens.
func (p *pod) image(name string) *process {
	p.t.Helper()
	c := start(p.t, name, program(p.t, name), p.environment(p.t, p.container(p.t, userContainer)))
	poll(p.t, name+" listens", func() error {
		conn, err := net.DialTimeout("tcp", at(p.userPort()), time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return c
}

// readiness runs the readiness probe of the sidecar once, like the kubelet. The error contains
// the reason why the container is not ready.
func (p *pod) readiness() error {
	probe := p.container(p.t, resources.QueueContainerName).ReadinessProbe
	if probe == nil {
		return nil // without a probe, a container is ready when it runs
	}
	timeout := time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	fields := []string{"User-Agent: kube-probe/1.36", "Accept: */*"}
	for _, h := range probe.HTTPGet.HTTPHeaders {
		fields = append(fields, h.Name+": "+h.Value)
	}
	answer, body, err := p.ask(client, fmt.Sprintf("http://%s%s", at(probe.HTTPGet.Port.IntValue()), probe.HTTPGet.Path), fields...)
	if err == nil && (answer.StatusCode < 200 || answer.StatusCode >= 400) {
		err = fmt.Errorf("statuscode: %d: %s", answer.StatusCode, body)
	}
	return err
}

func (p *pod) waitUntilReady() {
	p.t.Helper()
	poll(p.t, "the readiness probe succeeds", p.readiness)
}

// preStop runs the preStop hook of a container like the kubelet and waits until it ends.
func (p *pod) preStop(c *corev1.Container) error {
	hook := c.Lifecycle.PreStop.HTTPGet
	client := &http.Client{Timeout: patience}
	_, _, err := p.ask(client, fmt.Sprintf("http://%s%s", at(hook.Port.IntValue()), hook.Path), "User-Agent: kube-lifecycle/1.36")
	return err
}

// ask sends a GET request and returns the response with its body.
func (p *pod) ask(client *http.Client, url string, fields ...string) (*http.Response, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", err
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer, string(b), err
}

// get is like ask, but fails the test on errors.
func (p *pod) get(url string, fields ...string) (*http.Response, string) {
	p.t.Helper()
	answer, body, err := p.ask(p.client, url, fields...)
	if err != nil {
		p.t.Fatalf("GET %s: %v", url, err)
	}
	return answer, body
}
