//go:build cluster

package cluster

import (
	"bytes"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The addresses are in the range for benchmarks (RFC 2544), which machines do not use.
const (
	nodeAddress    = "198.18.0.1"
	gatewayAddress = "198.18.0.254"
	podRange       = "198.18.64.0/20"
	serviceRange   = "198.19.0.0/20"
	apiService     = "198.19.0.1"
	apiServer      = "https://" + nodeAddress + ":6443"
	nodeName       = "node1"

	// patience is the maximum duration of each wait for the cluster on a slow machine.
	patience = 2 * time.Minute
)

//go:embed conf
var confs embed.FS

// A machine is the node with its control plane. The methods must be called from the same
// goroutine.
type machine struct {
	state, group, logs  string
	kubernetes, knative string // directories of programs
	daemons             map[string]*daemon
	api                 *api
	serving             knativeState
}

// The variable it contains the cluster of this run. A process can run only one cluster.
var it *machine

// A daemon is a program that runs until it is stopped.
type daemon struct {
	name string
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

// withCluster starts the cluster, runs the tests and stops the cluster.
func withCluster(m *testing.M) (code int, err error) {
	begun := time.Now()
	if it, err = startCluster(); it != nil {
		// The kernel stops the daemons with the namespaces, so this only makes the shutdown
		// orderly.
		defer it.stopAll()
	}
	if err != nil {
		return 0, err
	}
	fmt.Printf("cluster: Kubernetes %s is ready after %.0f s; logs in %s\n", it.version(), time.Since(begun).Seconds(), it.logs)
	if *shell {
		return 0, it.wait()
	}
	code = m.Run()
	return code, report(code == 0)
}

// wait prints how to access the cluster and returns after a signal.
func (m *machine) wait() error {
	if err := m.startServing(); err != nil {
		return err
	}
	pid, err := os.ReadFile(m.state + "/pid")
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	fmt.Printf(`cluster: runs until Ctrl-C. In another terminal:

    sudo nsenter -t %s -m -n -p --wd=%s env PATH=%s:%s:$PATH KUBECONFIG=%s/pki/admin.kubeconfig bash
    kubectl get pods -A

`, pid, m.state, m.kubernetes, m.knative, m.state)
	<-stop
	return nil
}

func startCluster() (*machine, error) {
	m := &machine{state: os.Getenv(stateName), group: os.Getenv(groupName), daemons: map[string]*daemon{}}
	var err error
	if m.kubernetes, err = programs("kubernetes"); err != nil {
		return nil, err
	}
	if m.knative, err = programs("knative"); err != nil {
		return nil, err
	}
	if m.logs, err = filepath.Abs("../../bin/cluster/log"); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(m.logs); err != nil {
		return nil, err
	}
	for _, dir := range []string{m.logs, m.state + "/pki", m.state + "/conf", m.state + "/etcd", m.state + "/images"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	os.Setenv("PATH", m.kubernetes+":"+m.knative+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
	os.Setenv("KUBECONFIG", m.state+"/pki/admin.kubeconfig")
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"programs", m.checkPrograms},
		{"network", m.makeNetwork},
		{"settings", m.writeSettings},
		{"certificates", func() error { return makeCertificates(m.state + "/pki") }},
		{"control plane", m.startControlPlane},
		{"node", m.startNode},
	} {
		if err := step.do(); err != nil {
			return m, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return m, nil
}

func (m *machine) checkPrograms() error {
	var missing []string
	for _, name := range []string{
		"etcd", "containerd", "ctr", "runc", "iptables", "ip", "conntrack", "/usr/lib/cni/bridge",
		"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "dns",
	} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return fmt.Errorf("missing: %s (run test/cluster/setup)", strings.Join(missing, ", "))
	}
	return nil
}

// makeNetwork adds an address and a default route, which leads nowhere, to the network
// namespace.
func (m *machine) makeNetwork() error {
	for _, line := range []string{
		"ip link set lo up",
		"ip link add node0 type veth peer name node0p",
		"ip link set node0p up",
		"ip addr add " + nodeAddress + "/24 dev node0",
		"ip link set node0 up",
		"ip route add default via " + gatewayAddress + " dev node0",
	} {
		if _, err := run(nil, strings.Fields(line)...); err != nil {
			return err
		}
	}
	for name, needed := range map[string]bool{
		"ipv4/ip_forward": true, "ipv4/conf/all/route_localnet": true,
		"bridge/bridge-nf-call-iptables": false, // this setting exists only with an optional kernel module
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil && needed {
			return err
		}
	}
	return nil
}

// writeSettings writes the files of conf with the paths of this run.
func (m *machine) writeSettings() error {
	files, err := confs.ReadDir("conf")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := confs.ReadFile("conf/" + f.Name())
		if err != nil {
			return err
		}
		filled := strings.NewReplacer("@STATE@", m.state, "@CGROUP@", m.group).Replace(string(text))
		if err := os.WriteFile(filepath.Join(m.state, "conf", f.Name()), []byte(filled), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) startControlPlane() error {
	p := m.state + "/pki/"
	m.define("etcd", "etcd", "--name=n1", "--data-dir="+m.state+"/etcd", "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=n1=http://127.0.0.1:2380")
	m.define("kube-apiserver", "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address="+nodeAddress, "--bind-address="+nodeAddress, "--secure-port=6443",
		"--client-ca-file="+p+"ca.crt", "--tls-cert-file="+p+"apiserver.crt", "--tls-private-key-file="+p+"apiserver.key",
		"--kubelet-client-certificate="+p+"admin.crt", "--kubelet-client-key="+p+"admin.key", "--kubelet-certificate-authority="+p+"ca.crt",
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file="+p+"front.crt", "--requestheader-allowed-names=front-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+p+"front-client.crt", "--proxy-client-key-file="+p+"front-client.key",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file="+p+"accounts.key", "--service-account-key-file="+p+"accounts.key",
		"--service-cluster-ip-range="+serviceRange, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--v=1")
	m.define("kube-controller-manager", "kube-controller-manager", "--kubeconfig="+p+"controllers.kubeconfig",
		"--authentication-kubeconfig="+p+"controllers.kubeconfig", "--authorization-kubeconfig="+p+"controllers.kubeconfig", "--bind-address=127.0.0.1",
		"--root-ca-file="+p+"ca.crt", "--service-account-private-key-file="+p+"accounts.key",
		"--cluster-signing-cert-file="+p+"ca.crt", "--cluster-signing-key-file="+p+"ca.key", "--use-service-account-credentials",
		"--allocate-node-cidrs=false", "--leader-elect=false",
		"--node-monitor-period=2s", "--node-monitor-grace-period=60s", "--v=1")
	m.define("kube-scheduler", "kube-scheduler", "--kubeconfig="+p+"scheduler.kubeconfig",
		"--authentication-kubeconfig="+p+"scheduler.kubeconfig", "--authorization-kubeconfig="+p+"scheduler.kubeconfig",
		"--bind-address=127.0.0.1", "--leader-elect=false", "--v=1")

	if err := m.start("etcd"); err != nil {
		return err
	}
	if err := m.until("etcd accepts connections", func() error {
		c, err := net.Dial("tcp", "127.0.0.1:2379")
		if err == nil {
			c.Close()
		}
		return err
	}, "etcd"); err != nil {
		return err
	}
	if err := m.start("kube-apiserver"); err != nil {
		return err
	}
	var err error
	if m.api, err = newAPI(p); err != nil {
		return err
	}
	if err := m.until("the API server is ready", func() error { return m.api.ok("/readyz") }, "kube-apiserver"); err != nil {
		return err
	}
	return m.start("kube-controller-manager", "kube-scheduler")
}

func (m *machine) startNode() error {
	m.define("containerd", "containerd", "--config", m.state+"/conf/containerd.toml")
	m.define("kubelet", "kubelet", "--config", m.state+"/conf/kubelet.yaml", "--kubeconfig", m.state+"/pki/node.kubeconfig",
		"--hostname-override="+nodeName, "--node-ip="+nodeAddress, "--root-dir=/var/lib/kubelet", "--v=1")
	m.define("kube-proxy", "kube-proxy", "--config", m.state+"/conf/proxy.yaml", "--v=1")
	m.define("dns", "dns", "-kubeconfig", m.state+"/pki/admin.kubeconfig", "-listen", nodeAddress+":53")
	if err := m.start("containerd"); err != nil {
		return err
	}
	if err := m.until("containerd responds", func() error { _, err := run(nil, "ctr", "version"); return err }, "containerd"); err != nil {
		return err
	}
	if err := m.importImages(); err != nil {
		return err
	}
	if err := m.start("kubelet", "kube-proxy", "dns"); err != nil {
		return err
	}
	if err := m.until("the node is ready", m.nodeReady, "kubelet", "kube-proxy", "dns"); err != nil {
		return err
	}
	return m.until("the default service account exists", func() error {
		return m.api.ok("/api/v1/namespaces/default/serviceaccounts/default")
	}, "kube-controller-manager")
}

func (m *machine) nodeReady() error {
	var node object
	if err := m.api.get("/api/v1/nodes/"+nodeName, &node); err != nil {
		return err
	}
	if !node.condition("Ready") {
		return fmt.Errorf("got conditions %v", node.at("status", "conditions"))
	}
	return nil
}

func (m *machine) version() string {
	var v struct{ GitVersion string }
	_ = m.api.get("/version", &v)
	return v.GitVersion
}

// define sets the command line of a daemon.
func (m *machine) define(name string, args ...string) {
	m.daemons[name] = &daemon{name: name, args: args, log: filepath.Join(m.logs, name+".log")}
}

// start starts daemons that are defined and not running.
func (m *machine) start(names ...string) error {
	for _, name := range names {
		d := m.daemons[name]
		out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		d.cmd, d.done = exec.Command(d.args[0], d.args[1:]...), make(chan struct{})
		d.cmd.Stdout, d.cmd.Stderr, d.cmd.Dir = out, out, "/"
		err = d.cmd.Start()
		out.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		go func() {
			_ = d.cmd.Wait()
			close(d.done)
		}()
	}
	return nil
}

// stop stops daemons. It kills a daemon that does not exit within 5 s.
func (m *machine) stop(names ...string) {
	for _, name := range names {
		d := m.daemons[name]
		if d == nil || d.cmd == nil {
			continue
		}
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.done:
		case <-time.After(5 * time.Second):
			_ = d.cmd.Process.Kill()
			<-d.done
		}
		d.cmd = nil
	}
}

func (m *machine) stopAll() {
	m.stop("prometheus", "ingress", "dns", "kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "containerd", "etcd")
}

// until calls ask repeatedly until ask returns nil. It returns an error if this takes longer than
// patience, or when one of the daemons has exited.
func (m *machine) until(what string, ask func() error, daemons ...string) error {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := ask()
		if err == nil {
			return nil
		}
		for _, name := range daemons {
			d := m.daemons[name]
			if d == nil || d.cmd == nil {
				continue
			}
			select {
			case <-d.done:
				return fmt.Errorf("%s: %s exited; last log lines:\n%s", what, name, tail(d.log))
			default:
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: timeout after %v: %w", what, patience, err)
		}
	}
}

// tail returns the last lines of a log file.
func tail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// run runs a program with the given input for at most patience, and returns its output.
func run(input []byte, args ...string) (string, error) {
	out, _, err := runFor(patience, input, args...)
	return out, err
}

// runFor is like run with another timeout, and also returns the exit code.
func runFor(bound time.Duration, input []byte, args ...string) (out string, code int, err error) {
	c := exec.Command(args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &stdout, &stderr
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		return "", -1, err
	}
	alarm := time.AfterFunc(bound, func() { _ = c.Process.Kill() })
	err = c.Wait()
	if !alarm.Stop() {
		return stdout.String(), -1, fmt.Errorf("%s: timeout after %v: %s", strings.Join(args, " "), bound, stderr.String())
	}
	if err != nil {
		return stdout.String(), c.ProcessState.ExitCode(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), 0, nil
}

// An api is a client of the API server with administrator rights. It is safe for concurrent use.
type api struct{ client *http.Client }

func newAPI(pki string) (*api, error) {
	pair, err := tls.LoadX509KeyPair(pki+"admin.crt", pki+"admin.key")
	if err != nil {
		return nil, err
	}
	authority, err := readAuthority(pki + "ca.crt")
	if err != nil {
		return nil, err
	}
	return &api{&http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: authority},
			MaxIdleConnsPerHost: 8,
		},
	}}, nil
}

var errNotFound = errors.New("not found")

func (a *api) do(path string) ([]byte, error) {
	r, err := a.client.Get(apiServer + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return nil, err
	case r.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w", path, errNotFound)
	case r.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %.300s", path, r.Status, body)
	}
	return body, nil
}

func (a *api) ok(path string) error {
	_, err := a.do(path)
	return err
}
