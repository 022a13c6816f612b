//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

const (
	sidecarImage  = "localhost/queue-proxy:dev"
	injectorImage = "localhost/queue-proxy-injector:dev"
	sidecarName   = "queue-proxy"
)

// patience is the maximum duration of each wait on a slow machine.
const patience = ledger.Patience

// A pod represents a pod that podman runs, with the state of the kubelet. All methods except
// dial must be called from one goroutine.
type pod struct {
	t    *testing.T
	spec *corev1.Pod
	pids map[string]int // ID of the first process of each container
	ns   *os.File       // file descriptor of the network namespace
	host string         // address of the pod for the kubelet
}

// podman runs podman in an empty directory, because podman may read files in its working
// directory. It returns the output.
func podman(t *testing.T, stdin []byte, args ...string) string {
	t.Helper()
	out, err := tryPodman(t, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryPodman(t *testing.T, stdin []byte, args ...string) (string, error) {
	conf, err := filepath.Abs("containers.conf")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "podman", args...)
	c.Dir, c.Stdin = t.TempDir(), bytes.NewReader(stdin)
	c.Env = append(os.Environ(), "CONTAINERS_CONF="+conf, "STORAGE_DRIVER=overlay")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("podman %s: %w: %s (run test/e2e/setup)", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// inject runs the injector image with a manifest and returns its output.
func inject(t *testing.T, manifest []byte, flags ...string) []byte {
	t.Helper()
	args := []string{"run", "--rm", "-i", "--network=none", "--read-only", "--cap-drop=all", injectorImage, "inject", "-f", "-"}
	return []byte(podman(t, manifest, append(args, flags...)...))
}

// podOf returns the first pod in a manifest, or the pod of the template if the object is a
// Deployment.
func podOf(t *testing.T, manifest []byte) *corev1.Pod {
	t.Helper()
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		t.Fatal(err)
	}
	var p corev1.Pod
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	if p.Kind == "Deployment" {
		var w appsv1.Deployment
		if err := json.Unmarshal(raw, &w); err != nil {
			t.Fatal(err)
		}
		p.Kind, p.APIVersion = "Pod", "v1"
		p.Name, p.Spec = w.Name, w.Spec.Template.Spec
	}
	return &p
}

// play starts a pod with some changes to the spec that do not affect the processes. podman does
// not restart containers, because the test performs the actions of the kubelet. Annotations are
// removed, because podman rejects long ones. Ports are removed, because podman would publish
// them on the host. prepare is called after the containers are created and before they start;
// it may be nil.
func play(t *testing.T, spec *corev1.Pod, prepare func(*pod)) *pod {
	t.Helper()
	played := spec.DeepCopy()
	played.Spec.RestartPolicy = corev1.RestartPolicyNever
	played.Annotations = nil
	for i := range played.Spec.Containers {
		played.Spec.Containers[i].Ports = nil
	}
	text, err := json.Marshal(played)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pod.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	remove := func() { tryPodman(t, nil, "pod", "rm", "-f", "-t", "0", played.Name) }
	remove() // remove the pod of an earlier run that was killed
	t.Cleanup(remove)
	p := &pod{t: t, spec: spec, pids: map[string]int{}, host: "127.0.0.1"}
	if prepare == nil {
		podman(t, nil, "kube", "play", "--network", "none", file)
	} else {
		podman(t, nil, "kube", "play", "--network", "none", "--start=false", file)
		prepare(p)
		podman(t, nil, "pod", "start", played.Name)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, c := range spec.Spec.Containers {
			lines := p.log(c.Name)
			t.Logf("last log lines of %s:\n%s", c.Name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
		}
	})
	for _, c := range spec.Spec.Containers {
		p.findPID(c.Name)
	}
	p.isRestricted(sidecarName)
	p.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", p.pids[sidecarName]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.ns.Close() })
	return p
}

// isRestricted fails the test unless the process of a container runs without privileges.
func (p *pod) isRestricted(name string) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pids[name]))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, want := range []string{"CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !bytes.Contains(status, []byte(want)) {
			p.t.Errorf("%s: got\n%s\nwant %q", name, status, want)
		}
	}
	if bytes.Contains(status, []byte("Uid:\t0\t")) {
		p.t.Errorf("%s: the process runs as user 0", name)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/written", p.pids[name]), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		p.t.Errorf("%s: create a file in the root directory: got %v, want a read-only file system", name, err)
	}
}

// container returns the name of a container in podman.
func (p *pod) container(name string) string { return p.spec.Name + "-" + name }

func (p *pod) findPID(name string) {
	p.t.Helper()
	pid, err := strconv.Atoi(podman(p.t, nil, "inspect", "--format", "{{.State.Pid}}", p.container(name)))
	if err != nil || pid == 0 {
		p.t.Fatalf("%s: got process ID %d, %v, want a running process; log:\n%s", name, pid, err, strings.Join(p.log(name), "\n"))
	}
	p.pids[name] = pid
}

// signal sends a signal to the first process of a container.
func (p *pod) signal(name string, s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.pids[name], s); err != nil {
		p.t.Fatalf("%s: %v", name, err)
	}
}

// ended waits until a container has exited and returns its exit code.
func (p *pod) ended(name string, within time.Duration) int {
	p.t.Helper()
	p.isGone(name, within)
	code, err := strconv.Atoi(podman(p.t, nil, "wait", p.container(name)))
	if err != nil {
		p.t.Fatal(err)
	}
	return code
}

// isGone waits until the process of a container has exited.
func (p *pod) isGone(name string, within time.Duration) {
	p.t.Helper()
	for end := time.Now().Add(within); p.running(name); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%s: the container is still running after %v", name, within)
		}
	}
}

// running reports whether the process of a container exists and is not a zombie.
func (p *pod) running(name string) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pids[name]))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// start restarts a container like the kubelet.
func (p *pod) start(name string) {
	p.t.Helper()
	podman(p.t, nil, "start", p.container(name))
	p.findPID(name)
}

// logFile returns the path of a container's log.
func (p *pod) logFile(name string) (string, error) {
	return tryPodman(p.t, nil, "inspect", "--format", "{{.HostConfig.LogConfig.Path}}", p.container(name))
}

// log returns the log lines of a container.
func (p *pod) log(name string) []string {
	p.t.Helper()
	file, err := p.logFile(name)
	if err != nil {
		p.t.Error(err)
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		p.t.Error(err)
	}
	var lines []string
	parts := map[string]string{} // partial line of each stream
	for line := range strings.Lines(string(text)) {
		// The format is: time, stream, F or P (P for a partial line), text.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) < 4 {
			continue
		}
		parts[f[1]] += f[3]
		if f[2] == "F" {
			lines, parts[f[1]] = append(lines, parts[f[1]]), ""
		}
	}
	return lines
}

// dial connects to a port of the pod. The socket is created in the network namespace of the pod
// and remains in it when other threads use it.
func (p *pod) dial(ctx context.Context, address string) (net.Conn, error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer own.Close()
	if err := unix.Setns(int(p.ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("setns: %w", err)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return nil, back // the thread stays locked, so the Go runtime terminates it when the goroutine ends
	}
	runtime.UnlockOSThread()
	return c, err
}

// runInPod runs a program of this machine in the network namespace of the pod.
func (p *pod) runInPod(args ...string) {
	p.t.Helper()
	c := exec.Command("nsenter", append([]string{"--net=/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(p.ns.Fd()))}, args...)...)
	if out, err := c.CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// get sends a request like the kubelet on a new connection and returns the status and the body.
func (p *pod) get(port int, path string, fields []corev1.HTTPHeader, timeout time.Duration) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	address := net.JoinHostPort(p.host, strconv.Itoa(port))
	if path == "" {
		path = "/"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("User-Agent", "kube-probe/1.37")
	for _, f := range fields {
		r.Header.Set(f.Name, f.Value)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, address) },
	}}
	a, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return a.StatusCode, string(body), err
}

// probe runs the readiness probe of a container once.
func (p *pod) probe(c *corev1.Container) (status int, body string) {
	p.t.Helper()
	ask := c.ReadinessProbe.HTTPGet
	status, body, err := p.get(ask.Port.IntValue(), ask.Path, ask.HTTPHeaders, time.Duration(c.ReadinessProbe.TimeoutSeconds)*time.Second)
	if err != nil {
		return 0, err.Error()
	}
	return status, body
}

// awaitReady runs the readiness probes of the pod until all of them succeed, with a shorter
// period than in the spec. The test fails if the pod has no readiness probe.
func (p *pod) awaitReady() {
	p.t.Helper()
	asked := 0
	for i := range p.spec.Spec.Containers {
		c := &p.spec.Spec.Containers[i]
		if c.ReadinessProbe == nil {
			continue
		}
		asked++
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			status, body := p.probe(c)
			if status == http.StatusOK {
				break
			}
			if time.Now().After(end) {
				p.t.Fatalf("readiness probe of %s: got %d %q, want 200 within %v", c.Name, status, body, patience)
			}
		}
	}
	if asked == 0 {
		p.t.Fatal("the pod has no readiness probe")
	}
}

// terminate stops the pod like the kubelet. It sends SIGTERM to each container, after its
// preStop hook if there is one. It returns the exit codes after all containers have exited.
func (p *pod) terminate() map[string]int {
	p.t.Helper()
	grace := time.Duration(*p.spec.Spec.TerminationGracePeriodSeconds) * time.Second
	end := time.Now().Add(grace)
	hooks := make(chan string, len(p.spec.Spec.Containers))
	for _, c := range p.spec.Spec.Containers {
		if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
			hooks <- c.Name
			continue
		}
		hook := c.Lifecycle.PreStop.HTTPGet
		go func() {
			if status, body, err := p.get(hook.Port.IntValue(), hook.Path, hook.HTTPHeaders, grace); err != nil || status != http.StatusOK {
				p.t.Errorf("preStop of %s: got %d %q %v, want 200", c.Name, status, body, err)
			}
			hooks <- c.Name
		}()
	}
	for range p.spec.Spec.Containers {
		p.signal(<-hooks, syscall.SIGTERM)
	}
	codes := map[string]int{}
	for _, c := range p.spec.Spec.Containers {
		codes[c.Name] = p.ended(c.Name, time.Until(end))
	}
	return codes
}

// eventually waits until a condition is true. The test fails after patience.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v: %s", patience, what)
		}
	}
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
