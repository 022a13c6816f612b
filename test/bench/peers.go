//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// The names of the peers in reports.
const (
	ours     = "queue-proxy"
	knative  = "Knative"
	baseline = "ReverseProxy"
	haproxy  = "HAProxy"
	nginx    = "nginx"
	appAlone = "app alone" // requests without a proxy

	withLog      = "request log"
	withFewSpans = "tracing, 1 of 100"
	withSpans    = "tracing, all"

	withDefaultNames = "METRICS_NAMES=default" // default of METRICS_NAMES in a pod that Knative does not manage
)

// A peer is a proxy in the comparison.
type peer struct {
	name    string
	program string  // path of the program
	queues  bool    // limits the concurrent requests to the app and queues other requests in order
	sidecar bool    // answers probes of Knative
	h2ToH1  bool    // serves HTTP/2 clients if the app supports only HTTP/1.1
	certDir string  // directory in which the peer expects the certificate; empty if the settings contain the paths
	tells   string  // telemetry that the peer writes for each request: "line", "span" or empty
	share   float64 // share of the requests with telemetry

	// command returns the command line and the environment. It writes the files of the peer to
	// at.Dir.
	command func(program string, at *parameters) (argv, env []string, err error)
}

// serves reports whether the peer supports a load.
func (p *peer) serves(l *load) bool { return l.streams == 0 || l.grpc || p.h2ToH1 }

// notServed is the note for loads that a peer does not support.
const notServed = "not measured because the application does not support HTTP/2"

// parameters contains the addresses (host:port) and settings of a peer.
type parameters struct {
	Dir             string // directory for files of the peer
	App             string
	GRPC            bool   // the app supports only HTTP/2
	Address         string // address for HTTP/1.1
	H2C             string // address for HTTP/2 in plain text; often the same as Address
	TLS             string
	Cert, Key, Pair string // PEM files; Pair contains the certificate and the key
	Concurrency     int    // concurrency limit of the app
	Sink            string // address of the span sink

	admin, autoscaler, metrics, status string // ports of a queue-proxy
}

// probe is a readiness probe of the kubelet. Knative's queue-proxy answers a probe only
// if the request has these headers.
const probe = "GET / HTTP/1.1\r\nHost: bench\r\nUser-Agent: kube-probe/1.36\r\nK-Network-Probe: queue\r\nConnection: close\r\n\r\n"

// get is a request to the app.
const get = "GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"

// ask returns a request that the peer can answer only after the peer and the app have started.
func (p *peer) ask() string {
	if p.sidecar {
		return probe
	}
	return get
}

// findPeers returns the peers, and variants of queue-proxy with different telemetry. The variants
// are compared only with queue-proxy.
func findPeers(bin string) (peers, variants []*peer, err error) {
	if bin, err = filepath.Abs(bin); err != nil {
		return nil, nil, err
	}
	sidecar := filepath.Join(bin, "queue-proxy")
	haproxyPath, err := commandPath("haproxy")
	if err != nil {
		return nil, nil, err
	}
	nginxPath, err := commandPath("nginx")
	if err != nil {
		return nil, nil, err
	}
	peers = []*peer{
		{name: ours, program: sidecar, queues: true, sidecar: true, h2ToH1: true, command: queueProxy()},
		{name: knative, program: filepath.Join(bin, "knative"), queues: true, sidecar: true, certDir: "/var/lib/knative/certs", command: queueProxy()},
		{name: baseline, program: filepath.Join(bin, "baseline"), h2ToH1: true, command: reverseProxy},
		{name: haproxy, program: haproxyPath, queues: true, h2ToH1: true, command: haproxyCommand},
		{name: nginx, program: nginxPath, h2ToH1: true, command: nginxCommand},
	}
	const metrics = `"requestMetrics":{"protocol":"prometheus"}`
	const tracing = `OBSERVABILITY_CONFIG={` + metrics + `,"tracing":{"protocol":"http/protobuf","endpoint":"http://{{.Sink}}/v1/traces","samplingRate":%s}}`
	variants = []*peer{
		{name: withLog, program: sidecar, sidecar: true, h2ToH1: true, tells: "line", share: 1, command: queueProxy(`OBSERVABILITY_CONFIG={` + metrics + `,"enableRequestLog":true}`)},
		{name: withFewSpans, program: sidecar, sidecar: true, h2ToH1: true, tells: "span", share: 0.01, command: queueProxy(fmt.Sprintf(tracing, "0.01"))},
		{name: withSpans, program: sidecar, sidecar: true, h2ToH1: true, tells: "span", share: 1, command: queueProxy(fmt.Sprintf(tracing, "1"))},
	}
	for _, p := range append(peers, variants...) {
		if _, err := os.Stat(p.program); err != nil {
			return nil, nil, fmt.Errorf("%w; `make bench` builds it", err)
		}
	}
	return peers, variants, nil
}

// queueProxy runs queue-proxy or Knative's queue-proxy as Knative does, with all features that have
// a cost: a limit that is never reached, all three timeouts, statistics and request metrics. The
// request log and tracing are off by default. more contains further settings, which override the
// defaults. They are templates that can contain fields of parameters. Knative's queue-proxy has no
// settings for the ports 8022 and 9090, and no STATUS_PORT.
func queueProxy(more ...string) func(string, *parameters) ([]string, []string, error) {
	return func(program string, at *parameters) ([]string, []string, error) {
		_, appPort, err := net.SplitHostPort(at.App)
		if err != nil {
			return nil, nil, err
		}
		_, port, _ := net.SplitHostPort(at.Address)
		_, tlsPort, _ := net.SplitHostPort(at.TLS)
		env := []string{
			"QUEUE_SERVING_PORT=" + port,
			"QUEUE_SERVING_TLS_PORT=" + tlsPort,
			"USER_PORT=" + appPort,
			"ADMIN_PORT=" + at.admin,
			"AUTOSCALER_PORT=" + at.autoscaler,
			"METRICS_PROMETHEUS_PORT=" + at.metrics,
			"STATUS_PORT=" + at.status,
			"TLS_CERT_DIR=" + filepath.Dir(at.Cert),
			"CONTAINER_CONCURRENCY=" + strconv.Itoa(at.Concurrency),
			"REVISION_TIMEOUT_SECONDS=300",
			"REVISION_RESPONSE_START_TIMEOUT_SECONDS=300",
			"REVISION_IDLE_TIMEOUT_SECONDS=300",
			`SERVING_READINESS_PROBE={"tcpSocket":{"host":"127.0.0.1","port":` + appPort + `},"successThreshold":1}`,
			"SERVING_LOGGING_CONFIG=",
			"SERVING_LOGGING_LEVEL=",
			"SERVING_NAMESPACE=bench",
			"SERVING_SERVICE=bench",
			"SERVING_CONFIGURATION=bench",
			"SERVING_REVISION=bench-00001",
			"SERVING_POD=bench-00001-deployment-1",
			"SERVING_POD_IP=127.0.0.1",
			`OBSERVABILITY_CONFIG={"requestMetrics":{"protocol":"prometheus"}}`,
		}
		for _, setting := range more {
			text, err := fill(setting, at)
			if err != nil {
				return nil, nil, err
			}
			env = append(env, text) // if the environment contains a variable twice, the last value is used
		}
		return []string{program}, env, nil
	}
}

func reverseProxy(program string, at *parameters) ([]string, []string, error) {
	argv := []string{program, "-listen", at.Address, "-app", at.App, "-tls", at.TLS, "-cert", at.Cert, "-key", at.Key}
	if at.GRPC {
		argv = append(argv, "-h2")
	}
	return argv, nil, nil
}

//go:embed peers/haproxy.cfg
var haproxyConfig string

func haproxyCommand(program string, at *parameters) ([]string, []string, error) {
	name, err := writeFilled(at, "haproxy.cfg", haproxyConfig)
	return []string{program, "-db", "-q", "-f", name}, nil, err
}

//go:embed peers/nginx.conf
var nginxConfig string

func nginxCommand(program string, at *parameters) ([]string, []string, error) {
	// Use the reserved port at.status, which only a queue-proxy needs. Another call of freePorts
	// could return a port that is already reserved, because no process listens on these ports yet.
	at.H2C = net.JoinHostPort("127.0.0.1", at.status)
	name, err := writeFilled(at, "nginx.conf", nginxConfig)
	return []string{program, "-p", at.Dir, "-e", "stderr", "-c", name}, nil, err
}

// writeFilled writes a configuration file and returns its path.
func writeFilled(at *parameters, name, text string) (string, error) {
	filled, err := fill(text, at)
	if err != nil {
		return "", err
	}
	name = filepath.Join(at.Dir, name)
	return name, os.WriteFile(name, []byte(filled), 0o600)
}

// fill executes the template text with the fields of at.
func fill(text string, at *parameters) (string, error) {
	t, err := template.New("").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, at)
	return b.String(), err
}

// writeCertificate writes a certificate for 127.0.0.1 to dir, with the file names of a
// queue-proxy. The key uses P-256, as in the certificates of control planes.
func writeCertificate(dir string) (cert, key, pair string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", "", err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "bench"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	if err != nil {
		return "", "", "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", "", err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	cert, key, pair = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "pair.pem")
	for name, text := range map[string][]byte{cert: certPEM, key: keyPEM, pair: append(certPEM, keyPEM...)} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return "", "", "", err
		}
	}
	return cert, key, pair, nil
}
