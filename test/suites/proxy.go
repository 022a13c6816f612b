//go:build linux

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed" // for haproxy.cfg
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"
)

// A proxy is a running proxy in front of one application.
type proxy struct {
	process *process
	name    variant
	plain   string // address of the plain text port
	tls     string // address of the TLS port
}

// startProxy starts the proxy of a variant, and waits until it listens. http2 selects the
// protocol that HAProxy uses for the application. The sidecar detects the protocol.
func startProxy(e *environment, v variant, application string, http2 bool) (*proxy, error) {
	ports, err := freePorts(e.dir, 6)
	if err != nil {
		return nil, err
	}
	p := &proxy{name: v, plain: ports[0], tls: ports[1]}
	var argv, env []string
	if v == haproxy {
		argv, err = e.haproxy(p, application, http2)
	} else {
		argv, env = []string{e.sidecar}, sidecarSettings(e, v, application, ports)
	}
	if err != nil {
		return nil, err
	}
	if p.process, err = startProcess(e.dir, env, argv...); err != nil {
		return nil, err
	}
	if err := p.process.await(p.plain, p.tls); err != nil {
		p.process.stop()
		return nil, err
	}
	return p, nil
}

// stop stops the proxy. It returns an error if the proxy has already exited or has reported a
// panic.
func (p *proxy) stop() error {
	running := p.process.running()
	p.process.stop()
	text, err := os.ReadFile(p.process.output)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", p.name, err)
	case !running:
		return fmt.Errorf("%s exited: %s", p.name, p.process.lastOutput())
	case bytes.Contains(text, []byte("panic")):
		return fmt.Errorf("%s: panic: %s", p.name, p.process.lastOutput())
	}
	return nil
}

// port returns the port of an address.
func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// sidecarSettings returns the environment of the sidecar.
func sidecarSettings(e *environment, v variant, application string, ports []string) []string {
	limit := "0"
	if v == limited {
		limit = "4"
	}
	return []string{
		"ON_KNATIVE=false",
		"USER_PORT=" + port(application),
		"QUEUE_SERVING_PORT=" + port(ports[0]),
		"QUEUE_SERVING_TLS_PORT=" + port(ports[1]),
		"ADMIN_PORT=" + port(ports[2]),
		"AUTOSCALER_PORT=" + port(ports[3]),
		"METRICS_PORT=" + port(ports[4]),
		"STATUS_PORT=" + port(ports[5]),
		"TLS_CERT_DIR=" + e.dir,
		"CONTAINER_CONCURRENCY=" + limit,
		"QUEUE_DEPTH=1000",
	}
}

// haproxyConfiguration is the template for the HAProxy configuration.
//
//go:embed haproxy.cfg
var haproxyConfiguration string

// haproxy writes the configuration of HAProxy and returns the command.
func (e *environment) haproxy(p *proxy, application string, http2 bool) ([]string, error) {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/haproxy")
	}
	if err != nil {
		return nil, fmt.Errorf("%w; run test/endurance/setup to install it", err)
	}
	t, err := template.New("").Parse(haproxyConfiguration)
	if err != nil {
		return nil, fmt.Errorf("haproxy.cfg: %w", err)
	}
	file, err := os.CreateTemp(e.dir, "haproxy-*.cfg")
	if err != nil {
		return nil, fmt.Errorf("haproxy.cfg: %w", err)
	}
	defer file.Close()
	fields := map[string]any{"Plain": p.plain, "TLS": p.tls, "App": application, "HTTP2": http2, "Pair": filepath.Join(e.dir, "pair.pem")}
	if err := t.Execute(file, fields); err != nil {
		return nil, fmt.Errorf("haproxy.cfg: %w", err)
	}
	return []string{path, "-db", "-q", "-f", file.Name()}, nil
}

// certificateName is the DNS name in the certificate, for clients that do not verify the
// address.
const certificateName = "suites.test"

// writeCertificate writes a certificate for 127.0.0.1 and its key to dir, with the names
// that the sidecar expects.
func writeCertificate(dir string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: certificateName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{certificateName}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	for name, text := range map[string][]byte{"tls.crt": cert, "tls.key": key, "pair.pem": append(cert[:len(cert):len(cert)], key...)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("certificate: %w", err)
		}
	}
	return nil
}

// certificate returns the certificate of the run in PEM form.
func (e *environment) certificate() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(e.dir, "tls.crt"))
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return text, nil
}
