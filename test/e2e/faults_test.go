//go:build e2e

package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// firstByte contains injector flags that set a response start timeout of one second.
var firstByte = []string{"--response-start-timeout", "1"}

// faults lists the faults. Each fault is a row of the table in results.txt.
var faults = []fault{
	{
		name: "no fault", what: "the same traffic",
		must: "^application [^\n]*\n$",
	},

	// Faults of the application.
	{
		name: "application is killed", what: "SIGKILL every 700 ms, then a restart",
		must: "sidecar app-(reset|unreachable)",
		strike: func(s *stage) {
			for s.ctx.Err() == nil {
				time.Sleep(700 * time.Millisecond)
				s.signal("app", syscall.SIGKILL)
				s.ended("app", patience)
				s.start("app")
			}
		},
	},
	{
		name: "application is paused", what: "SIGSTOP for 2 s; response start timeout of 1 s",
		flags: firstByte, must: "sidecar response-start-timeout",
		strike: func(s *stage) { s.stopped("app", 2*time.Second) },
	},
	{
		name: "application is slow", what: "150 ms per request; limit of 2, queue of 2, queue timeout of 100 ms",
		flags:    []string{"--concurrency", "2", "--queue-depth", "2", "--queue-timeout", "100ms"},
		requests: []ledger.Request{ledger.Get("/slow?ms=150", 5), ledger.Get("/slow?ms=150", 5).OverH2()},
		must:     "sidecar queue-full",
	},
	{
		name: "application resets connections", what: "RST before the response, or in the middle of it",
		requests: append([]ledger.Request{
			ledger.Get("/reset", -1), ledger.Post("/reset", 10000), ledger.Get("/die?after=0", -1),
			ledger.Get("/die?after=70000", -1), ledger.Get("/die?after=70000", -1).OverH2(),
		}, ledger.Usual()...),
		must: "(?s)sidecar app-reset.*broken|broken.*sidecar app-reset",
	},
	{
		name: "application sends garbage", what: "responses that are not HTTP",
		requests: append([]ledger.Request{ledger.Get("/garbage", -1), ledger.Post("/garbage", 10)}, ledger.Usual()...),
		must:     "sidecar app-garbage",
	},
	{
		name: "application closes idle connections", what: "after 5 ms, without Connection: close",
		app: []string{"-keepalive-timeout", "5ms"}, clients: 3, must: "application",
	},
	{
		name: "backlog of the application is full", what: "somaxconn 1, SIGSTOP for 2 s, 24 clients",
		flags: firstByte, clients: 24, must: "sidecar response-start-timeout",
		prepare: func(s *stage) {
			s.runInPod("sysctl", "-q", "-w", "net.core.somaxconn=1")
			s.signal("app", syscall.SIGKILL)
			s.ended("app", patience)
			s.start("app")
		},
		strike: func(s *stage) { s.stopped("app", 2*time.Second) },
	},
	{
		name: "application is out of descriptors", what: "RLIMIT_NOFILE of 5 for 2 s; 24 clients; keep-alive of 5 ms",
		flags: firstByte, app: []string{"-keepalive-timeout", "5ms"}, clients: 24, must: "sidecar response-start-timeout",
		strike: func(s *stage) { s.outOfFiles("app", 2*time.Second) },
	},

	// Faults of the clients.
	{
		name: "clients stall", what: "in a header section and in a body; timeouts of 1 s",
		flags: []string{"set:HEADER_TIMEOUT=1s", "set:BODY_TIMEOUT=1s"}, clientSuffers: true, must: "broken",
		strike: func(s *stage) {
			for i := range 40 {
				s.sendPartialRequest(i, func(c net.Conn) { io.Copy(io.Discard, c) }, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Le")
				s.sendPartialRequest(i+40, func(c net.Conn) { io.Copy(io.Discard, c) }, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf of it")
			}
		},
	},
	{
		name: "clients reset connections", what: "RST during the request, the wait and the response",
		clientSuffers: true, must: "broken",
		strike: func(s *stage) {
			for i := 0; s.ctx.Err() == nil; i++ {
				reset := func(c net.Conn) {
					time.Sleep(time.Duration(i*7%40) * time.Millisecond)
					c.(*net.TCPConn).SetLinger(0)
				}
				switch i % 3 {
				case 0:
					s.sendPartialRequest(i, reset, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf of it")
				case 1:
					s.sendPartialRequest(i, reset, "GET /slow?ms=100&id=%s HTTP/1.1\r\nHost: a\r\n\r\n")
				default:
					s.sendPartialRequest(i, reset, "GET /stream/50000000?id=%s HTTP/1.1\r\nHost: a\r\n\r\n")
				}
				time.Sleep(10 * time.Millisecond)
			}
		},
	},
	{
		name: "clients half-close connections", what: "FIN after a complete and after an incomplete request",
		clientSuffers: true, must: "broken",
		strike: func(s *stage) {
			for i := 0; s.ctx.Err() == nil; i++ {
				half := func(c net.Conn) {
					c.(*net.TCPConn).CloseWrite()
					io.Copy(io.Discard, c)
				}
				if i%2 == 0 {
					s.sendPartialRequest(i, half, "GET /slow?ms=100&id=%s HTTP/1.1\r\nHost: a\r\n\r\n")
				} else {
					s.sendPartialRequest(i, half, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf of it")
				}
				time.Sleep(20 * time.Millisecond)
			}
		},
	},
	{
		name: "clients send slowly", what: "20 bodies of 4 bytes, one byte per second", others: 20, must: "application",
		strike: func(s *stage) {
			for i := range 20 {
				s.clients.Go(func() {
					v := s.client(fmt.Sprintf("slow%d", i))
					defer v.Leave()
					v.Trickle = time.Second
					v.Ask(ledger.Post("/sink", 4))
					s.note(v.Entries...)
				})
			}
		},
	},

	// Faults of the addresses.
	{
		name: "pod with IPv6 only", what: "no address 127.0.0.1 when the sidecar starts", must: "^application [^\n]*\n$",
		prepare: func(s *stage) {
			s.runInPod("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
			s.signal(sidecarName, syscall.SIGKILL)
			s.ended(sidecarName, patience)
			s.start(sidecarName)
			s.host, s.address = "::1", "[::1]:8012"
		},
	},
	{
		name: "pod with IPv4 and IPv6", what: "application only on ::1, clients on both", app: []string{"-host", "::1"}, must: "^application [^\n]*\n$",
		change: func(s *stage, v *ledger.Client) {
			if s.rng.IntN(2) == 0 {
				v.Dial = s.to("[::1]:8012")
			}
		},
	},

	// Faults of the sidecar's resources.
	{
		name: "sidecar is out of descriptors", what: "RLIMIT_NOFILE of 5 for 2 s; 24 clients",
		clients: 24, clientSuffers: true, must: "application",
		strike: func(s *stage) { s.outOfFiles(sidecarName, 2*time.Second) },
	},
	{
		name: "sidecar is out of memory", what: "300 header sections of 900 KB with 64 MiB; the sidecar is restarted if it is killed", code: 0,
		clientSuffers: true, logSuffers: true, must: "broken",
		strike: func(s *stage) {
			time.Sleep(500 * time.Millisecond)
			huge := "GET /bytes/5?id=%s HTTP/1.1\r\nHost: a\r\nX-Huge: " + strings.Repeat("h", 900_000)
			for i := range 300 {
				s.sendPartialRequest(i, func(net.Conn) { <-s.ctx.Done() }, huge)
			}
			for s.ctx.Err() == nil {
				if !s.running(sidecarName) {
					s.t.Logf("the sidecar exited with code %d", s.ended(sidecarName, patience))
					s.start(sidecarName)
				}
				time.Sleep(50 * time.Millisecond)
			}
		},
	},
	{
		name: "log reader is paused", what: "SIGSTOP for 3 s", logSuffers: true, must: "application",
		strike: func(s *stage) {
			reader := s.parent(sidecarName)
			syscall.Kill(reader, syscall.SIGSTOP)
			defer syscall.Kill(reader, syscall.SIGCONT)
			time.Sleep(3 * time.Second)
		},
	},
	{
		name: "log disk is full", what: "ENOSPC", logSuffers: true, must: "application", tinyLog: true,
		strike: func(s *stage) {
			eventually(s.t, "the file system of the log is full", s.logIsFull)
		},
	},
	{
		name: "log reader is killed", what: "SIGKILL", logSuffers: true, orphan: true, must: "^application [^\n]*\n$",
		strike: func(s *stage) {
			time.Sleep(time.Second)
			syscall.Kill(s.parent(sidecarName), syscall.SIGKILL)
		},
	},
	{
		name: "many clients", what: "400 clients with 64 MiB and half a CPU", clients: 400, must: "^application [^\n]*\n$",
	},
	{
		name: "certificate is invalid", what: "TLS; the files are overwritten after 1 s and restored after 3 s",
		must: "^application [^\n]*\n$",
		spec: func(s *stage, p *corev1.Pod) {
			s.certs = s.t.TempDir()
			s.writePair()
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "certs", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.certs}}})
			c := &p.Spec.Containers[1]
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "certs", MountPath: "/var/lib/knative/certs", ReadOnly: true})
			s.address = "127.0.0.1:8112"
		},
		change: func(_ *stage, v *ledger.Client) { v.TLS = &tls.Config{InsecureSkipVerify: true} },
		strike: func(s *stage) {
			time.Sleep(time.Second)
			for _, name := range []string{"tls.crt", "tls.key"} {
				if err := os.WriteFile(filepath.Join(s.certs, name), []byte("invalid\n"), 0o644); err != nil {
					s.t.Error(err)
				}
			}
			time.Sleep(2 * time.Second)
			s.writePair()
		},
	},
	{
		name: "system clock changes", what: "two minutes forward for half a second, then back", must: "^application [^\n]*\n$",
		strike: func(s *stage) {
			time.Sleep(time.Second)
			s.step(2 * time.Minute)
			time.Sleep(500 * time.Millisecond)
			s.step(-2 * time.Minute)
		},
	},

	// Faults of the network.
	{
		name: "packets to the sidecar are dropped", what: "one of ten", must: "application", clientSuffers: true,
		strike: func(s *stage) {
			s.filter("8012", "-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "DROP")
		},
		heal: func(s *stage) { s.runInPod("iptables", "-F") },
	},
	{
		name: "packets to the sidecar are reset", what: "one of a hundred, with tcp-reset", must: "broken", clientSuffers: true,
		strike: func(s *stage) {
			s.filter("8012", "-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "REJECT", "--reject-with", "tcp-reset")
		},
		heal: func(s *stage) { s.runInPod("iptables", "-F") },
	},
	{
		name: "packets to the application are dropped", what: "all, for 2 s", flags: firstByte, must: "sidecar response-start-timeout",
		strike: func(s *stage) {
			time.Sleep(500 * time.Millisecond)
			s.filter("8080", "-j", "DROP")
			time.Sleep(2 * time.Second)
			s.runInPod("iptables", "-F")
		},
	},
	{
		name: "packets to the application are reset", what: "one of a hundred, with tcp-reset", must: "sidecar app-reset",
		strike: func(s *stage) {
			s.filter("8080", "-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "REJECT", "--reject-with", "tcp-reset")
		},
		heal: func(s *stage) { s.runInPod("iptables", "-F") },
	},

	// Shutdown of the pod.
	{
		name: "SIGTERM during traffic", what: "requests until and after the deadline of 2 s", closes: true, must: "broken",
		flags:  []string{"--drain-deadline", "2s"},
		strike: func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM while requests are queued", what: "limit of 1, seven queued", closes: true, must: "application",
		flags:    []string{"--concurrency", "1", "--queue-depth", "20"},
		requests: []ledger.Request{ledger.Get("/slow?ms=100", 5), ledger.Get("/slow?ms=100", 5).OverH2()},
		strike:   func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM during long bodies", what: "requests and responses of one second", closes: true, must: "application",
		requests: []ledger.Request{ledger.Get("/sse?n=10&ms=100", 90), ledger.Get("/sse?n=10&ms=100", 90).OverH2(), ledger.Post("/sink", 3_000_000).InChunks()},
		strike:   func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM with a short deadline", what: "responses of 3 s, deadline of 1 s", closes: true, must: "(?s)broken|sidecar draining",
		flags:    []string{"--drain-deadline", "1s"},
		requests: []ledger.Request{ledger.Get("/sse?n=30&ms=100", 270), ledger.Get("/slow?ms=3000", 5), ledger.Get("/slow?ms=3000", 5).OverH2()},
		strike:   func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM twice", what: "the second signal ends the process immediately", closes: true, clientSuffers: true, logSuffers: true, code: 1, must: "broken",
		requests: []ledger.Request{ledger.Get("/slow?ms=300", 5)},
		strike: func(s *stage) {
			s.sigterm(time.Second)
			time.Sleep(100 * time.Millisecond)
			s.signal(sidecarName, syscall.SIGTERM)
		},
	},
	{
		name: "SIGKILL of the sidecar", what: "then a restart", clientSuffers: true, logSuffers: true, must: "broken",
		strike: func(s *stage) {
			time.Sleep(time.Second)
			s.signal(sidecarName, syscall.SIGKILL)
			s.ended(sidecarName, patience)
			s.start(sidecarName)
		},
	},
}

// stopped stops the process of a container with SIGSTOP for the given duration.
func (s *stage) stopped(name string, d time.Duration) {
	time.Sleep(500 * time.Millisecond)
	s.signal(name, syscall.SIGSTOP)
	time.Sleep(d)
	s.signal(name, syscall.SIGCONT)
}

// outOfFiles prevents the process of a container from opening files for the given duration.
func (s *stage) outOfFiles(name string, d time.Duration) {
	// Run as the user of the container, because root can lack the capability to change the
	// limit of other users.
	var status unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/fd", s.pids[name]), &status); err != nil {
		s.t.Fatal(err)
	}
	limit := func(soft string) {
		out, err := exec.Command("setpriv", "--reuid", fmt.Sprint(status.Uid), "--regid", fmt.Sprint(status.Gid), "--clear-groups",
			"prlimit", "--pid", strconv.Itoa(s.pids[name]), "--nofile="+soft+":").CombinedOutput()
		if err != nil {
			s.t.Errorf("prlimit: %v: %s", err, out)
		}
	}
	time.Sleep(500 * time.Millisecond)
	limit("5") // set a limit that is lower than the number of open files
	time.Sleep(d)
	limit("4096")
}

// sendPartialRequest sends a request with an ID on a new connection and calls behave with the
// connection. The request is recorded as broken by its client.
func (s *stage) sendPartialRequest(n int, behave func(net.Conn), text string) {
	id := "rude-" + strconv.Itoa(n)
	s.note(ledger.Entry{ID: id, Method: "rude", Verdict: ledger.Broken, Word: "by its client"})
	s.clients.Go(func() {
		c, err := s.bare(fmt.Sprintf(text, id))
		if err != nil {
			return
		}
		defer c.Close()
		behave(c)
	})
}

// parent returns the ID of the process that started a container and reads its log.
func (s *stage) parent(name string) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pids[name]))
	if err != nil {
		s.t.Fatal(err)
	}
	// The format is "pid (name) state ppid": see proc_pid_stat(5).
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	pid, err := strconv.Atoi(f[1])
	if err != nil || pid <= 1 {
		s.t.Fatalf("%s: got parent %q, want a process ID", name, f[1])
	}
	return pid
}

// filter adds a rule for packets to a port of the pod.
func (s *stage) filter(port string, rule ...string) {
	s.runInPod(append([]string{"iptables", "-A", "INPUT", "-p", "tcp", "--dport", port}, rule...)...)
}

// sigterm sends SIGTERM to the sidecar after the given duration.
func (s *stage) sigterm(after time.Duration) {
	time.Sleep(after)
	s.signal(sidecarName, syscall.SIGTERM)
}

// step changes the system clock.
func (s *stage) step(by time.Duration) {
	now := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		s.t.Error(err)
	}
}

func (s *stage) writePair() {
	if err := ledger.WritePair(s.certs); err != nil {
		s.t.Fatal(err)
	}
}

// limitLogSize moves the log of the sidecar to a file system of 128 KB.
func limitLogSize(p *pod) {
	file, err := p.logFile(sidecarName)
	if err != nil {
		p.t.Fatal(err)
	}
	dir := filepath.Dir(file)
	held := p.t.TempDir()
	if err := os.CopyFS(held, os.DirFS(dir)); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			p.t.Error(err)
		}
	})
	if err := os.CopyFS(dir, os.DirFS(held)); err != nil {
		p.t.Fatal(err)
	}
}

// logIsFull reports whether the file system of the log is full.
func (s *stage) logIsFull() bool {
	file, err := s.logFile(sidecarName)
	if err != nil {
		s.t.Fatal(err)
	}
	var about unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(file), &about); err != nil {
		s.t.Fatal(err)
	}
	return about.Bavail == 0
}
