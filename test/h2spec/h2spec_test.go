// Package h2spec holds the sidecar's HTTP/2, on the plain port and over TLS, to
// h2spec: connections that keep and break the rules of RFC 7540 (now 9113) and RFC
// 7541. The standard library's own reverse proxy is asked beside it: we fail nothing
// that it passes.
// It is a module of its own because nothing else needs what it brings.
//
// The sidecar is met from outside, as a program.
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
	patience = 20 * time.Second // bounds the wait for a start

	// silence is how long a case waits for a frame, or for the end of the connection.
	// The standard library closes one a second after its GOAWAY.
	silence = 2 * time.Second

	fewestCases     = 140 // of the 146 of version 2.2.1; fewer would prove too little
	mostOfReference = 8   // that the reference may fail: it fails 5, over TLS 4, and with many it would be no yardstick
)

// program is the queue-proxy, built for these tests.
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

func TestNothingFailsThatGosReverseProxyPasses(t *testing.T) {
	h1, h2 := startApp(t, "HTTP/1.1"), startApp(t, "h2c")
	plain, secure := startReference(t, h1, false), startReference(t, h1, true)
	ports := freePorts(t, 2*portsOfSidecar)
	beforeH1 := startSidecar(t, h1, secure, ports[:portsOfSidecar])
	beforeH2 := startSidecar(t, h2, secure, ports[portsOfSidecar:])

	reference := &target{name: "the reference, h2c", address: plain.Listener.Addr().String()}
	referenceTLS := &target{name: "the reference, TLS", address: secure.Listener.Addr().String(), tls: true}
	ours := []*target{
		{name: "h2c, the app speaks HTTP/1.1", address: beforeH1.plain, like: reference},
		{name: "TLS, the app speaks HTTP/1.1", address: beforeH1.secure, like: referenceTLS, tls: true},
		{name: "h2c, the app speaks h2c", address: beforeH2.plain, like: reference},
		{name: "TLS, the app speaks h2c", address: beforeH2.secure, like: referenceTLS, tls: true},
	}
	all := append([]*target{reference, referenceTLS}, ours...)

	var running sync.WaitGroup
	for _, to := range all {
		to.waitUntilItAnswers(t)
		running.Go(to.runAll)
	}
	running.Wait()

	for _, to := range all {
		t.Log(to.summary())
		if ran := len(to.passed) + len(to.failed); ran < fewestCases {
			t.Errorf("%s: got %d cases that ran, want at least %d", to.name, ran, fewestCases)
		}
	}
	for _, to := range []*target{reference, referenceTLS} {
		if len(to.failed) > mostOfReference {
			t.Errorf("%s: got %d failures, want at most %d: this is no yardstick", to.name, len(to.failed), mostOfReference)
		}
	}
	for _, to := range ours {
		for name, f := range to.failed {
			if !to.like.passed[name] {
				continue
			}
			// A machine that was busy for two seconds looks like a peer that was silent.
			if again := to.run(f.test); again == nil {
				t.Logf("%s: %s: passed alone, but not beside the others: %v", to.name, name, f.err)
			} else {
				t.Errorf("%s: %s: got %v, and alone %v; want it passed, as the reference has", to.name, name, f.err, again)
			}
		}
		to.waitUntilItAnswers(t) // after all that too
	}
}

// A target is a server, and how it fared. Cases are named by section, number and
// description.
type target struct {
	name    string
	address string
	tls     bool
	like    *target // what it is compared with; nil: it is the reference

	passed  map[string]bool
	failed  map[string]failure
	skipped []string
}

type failure struct {
	test *spec.TestCase
	err  error
}

// runAll runs all cases, one after the other.
func (to *target) runAll() {
	to.passed, to.failed = map[string]bool{}, map[string]failure{}
	for _, g := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		to.runGroup(g)
	}
}

// runGroup does what [spec.TestGroup.Test] does, which would write to standard
// output and end the process when it cannot connect.
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

// run runs one case on a connection of its own.
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

// waitUntilItAnswers returns when the app's answer comes back over HTTP/2.
func (to *target) waitUntilItAnswers(t *testing.T) {
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
			return fmt.Errorf("got %s %s, %q, %v", answer.Proto, answer.Status, body, err)
		}
		return nil
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: no answer of the app's over HTTP/2 within %v: %v", to.name, patience, err)
		}
	}
}

// greeting is what the app says. Cases of flow control are skipped below 5 bytes.
const greeting = "hello, h2spec"

// quiet is for servers that are broken on purpose.
var quiet = log.New(io.Discard, "", 0)

// startApp starts a user container that speaks HTTP/1.1 or h2c alone.
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

// startReference starts the standard library's reverse proxy in front of an app.
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
		s.CloseClientConnections() // a case leaves streams that wait for a window
		s.Close()
	})
	return s
}

// portsOfSidecar is how many ports a sidecar opens.
const portsOfSidecar = 6

// A sidecar is the program, running: the addresses of its two ports for requests.
type sidecar struct{ plain, secure string }

// startSidecar starts the program with its own defaults in front of an app, with the
// certificate of another server. It may not serve yet.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it does not outlive the test
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
			t.Error("the sidecar said \"panic\", want no panic")
		}
		if t.Failed() {
			t.Logf("the sidecar said, at the end:\n%s", b[max(0, len(b)-4000):])
		}
	})
	return sidecar{plain: net.JoinHostPort("127.0.0.1", ports[0]), secure: net.JoinHostPort("127.0.0.1", ports[1])}
}

// writeCertificate puts a certificate where and as the sidecar looks for it.
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

// freePorts returns so many ports that nobody listens on. They lie below those from
// which the kernel gives ports to clients, and above those of test/conformance.
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
		t.Fatal("no free ports")
	}
	return ports
}
