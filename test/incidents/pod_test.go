package incidents

import (
	"cmp"
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A pod consists of a sidecar and its application.
type pod struct {
	t     testing.TB
	dir   string          // directory of certificates, initially empty
	roots *x509.CertPool  // pool with the certificate in dir; nil if there is none
	ctx   context.Context // canceled at the end of the test
	done  sync.WaitGroup  // goroutines of the peers

	app net.Listener // listener of the application; nil if the application is stopped

	requests, tls, status, metrics, admin string // ports of the sidecar

	sidecar        *exec.Cmd
	exited         chan struct{}
	stdout, stderr *harness.Buffer

	// reported is the start time of await. An alert must be evaluated after this time.
	reported time.Time
}

// newPod starts the application and the sidecar of an incident.
func newPod(t testing.TB, in *incident) *pod {
	t.Helper()
	p := &pod{t: t, dir: t.TempDir(), app: harness.Listen(t)}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		p.app.Close()
		p.done.Wait()
	})
	if in.app != nil {
		in.app(p)
	}
	var settings []string
	if in.settings != nil {
		settings = in.settings(p)
	}
	for !p.start(in, settings) {
	}
	if prometheus != nil {
		prometheus.watch(p)
	}
	p.run(1, p.kubelet)
	return p
}

// start starts the sidecar and waits until it serves requests. It returns false if a port is
// already in use.
func (p *pod) start(in *incident, settings []string) bool {
	p.t.Helper()
	ports := harness.FreePorts(p.t, 6)
	p.requests, p.tls, p.status, p.metrics, p.admin = ports[0], ports[1], ports[2], ports[3], ports[4]
	_, userPort, _ := net.SplitHostPort(p.app.Addr().String())
	p.sidecar = exec.Command("sh", "-c", "ulimit -n "+strconv.Itoa(cmp.Or(in.files, 4096))+`; exec "$0"`, queueProxy)
	p.sidecar.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "POD_NAME=incident", "USER_PORT=" + userPort,
		"QUEUE_SERVING_PORT=" + p.requests, "QUEUE_SERVING_TLS_PORT=" + p.tls, "STATUS_PORT=" + p.status,
		"METRICS_PORT=" + p.metrics, "ADMIN_PORT=" + p.admin, "AUTOSCALER_PORT=" + ports[5],
	}, settings...)
	p.sidecar.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.stdout, p.stderr = &harness.Buffer{}, &harness.Buffer{}
	p.sidecar.Stdout, p.sidecar.Stderr = p.stdout, p.stderr
	if in.unreadOutput {
		r, w, err := os.Pipe()
		harness.NoError(p.t, err)
		defer w.Close()
		p.t.Cleanup(func() { r.Close() })
		p.sidecar.Stdout = w
	}
	harness.NoError(p.t, p.sidecar.Start())
	p.exited = make(chan struct{})
	go func() {
		defer close(p.exited)
		_ = p.sidecar.Wait()
	}()
	p.t.Cleanup(p.kill)
	// If a port is already in use, the sidecar of another test can answer the probe.
	for !strings.Contains(p.stderr.String(), `"message":"serving"`) || !p.serves() {
		select {
		case <-p.exited:
			if !strings.Contains(p.stderr.String(), "address already in use") {
				p.t.Fatalf("the sidecar exited:\n%s", p.stderr.String())
			}
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return true
}

// kill stops the sidecar. If the test has failed, kill logs its output.
func (p *pod) kill() {
	_ = p.sidecar.Process.Kill()
	<-p.exited
	if strings.Contains(p.stderr.String(), "DATA RACE") || strings.Contains(p.stderr.String(), "panic:") {
		p.t.Errorf("the sidecar failed:\n%s", p.stderr.String())
	}
	if p.t.Failed() {
		p.t.Logf("log of the sidecar:\n%s", p.stderr.Tail())
	}
}

// prober sends each probe on a new connection.
var prober = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// serves reports whether the sidecar answers a network probe.
func (p *pod) serves() bool {
	status, err := p.get(prober, "/", "K-Network-Probe: probe", "K-Network-Hash: h")
	return err == nil && status == http.StatusOK
}

// kubelet sends a readiness probe twice per second.
func (p *pod) kubelet() {
	_, _ = p.get(prober, "/", "User-Agent: kube-probe/1.31", "K-Network-Probe: queue")
	p.sleep(500 * time.Millisecond)
}

// run calls f repeatedly on n goroutines until the end of the test.
func (p *pod) run(n int, f func()) {
	for range n {
		p.done.Go(func() {
			for p.ctx.Err() == nil {
				f()
			}
		})
	}
}

// sleep waits for a duration, or until the end of the test.
func (p *pod) sleep(d time.Duration) {
	select {
	case <-p.ctx.Done():
	case <-time.After(d):
	}
}

// serve starts an HTTP application.
func (p *pod) serve(h http.HandlerFunc) {
	s := &http.Server{Handler: h, BaseContext: func(net.Listener) context.Context { return p.ctx }}
	p.done.Go(func() { _ = s.Serve(p.app) })
	p.t.Cleanup(func() { s.Close() })
}

// with calls serve and closes the connection after serve returns, or at the end of the test.
func (p *pod) with(c net.Conn, serve func(c net.Conn)) {
	defer context.AfterFunc(p.ctx, func() { c.Close() })()
	defer c.Close()
	serve(c)
}

// dial calls use with a new connection to the port for requests. The connection is closed when use returns, or at
// the end of the test.
func (p *pod) dial(use func(c net.Conn)) {
	c, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", "127.0.0.1:"+p.requests)
	if err != nil {
		p.sleep(10 * time.Millisecond)
		return
	}
	p.with(c, use)
}

// send sends text on a new connection and reads the response until the sidecar closes the connection.
func (p *pod) send(text string) {
	p.dial(func(c net.Conn) {
		go func() { _, _ = io.WriteString(c, text) }() // ignore errors, because the sidecar may close the connection without reading all of the text
		_, _ = io.Copy(io.Discard, c)
	})
}

// get sends a GET request to the port for requests and returns the status of the response. A header field has the form
// "name: value".
func (p *pod) get(client *http.Client, path string, fields ...string) (status int, err error) {
	r, err := http.NewRequestWithContext(p.ctx, http.MethodGet, "http://127.0.0.1:"+p.requests+path, nil)
	if err != nil {
		return 0, err
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Set(name, value)
	}
	res, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// traffic starts n clients after a delay. Until the end of the test, each client sends requests on one connection, and
// waits for the duration pause before each request.
func (p *pod) traffic(delay time.Duration, n int, pause time.Duration) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	p.t.Cleanup(client.CloseIdleConnections)
	for range n {
		p.done.Go(func() {
			for p.sleep(delay); p.ctx.Err() == nil; _, _ = p.get(client, "/") {
				p.sleep(pause)
			}
		})
	}
}
