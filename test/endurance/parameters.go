//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// parameters contains the addresses and files of one run. The arguments of programs and the
// configuration files of peers are templates that can contain its fields. Addresses are host:port.
type parameters struct {
	Self     string // path of this program
	Dir      string // directory of the run
	Peers    string // directory with the scripts and configurations of the peers
	Modules  string // directory node_modules
	Files    string // directory with the static files "small", "medium" and "large"
	App      string // address of the application, plain text
	AppTLS   string // second address of the application: TLS, or another version of HTTP
	Target   string // address to which the clients connect
	CA       string // file with the certificate of the target; "" for plain text
	Scheme   string // "http" or "https"
	Seconds  int    // duration of a load
	Requests int    // minimum number of requests of a load
	H2       bool   // the application supports HTTP/2 only

	Plain, TLS, Admin, Autoscaler, Metrics, Status string // addresses of the proxy
	Cert, Key, Pair                                string // PEM files; Pair contains the certificate and the key
}

// newParameters returns parameters with free addresses and a new directory below parent.
func newParameters(parent string, r *row, v variant, o *settings) (*parameters, error) {
	dir, err := os.MkdirTemp(parent, "run")
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	addresses, err := freePorts(8)
	if err != nil {
		return nil, err
	}
	p := &parameters{
		Self: o.self, Dir: dir, Peers: filepath.Join(parent, "peers"), Modules: o.modules, Files: filepath.Join(parent, "files"),
		App: addresses[0], AppTLS: addresses[1], Plain: addresses[2], TLS: addresses[3],
		Admin: addresses[4], Autoscaler: addresses[5], Metrics: addresses[6], Status: addresses[7],
		Cert: filepath.Join(parent, "tls.crt"), Key: filepath.Join(parent, "tls.key"), Pair: filepath.Join(parent, "pair.pem"),
		Scheme: "http", Seconds: o.duration(r), Requests: o.minimum(r), H2: r.h2,
	}
	switch {
	case v == direct && (r.tls || r.second):
		p.Target = p.AppTLS
	case v == direct:
		p.Target = p.App
	case r.tls:
		p.Target = p.TLS
	default:
		p.Target = p.Plain
	}
	if r.tls {
		p.CA, p.Scheme = p.Cert, "https"
	}
	return p, nil
}

// port returns the port of an address.
func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// AppPort returns the port of the application.
func (p *parameters) AppPort() string { return port(p.App) }

// AppTLSPort returns the port of the second address of the application.
func (p *parameters) AppTLSPort() string { return port(p.AppTLS) }

// Count returns the number of requests of a load whose duration cannot be set.
func (p *parameters) Count() int {
	const perSecond = 3000
	if p.Requests > 0 {
		return p.Requests
	}
	return p.Seconds * perSecond
}

// fill executes the template text with the fields of p.
func (p *parameters) fill(text string) (string, error) {
	t, err := template.New("").Parse(text)
	if err != nil {
		return "", fmt.Errorf("template: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, p); err != nil {
		return "", fmt.Errorf("template: %w", err)
	}
	return b.String(), nil
}

// argv returns a program's path and arguments.
func (p *parameters) argv(c program) ([]string, error) {
	argv := make([]string, len(c))
	for i, text := range c {
		filled, err := p.fill(text)
		if err != nil {
			return nil, err
		}
		argv[i] = filled
	}
	path, err := findProgram(argv[0])
	argv[0] = path
	return argv, err
}

// peerFiles contains the scripts of the peers, and the configurations of the servers.
//
//go:embed peers
var peerFiles embed.FS

// Configure executes a configuration file in the directory peers as a template, and returns the
// path of the result.
func (p *parameters) Configure(name string) (string, error) {
	text, err := peerFiles.ReadFile("peers/" + name)
	if err != nil {
		return "", fmt.Errorf("configuration: %w", err)
	}
	filled, err := p.fill(string(text))
	if err != nil {
		return "", err
	}
	path := filepath.Join(p.Dir, name)
	return path, os.WriteFile(path, []byte(filled), 0o600)
}

// writeFiles writes the static files of 100 B, 10 KB and 1 MB to the directory "files" in dir.
func writeFiles(dir string) error {
	dir = filepath.Join(dir, "files")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("static files: %w", err)
	}
	c := newContent()
	for name, size := range map[string]int{"small": 100, "medium": 10_000, "large": 1_000_000} {
		if err := os.WriteFile(filepath.Join(dir, name), c.piece(0, size), 0o644); err != nil {
			return fmt.Errorf("static files: %w", err)
		}
	}
	return nil
}

// writeCertificate writes a certificate for 127.0.0.1 and its key to dir, with the names
// that the sidecar expects.
func writeCertificate(dir string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "endurance"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
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
