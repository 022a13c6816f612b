package conformance

import (
	"bufio"
	"bytes"
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
)

// patience bounds every wait of this suite. Nothing waits that long when all is well.
const patience = 20 * time.Second

// A proxy is the sidecar under test, on ports of its own and with one for its app.
type proxy struct {
	t    *testing.T
	port struct{ serving, tls, user, admin, autoscaler, metrics, status int }
	dir  string // an empty folder: where certificates would be
	*process
}

// newProxy picks the ports. The test then starts app and proxy in the order that it
// needs. It marks the test as parallel unless the ports are fixed.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	alongside(t)
	return newLoneProxy(t)
}

// newLoneProxy is newProxy for a test that needs the processors, and that is not parallel.
func newLoneProxy(t *testing.T) *proxy {
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

// alongside marks a test as parallel unless the ports are fixed. A test whose
// parts have pods of their own says so itself, because otherwise all others wait
// for its slowest part: as they do where it needs the processors for itself, where
// memory and goroutines are counted, or where somebody must keep a pace.
func alongside(t *testing.T) {
	t.Helper()
	if !fixedPorts {
		t.Parallel()
	}
}

// environment is what Knative would set, with the ports of this pod. Later
// entries win, so a test's own settings follow it.
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

// launch starts the sidecar and returns at once.
func (p *proxy) launch(env ...string) {
	p.t.Helper()
	p.process = run(p.t, merge(p.environment(), env))
}

// start starts the sidecar and returns when it serves: when a network probe,
// which asks nothing of the user container, is answered.
func (p *proxy) start(env ...string) {
	p.t.Helper()
	p.launch(env...)
	p.awaitServing()
}

// startWithFiles is start with a limit on open files.
func (p *proxy) startWithFiles(files int, env ...string) {
	p.t.Helper()
	p.process = runWith(p.t, merge(p.environment(), env), "sh", "-c", "ulimit -n "+strconv.Itoa(files)+`; exec "$0"`, queueProxy)
	p.awaitServing()
}

// awaitServing returns when a network probe is answered.
func (p *proxy) awaitServing() {
	p.t.Helper()
	p.poll("the sidecar serves", func() error {
		if p.ended() {
			p.t.Fatalf("the sidecar ended with code %d before it served", p.code())
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

func (p *proxy) addr() string           { return local(p.port.serving) }
func (p *proxy) tlsAddr() string        { return local(p.port.tls) }
func (p *proxy) url(path string) string { return "http://" + p.addr() + path }

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// poll asks until the answer is nil.
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
			t.Fatalf("%s: not so after %v: %v", what, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// app starts a user container that speaks HTTP/1.1 and h2c.
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

// sample starts the sample app and returns its ledgers.
func (p *proxy) sample() *sample.App {
	a := sample.New()
	p.app(a)
	return a
}

// listen opens the user container's port.
func (p *proxy) listen() net.Listener {
	p.t.Helper()
	var l net.Listener
	// Where an app has just closed it, a process that another test is about to start
	// holds it until its exec.
	p.poll("the user container's port is free", func() (err error) {
		l, err = net.Listen("tcp", local(p.port.user))
		return err
	})
	p.t.Cleanup(func() { l.Close() })
	return l
}

// A process is the binary, running.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

// run starts the binary with exactly this environment.
func run(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return runWith(t, env, append([]string{queueProxy}, args...)...)
}

// runWith starts a command that becomes the binary.
func runWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, out: &output{}, done: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = env
	p.cmd.Dir = t.TempDir()
	p.cmd.Stdout, p.cmd.Stderr = &wholeLines{to: p.out}, &wholeLines{to: p.out}
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
				t.Errorf("the sidecar said %q", sign)
			}
		}
		if t.Failed() {
			t.Logf("the sidecar said:\n%s", p.out.tail())
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%v: %v", s, err)
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

// code waits for the end and returns the exit code; -1: ended by a signal.
func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the sidecar has not ended after %v", patience)
	}
	return p.cmd.ProcessState.ExitCode()
}

// memory returns a line of /proc/PID/status, such as VmHWM, in bytes.
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

// output is what a process says, both streams.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	deaf bool // from the next line on the pipe has no reader
	lost bool // it has none
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deaf {
		o.lost = true
		return 0, io.ErrClosedPipe // os/exec then closes its end
	}
	return o.b.Write(b)
}

func (o *output) goDeaf() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deaf = true
}

func (o *output) isLost() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *output) tail() string {
	s := o.String()
	if len(s) > 6000 {
		s = "..." + s[len(s)-6000:]
	}
	return s
}

// says reports whether one line of the output holds all the words. Lines that
// are JSON are also read with their quotes unescaped.
func (o *output) says(words ...string) bool {
	for line := range strings.Lines(o.String()) {
		if holds(line, words) || holds(strings.ReplaceAll(line, `\"`, `"`), words) {
			return true
		}
	}
	return false
}

func holds(line string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

// merge returns the settings with the later ones in place of the earlier.
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

// without removes variables.
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

// Ports lie below the range from which the kernel gives ports to clients. Each
// run of this suite has a block of them to itself, so that two runs at the same
// time do not take one another's between finding and using one.
const (
	firstPort = 11000
	blockSize = 2500
	blocks    = 8
)

var (
	block     = sync.OnceValues(takeBlock)
	blockFile *os.File // its lock holds the block; the garbage collector must not close it
	lastPort  atomic.Int32
)

// takeBlock locks a file that stands for a block, until the process ends.
func takeBlock() (first int, err error) {
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
	return 0, errors.New("all blocks of ports are taken")
}

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	first, err := block()
	if err != nil {
		t.Fatal(err)
	}
	for range blockSize {
		n := first + int(lastPort.Add(1))%blockSize
		// No fork meanwhile: the child would hold the port until its exec.
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

// httpClient speaks one protocol: h1, h2c, tls (HTTP/1.1) or tls-h2.
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
		t.Fatalf("no protocol %q", protocol)
	}
	tr := &http.Transport{
		Protocols:          &speaks,
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// get asks and reads all, within patience.
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

// within runs a step of a test in a goroutine of its own and fails the test if
// it has not ended in time.
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
		t.Fatalf("%s: not so after %v", what, patience)
		panic("unreachable")
	}
}

// receive is within for a channel.
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

// wholeLines passes one stream of the sidecar on to what both share, by whole lines: a line
// that is longer than a pipe takes at once must not have one of the other stream in it.
type wholeLines struct {
	to   io.Writer
	rest []byte
}

// Write implements io.Writer.
func (w *wholeLines) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	if i := bytes.LastIndexByte(w.rest, '\n'); i >= 0 {
		if _, err := w.to.Write(w.rest[:i+1]); err != nil {
			return 0, err
		}
		w.rest = bytes.Clone(w.rest[i+1:])
	}
	return len(p), nil
}
