// Package h2spec runs h2spec, a conformance test of HTTP/2 (RFC 7540, now RFC 9113, and RFC
// 7541), against the plain port and the TLS port of the sidecar. It also runs h2spec against
// httputil.ReverseProxy. The sidecar must pass all cases that the reverse proxy passes. The
// package is a separate module because only this test needs its dependencies.
//
// The sidecar runs as a process.
package h2spec

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

const (
	root     = "../.."
	patience = 20 * time.Second // maximum duration of a start

	// silence is the time for which a case waits for a frame or for the end of the connection. The
	// standard library closes a connection one second after its GOAWAY.
	silence = 2 * time.Second

	minCases             = 140 // minimum number of cases that must run; version 2.2.1 has 146
	maxReferenceFailures = 8   // maximum number of failed cases of the reference; 5 cases fail without TLS, and 4 cases fail with TLS
)

// program is the path of the queue-proxy that is built for these tests.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "h2spec")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "queue-proxy")
	build := exec.Command("go", "build", "-o", program, "./cmd/queue-proxy")
	build.Dir, build.Stderr = root, os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func TestSidecarPassesCasesOfReverseProxy(t *testing.T) {
	h1, h2 := startApp(t, "HTTP/1.1"), startApp(t, "h2c")
	plain, secure := startReference(t, h1, false), startReference(t, h1, true)
	ports := freePorts(t, 2*portsOfSidecar)
	beforeH1 := startSidecar(t, h1, secure, ports[:portsOfSidecar])
	beforeH2 := startSidecar(t, h2, secure, ports[portsOfSidecar:])

	reference := &target{name: "reference, h2c", address: plain.Listener.Addr().String()}
	referenceTLS := &target{name: "reference, TLS", address: secure.Listener.Addr().String(), tls: true}
	ours := []*target{
		{name: "h2c, HTTP/1.1 application", address: beforeH1.plain, like: reference},
		{name: "TLS, HTTP/1.1 application", address: beforeH1.secure, like: referenceTLS, tls: true},
		{name: "h2c, h2c application", address: beforeH2.plain, like: reference},
		{name: "TLS, h2c application", address: beforeH2.secure, like: referenceTLS, tls: true},
	}
	all := append([]*target{reference, referenceTLS}, ours...)

	var running sync.WaitGroup
	for _, to := range all {
		to.waitUntilReady(t)
		running.Go(to.runAll)
	}
	running.Wait()

	for _, to := range all {
		t.Log(to.summary())
		if ran := len(to.passed) + len(to.failed); ran < minCases {
			t.Errorf("%s: ran %d cases, want at least %d", to.name, ran, minCases)
		}
	}
	for _, to := range []*target{reference, referenceTLS} {
		if len(to.failed) > maxReferenceFailures {
			t.Errorf("%s: reference: got %d failures, want at most %d", to.name, len(to.failed), maxReferenceFailures)
		}
	}
	for _, to := range ours {
		for name, f := range to.failed {
			if !to.like.passed[name] {
				continue
			}
			// If the machine is busy for two seconds, a correct peer appears to be silent, so a
			// failed case runs again.
			if again := to.run(f.test); again == nil {
				t.Logf("%s: %s: passed on the second attempt, first error: %v", to.name, name, f.err)
			} else {
				t.Errorf("%s: %s: got %v, on the second attempt %v, want pass, as with the reference", to.name, name, f.err, again)
			}
		}
		to.waitUntilReady(t) // the target must still be ready after all cases
	}
}

// A target is a server with its results. The keys of the results are the section, the number
// and the description of a case.
type target struct {
	name    string
	address string
	tls     bool
	like    *target // reference that the target is compared with; nil for the reference

	passed  map[string]bool
	failed  map[string]failure
	skipped []string
}

type failure struct {
	test *spec.TestCase
	err  error
}

// runAll runs all cases one after the other.
func (to *target) runAll() {
	to.passed, to.failed = map[string]bool{}, map[string]failure{}
	for _, g := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		to.runGroup(g)
	}
}

// runGroup is like [spec.TestGroup.Test], but it does not write to standard output, and it does not
// exit if it cannot connect.
func (to *target) runGroup(g *spec.TestGroup) {
	for i, test := range append(g.Tests, g.StrictTests...) {
		name := fmt.Sprintf("%s/%d %s", g.ID(), i+1, test.Desc)
		switch err := to.run(test); {
		case err == nil:
			to.passed[name] = true
		case errors.Is(err, spec.ErrSkipped):
			to.skipped = append(to.skipped, name)
		default:
			to.failed[name] = failure{test, err}
		}
	}
	for _, below := range g.Groups {
		to.runGroup(below)
	}
}

// run runs one case on a new connection.
func (to *target) run(test *spec.TestCase) (err error) {
	host, port, err := net.SplitHostPort(to.address)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	c := &config.Config{Host: host, Port: number, Path: "/", Timeout: silence, MaxHeaderLen: 4000, Strict: true, TLS: to.tls, Insecure: true}
	conn, err := spec.Dial(c)
	if err != nil {
		return err
	}
	defer conn.Close()
	return test.Run(c, conn)
}

func (to *target) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d passed, %d failed, %d skipped", to.name, len(to.passed), len(to.failed), len(to.skipped))
	for _, name := range slices.Sorted(maps.Keys(to.failed)) {
		fmt.Fprintf(&b, "\n  failed:  %s: %s", name, strings.ReplaceAll(to.failed[name].err.Error(), "\n", ", "))
	}
	for _, name := range to.skipped {
		fmt.Fprintf(&b, "\n  skipped: %s", name)
	}
	return b.String()
}

// waitUntilReady waits until the target returns the response from the app over HTTP/2.
func (to *target) waitUntilReady(t *testing.T) {
	t.Helper()
	speaks := &http.Protocols{}
	speaks.SetHTTP2(to.tls)
	speaks.SetUnencryptedHTTP2(!to.tls)
	transport := &http.Transport{Protocols: speaks, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: silence}
	url := "http://" + to.address
	if to.tls {
		url = "https://" + to.address
	}
	ask := func() error {
		answer, err := client.Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.ProtoMajor != 2 || string(body) != greeting {
			return fmt.Errorf("got %s %s, %q, %v, want 200 with the greeting, over HTTP/2", answer.Proto, answer.Status, body, err)
		}
		return nil
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: no response from the app over HTTP/2 after %v: %v", to.name, patience, err)
		}
	}
}

// greeting is the response from the app. h2spec skips cases of flow control if the response has
// fewer than 5 bytes.
const greeting = "hello, h2spec"

// quiet is a logger that discards the errors of servers that a test breaks.
var quiet = log.New(io.Discard, "", 0)

// startApp starts a user container that supports only HTTP/1.1 or only h2c.
func startApp(t *testing.T, protocol string) *httptest.Server {
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		io.WriteString(w, greeting)
	}))
	app.Config.ErrorLog = quiet
	app.Config.Protocols = &http.Protocols{}
	app.Config.Protocols.SetHTTP1(protocol == "HTTP/1.1")
	app.Config.Protocols.SetUnencryptedHTTP2(protocol == "h2c")
	app.Start()
	t.Cleanup(app.Close)
	return app
}

// startReference starts an httputil.ReverseProxy in front of an app.
func startReference(t *testing.T, app *httptest.Server, secure bool) *httptest.Server {
	t.Helper()
	to, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport,
		ErrorLog:  quiet,
	})
	s.Config.ErrorLog = quiet
	s.Config.Protocols = &http.Protocols{}
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetHTTP2(secure)
	s.Config.Protocols.SetUnencryptedHTTP2(!secure)
	s.EnableHTTP2 = secure
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		s.CloseClientConnections() // close the connections, because a case leaves streams that wait for flow control
		s.Close()
	})
	return s
}

// portsOfSidecar is the number of ports that a sidecar opens.
const portsOfSidecar = 6

// A sidecar contains the addresses of the two request ports of a running sidecar.
type sidecar struct{ plain, secure string }

// startSidecar starts the sidecar with default settings in front of an app, with the
// certificate of another server. It does not wait until the sidecar serves.
func startSidecar(t *testing.T, app, certified *httptest.Server, ports []string) sidecar {
	t.Helper()
	_, user, err := net.SplitHostPort(app.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeCertificate(t, dir, certified.TLS.Certificates[0])

	said, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{
		"USER_PORT=" + user,
		"QUEUE_SERVING_PORT=" + ports[0],
		"QUEUE_SERVING_TLS_PORT=" + ports[1],
		"ADMIN_PORT=" + ports[2],
		"AUTOSCALER_PORT=" + ports[3],
		"METRICS_PORT=" + ports[4],
		"STATUS_PORT=" + ports[5],
		"TLS_CERT_DIR=" + dir,
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the kernel kills the sidecar when the test exits
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		said.Close()
		b, err := os.ReadFile(said.Name())
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(b), "panic") {
			t.Error("the output of the sidecar contains a panic")
		}
		if t.Failed() {
			t.Logf("last output of the sidecar:\n%s", b[max(0, len(b)-4000):])
		}
	})
	return sidecar{plain: net.JoinHostPort("127.0.0.1", ports[0]), secure: net.JoinHostPort("127.0.0.1", ports[1])}
}

// writeCertificate writes a certificate to a directory in the format of the sidecar.
func writeCertificate(t *testing.T, dir string, c tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// freePorts returns the given number of unused ports. They are below the range of local ports
// and above the ports of test/conformance.
func freePorts(t *testing.T, many int) []string {
	t.Helper()
	var ports []string
	for port := 31000; port < 32768 && len(ports) < many; port++ {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(port))
	}
	if len(ports) < many {
		t.Fatal("not enough free ports")
	}
	return ports
}
