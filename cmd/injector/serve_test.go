package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// TestMain lets the test be the program, for the tests that need a process.
func TestMain(m *testing.M) {
	if os.Getenv("BE_THE_INJECTOR") != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestServeAnswersAndEndsAtASignal(t *testing.T) {
	dir := t.TempDir()
	roots := writeCertificate(t, dir)
	cmd := exec.Command(os.Args[0], "serve", "-addr=127.0.0.1:0", "-metrics-addr=127.0.0.1:0", "-cert-dir="+dir, "-linger=10ms", "--concurrency=3", "--image=queue-proxy:dev")
	cmd.Env = append(os.Environ(), "BE_THE_INJECTOR=1")
	log, err := cmd.StderrPipe()
	harness.NoError(t, err)
	harness.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()

	var at struct{ Message, Reviews, Metrics string }
	lines := bufio.NewScanner(log)
	for at.Message != "listening" && lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &at); err != nil {
			t.Fatalf("got the line %s, want JSON: %v", lines.Text(), err)
		}
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},` +
		`"object":{"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}}}`
	r, err := client.Post("https://"+at.Reviews+"/inject", "application/json", strings.NewReader(review))
	harness.NoError(t, err)
	var got struct {
		Response struct {
			Allowed bool
			Patch   []byte
		}
	}
	harness.NoError(t, json.NewDecoder(r.Body).Decode(&got))
	r.Body.Close()
	if !got.Response.Allowed || !bytes.Contains(got.Response.Patch, []byte(`{"name":"CONTAINER_CONCURRENCY","value":"3"}`)) {
		t.Errorf("got %v %s, want a patch with the option of the flag", got.Response.Allowed, got.Response.Patch)
	}
	if r, err = http.Get("http://" + at.Metrics + "/readyz"); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("got %v %v, want it ready", r, err)
	}

	harness.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, _ := io.ReadAll(log)
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0; %s", err, rest)
	}
}

func TestServeRefusesWhatItCannotDo(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-on-refusal=shrug"}, "deny or allow"},
		{[]string{"-self-managed"}, "POD_NAMESPACE"},
		{[]string{"-self-managed", "-namespace=x"}, "not in a cluster"},
		{[]string{"-cert-dir=/nowhere", "-addr=nonsense"}, "nonsense"},
		{[]string{"-client-ca=/nowhere"}, "-client-ca: open /nowhere"},
		{[]string{"-client-ca=serve.go"}, "-client-ca serve.go: no certificate in it"},
		{[]string{"pod.yaml"}, "unknown argument"},
		{[]string{"--concurrency=-1"}, "CONTAINER_CONCURRENCY"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"serve"}, c.args...), chosen, strings.NewReader(""), &stdout, &stderr)
		if code != notAtAll || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%q: got exit code %d and %s, want 2 and %q", c.args, code, stderr.String(), c.want)
		}
	}
}

// writeCertificate writes tls.crt and tls.key for 127.0.0.1, and returns who trusts it.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	harness.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	harness.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, filepath.Join(dir, "tls.crt"), string(cert))
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return roots
}
