package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/app/sample"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// patience is the maximum duration of each wait. A successful test never waits that long.
const patience = time.Minute

// A proxy is the sidecar under test with its ports and the port of the application.
type proxy struct {
	t    *testing.T
	port struct{ serving, tls, user, admin, autoscaler, metrics, status int }
	dir  string // directory for certificates, initially empty

	remote string // address of a running sidecar (-url); empty if the test starts the sidecar
	*process
}

// newProxy selects the ports. The test can then start the application and the sidecar in
// any order. newProxy marks the test as parallel unless the ports are fixed.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	inParallel(t)
	return newSerialProxy(t)
}

// newSerialProxy is like newProxy, but for a test that does not run in parallel because it needs the CPU.
func newSerialProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{t: t, dir: t.TempDir()}
	p.port.serving, p.port.tls, p.port.user = freePort(t), freePort(t), freePort(t)
	if fixedPorts {
		p.port.admin, p.port.autoscaler, p.port.metrics, p.port.status = 8022, 9090, 9091, 8008
	} else {
		p.port.admin, p.port.autoscaler, p.port.metrics, p.port.status = freePort(t), freePort(t), freePort(t), freePort(t)
	}
	return p
}

// inParallel marks a test as parallel unless the ports are fixed. A test calls it if its
// subtests create their own proxies. Otherwise, all other tests would wait for the slowest
// subtest. Tests that need the CPU, count memory or goroutines, or depend on the speed of a
// client do not call it.
func inParallel(t *testing.T) {
	t.Helper()
	if !fixedPorts {
		t.Parallel()
	}
}

// environment returns the variables that Knative sets, with the ports of this sidecar. The
// settings of a test follow these settings and override them.
func (p *proxy) environment() []string {
	port := strconv.Itoa
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"QUEUE_SERVING_PORT=" + port(p.port.serving),
		"QUEUE_SERVING_TLS_PORT=" + port(p.port.tls),
		"USER_PORT=" + port(p.port.user),
		"ADMIN_PORT=" + port(p.port.admin),
		"AUTOSCALER_PORT=" + port(p.port.autoscaler),
		"METRICS_PORT=" + port(p.port.metrics),
		"STATUS_PORT=" + port(p.port.status),
		"TLS_CERT_DIR=" + p.dir,
		"CONTAINER_CONCURRENCY=0",
		"REVISION_TIMEOUT_SECONDS=300",
		"SERVING_NAMESPACE=ns",
		"SERVING_CONFIGURATION=conf",
		"SERVING_REVISION=rev",
		"SERVING_POD=pod1",
		"SERVING_POD_IP=127.0.0.1",
		"SERVING_LOGGING_CONFIG=",
		"SERVING_LOGGING_LEVEL=",
	}
}

// launch starts the sidecar and returns immediately.
func (p *proxy) launch(env ...string) {
	p.t.Helper()
	p.process = run(p.t, merge(p.environment(), env))
}

// start starts the sidecar and waits until it answers a network probe, which does not depend on
// the user container.
func (p *proxy) start(env ...string) {
	p.t.Helper()
	p.launch(env...)
	p.awaitServing()
}

// startWithFiles is like start with a limit on open files.
func (p *proxy) startWithFiles(files int, env ...string) {
	p.t.Helper()
	p.process = runWith(p.t, merge(p.environment(), env), "sh", "-c", "ulimit -n "+strconv.Itoa(files)+`; exec "$0"`, queueProxy)
	p.awaitServing()
}

// awaitServing waits until the sidecar answers a network probe.
func (p *proxy) awaitServing() {
	p.t.Helper()
	p.poll("the sidecar serves", func() error {
		if p.ended() {
			p.t.Fatalf("the sidecar exited with code %d at startup", p.code())
		}
		c, err := net.DialTimeout("tcp", p.addr(), time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.test\r\nK-Network-Probe: probe\r\nK-Network-Hash: h\r\nConnection: close\r\n\r\n")
		line, err := bufio.NewReader(c).ReadString('\n')
		if !strings.Contains(line, " 200 ") {
			return fmt.Errorf("got %q, %v", line, err)
		}
		return nil
	})
}

func (p *proxy) addr() string           { return cmp.Or(p.remote, local(p.port.serving)) }
func (p *proxy) tlsAddr() string        { return cmp.Or(p.remote, local(p.port.tls)) }
func (p *proxy) url(path string) string { return "http://" + p.addr() + path }

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// poll calls ask until it returns nil.
func (p *proxy) poll(what string, ask func() error) {
	p.t.Helper()
	poll(p.t, what, ask)
}

func poll(t *testing.T, what string, ask func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: timeout after %v: %v", what, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// app starts a user container that supports HTTP/1.1 and h2c.
func (p *proxy) app(h http.Handler) *http.Server { return p.appSpeaking(h, "both") }

func (p *proxy) appSpeaking(h http.Handler, protocols string) *http.Server {
	p.t.Helper()
	var speaks http.Protocols
	speaks.SetHTTP1(protocols != "h2")
	speaks.SetUnencryptedHTTP2(protocols != "h1")
	s := &http.Server{Handler: h, Protocols: &speaks, DisableGeneralOptionsHandler: true}
	s.ErrorLog = quiet
	l := p.listen()
	go s.Serve(l)
	p.t.Cleanup(func() { s.Close() })
	return s
}

// sample starts the sample app and returns it.
func (p *proxy) sample() *sample.App {
	a := sample.New()
	p.app(a)
	return a
}

// listen opens the port of the user container.
func (p *proxy) listen() net.Listener {
	p.t.Helper()
	var l net.Listener
	// If another test starts a process at the same time, the child process inherits the
	// closed listener. The port remains in use until the child process calls exec.
	p.poll("the port of the user container is free", func() (err error) {
		l, err = net.Listen("tcp", local(p.port.user))
		return err
	})
	p.t.Cleanup(func() { l.Close() })
	return l
}

// A process is a running sidecar.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

// run starts the sidecar with exactly the given environment.
func run(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return runWith(t, env, append([]string{queueProxy}, args...)...)
}

// runWith starts a command that executes the sidecar.
func runWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, out: &output{}, done: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = env
	p.cmd.Dir = t.TempDir()
	p.cmd.Stdout, p.cmd.Stderr = &lineWriter{to: p.out}, &lineWriter{to: p.out}
	p.cmd.SysProcAttr = dieWithParent
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		for _, sign := range []string{"DATA RACE", "panic:", "panic serving", "fatal error:"} {
			if strings.Contains(p.out.String(), sign) {
				t.Errorf("output of the sidecar contains %q", sign)
			}
		}
		if t.Failed() {
			t.Logf("output of the sidecar:\n%s", p.out.Tail())
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %v: %v", s, err)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// code waits until the process exits and returns the exit code, or -1 after a signal.
func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the sidecar is still running after %v", patience)
	}
	return p.cmd.ProcessState.ExitCode()
}

// memory returns a value of /proc/PID/status in bytes, such as VmHWM.
func (p *process) memory(name string) int64 {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(b)
	if m == nil {
		p.t.Fatalf("no %s in /proc/PID/status", name)
	}
	n, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return n * 1024
}

// output contains the standard output and the standard error of a process.
type output struct {
	harness.Buffer

	mu         sync.Mutex
	notReading bool // after the next write, the pipe has no reader
	lost       bool // the pipe has no reader
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.notReading {
		o.lost = true
		return 0, io.ErrClosedPipe // after this error, os/exec closes its end of the pipe
	}
	return o.Buffer.Write(b)
}

func (o *output) loseReader() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notReading = true
}

func (o *output) isLost() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

// merge returns the settings of both lists. The last value of a name wins.
func merge(base, own []string) []string {
	var all []string
	at := map[string]int{}
	for _, e := range append(append([]string{}, base...), own...) {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			all[i] = e
			continue
		}
		at[name] = len(all)
		all = append(all, e)
	}
	return all
}

// without returns the environment variables that do not have any of the prefixes.
func without(env []string, prefixes ...string) []string {
	var rest []string
next:
	for _, e := range env {
		for _, p := range prefixes {
			if strings.HasPrefix(e, p) {
				continue next
			}
		}
		rest = append(rest, e)
	}
	return rest
}

// Ports are below the range of local ports that the kernel assigns to clients. Each test run
// has its own block of ports so that concurrent runs do not use the same port.
const (
	firstPort = 11000
	blockSize = 2500
	blocks    = 8
)

var (
	block     = sync.OnceValues(reserveBlock)
	blockFile *os.File // the lock on the file reserves the block; a global variable keeps the garbage collector from closing the file
	lastPort  atomic.Int32
)

// reserveBlock locks the file of an unused block until the process exits. In a network
// namespace, no other process uses the ports.
func reserveBlock() (first int, err error) {
	if os.Getenv(namespaceVariable) != "" {
		return firstPort, nil
	}
	for i := range blocks {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("queue-proxy-conformance-ports-%d", i))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return 0, err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			blockFile = f
			return firstPort + i*blockSize, nil
		}
		f.Close()
	}
	return 0, errors.New("all blocks of ports are in use")
}

// freePort returns an unused port.
func freePort(t *testing.T) int {
	t.Helper()
	first, err := block()
	if err != nil {
		t.Fatal(err)
	}
	for range blockSize {
		n := first + int(lastPort.Add(1))%blockSize
		// Hold the fork lock, because a child process would inherit the listener and keep the
		// port in use until it calls exec.
		syscall.ForkLock.RLock()
		l, err := net.Listen("tcp", ":"+strconv.Itoa(n))
		if err == nil {
			l.Close()
		}
		syscall.ForkLock.RUnlock()
		if err == nil {
			return n
		}
	}
	t.Fatal("no free port")
	return 0
}

// httpClient returns a client for one protocol: h1, h2c, tls (HTTP/1.1) or tls-h2.
func httpClient(t *testing.T, protocol string) *http.Client {
	var speaks http.Protocols
	switch protocol {
	case "h1", "tls":
		speaks.SetHTTP1(true)
	case "h2c":
		speaks.SetUnencryptedHTTP2(true)
	case "tls-h2":
		speaks.SetHTTP2(true)
	default:
		t.Fatalf("unknown protocol %q", protocol)
	}
	tr := &http.Transport{
		Protocols:          &speaks,
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// get sends a GET request and returns the response with its body. The constant patience is the
// timeout.
func get(t *testing.T, c *http.Client, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if strings.EqualFold(name, "Host") {
			r.Host = value
		}
		r.Header.Add(name, value)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("GET %s: body: %v", url, err)
	}
	return answer, string(b)
}

// within runs step in a separate goroutine. The test fails if step fails or takes longer than
// patience.
func within[T any](t *testing.T, what string, step func() (T, error)) T {
	t.Helper()
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := step()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			t.Fatalf("%s: %v", what, r.err)
		}
		return r.v
	case <-time.After(patience):
		t.Fatalf("%s: timeout after %v", what, patience)
		panic("unreachable")
	}
}

// receive is like within, but for a receive operation.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	return within(t, what, func() (T, error) {
		v, ok := <-c
		if !ok {
			return v, errors.New("closed")
		}
		return v, nil
	})
}

// lineWriter forwards complete lines of one output stream of the sidecar to the common output.
// A line that is longer than a pipe buffer arrives in parts, and a line of the other stream
// must not split it.
type lineWriter struct {
	to   io.Writer
	rest []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	if i := bytes.LastIndexByte(w.rest, '\n'); i >= 0 {
		if _, err := w.to.Write(w.rest[:i+1]); err != nil {
			return 0, err
		}
		w.rest = bytes.Clone(w.rest[i+1:])
	}
	return len(p), nil
}
