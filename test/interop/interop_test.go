// Package interop plays gRPC's interoperability test cases, by the client and the server
// that google.golang.org/grpc has for them, through the sidecar: over plain TCP and over
// TLS, with and without a limit of concurrency.
// It is a module of its own because nothing else needs what it brings.
//
// The sidecar is met from outside, as a program.
package interop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	root     = "../.."
	patience = time.Minute // bounds every wait
	host     = "sidecar.test"
)

// cases are the test cases that need no account at a cloud provider. For pick_first_unary
// the server would have to say who it is, which grpc-go's does not.
var cases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
	"timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response", "status_code_and_message",
	"special_status_message", "custom_metadata", "unimplemented_method", "unimplemented_service",
	"rpc_soak", "channel_soak", "orca_per_rpc", "orca_oob",
}

// balancer returns the service config that a case needs.
func balancer(c string) string {
	name := "pick_first"
	if strings.HasPrefix(c, "orca") {
		name = "test_backend_metrics_load_balancer"
	}
	return `{"loadBalancingConfig":[{"` + name + `":{}}]}`
}

// programs is the folder of what was built for these tests.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := 1
	if build(root, "./cmd/queue-proxy") && build(".", "google.golang.org/grpc/interop/client") && build(".", "google.golang.org/grpc/interop/server") {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir, pkg string) bool {
	c := exec.Command("go", "build", "-o", programs+"/", pkg)
	c.Dir, c.Stderr = dir, os.Stderr
	return c.Run() == nil
}

func TestInteroperability(t *testing.T) {
	ports := freePorts(t, 1+2*portsOfSidecar)
	start(t, "server", nil, "--port="+ports[0])
	await(t, ports[0])
	for i, limit := range []string{"0", "10"} {
		mine := ports[1+i*portsOfSidecar:]
		ca := startSidecar(t, ports[0], limit, mine)
		for name, args := range map[string][]string{
			"plain": {"--server_port=" + mine[0]},
			"TLS":   {"--server_port=" + mine[1], "--use_tls", "--use_test_ca", "--ca_file=" + ca, "--server_host_override=" + host},
		} {
			t.Run(fmt.Sprintf("limit %s, %s", limit, name), func(t *testing.T) {
				for _, c := range cases {
					t.Run(c, func(t *testing.T) {
						play(t, append([]string{"--server_host=127.0.0.1", "--test_case=" + c, "--service_config_json=" + balancer(c)}, args...))
					})
				}
			})
		}
		// Many calls at the same time, more than the limit.
		t.Run("limit "+limit+", many", func(t *testing.T) {
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					play(t, []string{"--server_host=127.0.0.1", "--server_port=" + mine[0], "--test_case=rpc_soak",
						"--soak_iterations=40", "--soak_num_threads=8", "--soak_per_iteration_max_acceptable_latency_ms=60000", "--soak_overall_timeout_seconds=50"})
				})
			}
			all.Wait()
		})
	}
}

// play runs the client once.
func play(t *testing.T, args []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, filepath.Join(programs, "client"), args...).CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", args, err, out[max(0, len(out)-3000):])
	}
}

// start starts a program that runs until the test ends, and returns its folder.
func start(t *testing.T, name string, env []string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	c := exec.Command(filepath.Join(programs, name), args...)
	c.Env, c.Stdout, c.Stderr = env, &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it does not outlive the test
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		b := said.Bytes()
		if bytes.Contains(b, []byte("panic")) {
			t.Errorf("%s: got a panic, want none", name)
		}
		if t.Failed() {
			t.Logf("%s said, at the end:\n%s", name, b[max(0, len(b)-4000):])
		}
	})
}

// portsOfSidecar is how many ports a sidecar opens.
const portsOfSidecar = 6

// startSidecar starts the sidecar in front of a port, and returns the file with its
// certificate.
func startSidecar(t *testing.T, app, limit string, ports []string) (ca string) {
	t.Helper()
	dir := t.TempDir()
	certify(t, dir)
	start(t, "queue-proxy", []string{
		"USER_PORT=" + app, "CONTAINER_CONCURRENCY=" + limit, "QUEUE_DEPTH=1000",
		"QUEUE_SERVING_PORT=" + ports[0], "QUEUE_SERVING_TLS_PORT=" + ports[1], "ADMIN_PORT=" + ports[2],
		"AUTOSCALER_PORT=" + ports[3], "METRICS_PORT=" + ports[4], "STATUS_PORT=" + ports[5], "TLS_CERT_DIR=" + dir,
	})
	await(t, ports[0])
	await(t, ports[1])
	return filepath.Join(dir, "tls.crt")
}

// certify writes a certificate where the sidecar looks for it.
func certify(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{host}, IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// await returns when somebody listens on a port.
func await(t *testing.T, port string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// freePorts returns so many ports that nobody listens on, below those from which the
// kernel gives ports to clients, and above those of test/h2spec.
func freePorts(t *testing.T, many int) []string {
	t.Helper()
	var ports []string
	for port := 31500; port < 32768 && len(ports) < many; port++ {
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
