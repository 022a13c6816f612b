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

// firstByte makes the sidecar give up on an app that says nothing for a second.
var firstByte = []string{"--response-start-timeout", "1"}

// faults is the campaign, in the order of the table.
var faults = []fault{
	{
		name: "nothing", what: "the same traffic, undisturbed",
		must: "^by the app [^\n]*\n$",
	},

	// The app.
	{
		name: "the app is killed", what: "SIGKILL every 700 ms, and a start",
		must: "by us app-(reset|unreachable)",
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
		name: "the app is paused", what: "SIGSTOP for 2 s; the clock of the first byte is 1 s",
		flags: firstByte, must: "by us response-start-timeout",
		strike: func(s *stage) { s.stopped("app", 2*time.Second) },
	},
	{
		name: "the app is slow", what: "150 ms a request, 2 at once, 2 may wait, for 100 ms",
		flags:    []string{"--concurrency", "2", "--queue-depth", "2", "--queue-timeout", "100ms"},
		requests: []ledger.Request{ledger.Get("/slow?ms=150", 5), ledger.Get("/slow?ms=150", 5).OverH2()},
		must:     "by us queue-full",
	},
	{
		name: "the app resets", what: "RST before the answer, the end in its midst, chunked or not",
		requests: append([]ledger.Request{
			ledger.Get("/reset", -1), ledger.Post("/reset", 10000), ledger.Get("/die?after=0", -1),
			ledger.Get("/die?after=70000", -1), ledger.Get("/die?after=70000", -1).OverH2(),
		}, ledger.Usual()...),
		must: "(?s)by us app-reset.*broken|broken.*by us app-reset",
	},
	{
		name: "the app answers garbage", what: "what is not HTTP",
		requests: append([]ledger.Request{ledger.Get("/garbage", -1), ledger.Post("/garbage", 10)}, ledger.Usual()...),
		must:     "by us app-garbage",
	},
	{
		name: "the app closes idle connections", what: "after 5 ms, without a word",
		app: []string{"-keepalive-timeout", "5ms"}, clients: 3, must: "by the app",
	},
	{
		name: "the app's backlog is full", what: "somaxconn 1, SIGSTOP for 2 s, 24 clients",
		flags: firstByte, clients: 24, must: "by us response-start-timeout",
		prepare: func(s *stage) {
			s.inside("sysctl", "-q", "-w", "net.core.somaxconn=1")
			s.signal("app", syscall.SIGKILL)
			s.ended("app", patience)
			s.start("app")
		},
		strike: func(s *stage) { s.stopped("app", 2*time.Second) },
	},
	{
		name: "the app is out of files", what: "RLIMIT_NOFILE below what is open, for 2 s, 24 clients; idle connections end",
		flags: firstByte, app: []string{"-keepalive-timeout", "5ms"}, clients: 24, must: "by us response-start-timeout",
		strike: func(s *stage) { s.outOfFiles("app", 2*time.Second) },
	},

	// Clients.
	{
		name: "clients stall", what: "in the midst of a head, and of a body; each may take 1 s",
		flags: []string{"set:HEADER_TIMEOUT=1s", "set:BODY_TIMEOUT=1s"}, clientSuffers: true, must: "broken",
		strike: func(s *stage) {
			for i := range 40 {
				s.rude(i, func(c net.Conn) { io.Copy(io.Discard, c) }, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Le")
				s.rude(i+40, func(c net.Conn) { io.Copy(io.Discard, c) }, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf of it")
			}
		},
	},
	{
		name: "clients reset", what: "RST in the midst of request, wait and answer",
		clientSuffers: true, must: "broken",
		strike: func(s *stage) {
			for i := 0; s.ctx.Err() == nil; i++ {
				reset := func(c net.Conn) {
					time.Sleep(time.Duration(i*7%40) * time.Millisecond)
					c.(*net.TCPConn).SetLinger(0)
				}
				switch i % 3 {
				case 0:
					s.rude(i, reset, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf of it")
				case 1:
					s.rude(i, reset, "GET /slow?ms=100&id=%s HTTP/1.1\r\nHost: a\r\n\r\n")
				default:
					s.rude(i, reset, "GET /stream/50000000?id=%s HTTP/1.1\r\nHost: a\r\n\r\n")
				}
				time.Sleep(10 * time.Millisecond)
			}
		},
	},
	{
		name: "clients half-close", what: "FIN behind a whole request, and behind half of one",
		clientSuffers: true, must: "broken",
		strike: func(s *stage) {
			for i := 0; s.ctx.Err() == nil; i++ {
				half := func(c net.Conn) {
					c.(*net.TCPConn).CloseWrite()
					io.Copy(io.Discard, c)
				}
				if i%2 == 0 {
					s.rude(i, half, "GET /slow?ms=100&id=%s HTTP/1.1\r\nHost: a\r\n\r\n")
				} else {
					s.rude(i, half, "POST /sink?id=%s HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf of it")
				}
				time.Sleep(20 * time.Millisecond)
			}
		},
	},
	{
		name: "clients send a byte a second", what: "20 bodies of 4 bytes", others: 20, must: "by the app",
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

	// Addresses.
	{
		name: "an IPv6-only pod", what: "no 127.0.0.1 when the sidecar starts", must: "^by the app [^\n]*\n$",
		prepare: func(s *stage) {
			s.inside("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
			s.signal(sidecarName, syscall.SIGKILL)
			s.ended(sidecarName, patience)
			s.start(sidecarName)
			s.host, s.address = "::1", "[::1]:8012"
		},
	},
	{
		name: "a dual-stack pod", what: "the app on ::1 alone, clients on both", app: []string{"-host", "::1"}, must: "^by the app [^\n]*\n$",
		change: func(s *stage, v *ledger.Client) {
			if s.rng.IntN(2) == 0 {
				v.Dial = s.to("[::1]:8012")
			}
		},
	},

	// What the sidecar lives on.
	{
		name: "files run out", what: "RLIMIT_NOFILE of the sidecar below what is open, for 2 s, 24 clients",
		clients: 24, clientSuffers: true, must: "by the app",
		strike: func(s *stage) { s.outOfFiles(sidecarName, 2*time.Second) },
	},
	{
		name: "memory runs out", what: "300 heads of 900 KB each at 64 MiB: the kernel kills, the kubelet starts", code: 0,
		clientSuffers: true, logSuffers: true, must: "broken",
		strike: func(s *stage) {
			time.Sleep(500 * time.Millisecond)
			huge := "GET /bytes/5?id=%s HTTP/1.1\r\nHost: a\r\nX-Huge: " + strings.Repeat("h", 900_000)
			for i := range 300 {
				s.rude(i, func(net.Conn) { <-s.ctx.Done() }, huge)
			}
			for s.ctx.Err() == nil {
				if !s.running(sidecarName) {
					s.t.Logf("the sidecar has ended with %d", s.ended(sidecarName, patience))
					s.start(sidecarName)
				}
				time.Sleep(50 * time.Millisecond)
			}
		},
	},
	{
		name: "nobody reads the log", what: "SIGSTOP of its reader for 3 s", logSuffers: true, must: "by the app",
		strike: func(s *stage) {
			reader := s.parent(sidecarName)
			syscall.Kill(reader, syscall.SIGSTOP)
			defer syscall.Kill(reader, syscall.SIGCONT)
			time.Sleep(3 * time.Second)
		},
	},
	{
		name: "the log's disk is full", what: "its writer gets ENOSPC", logSuffers: true, must: "by the app", tinyLog: true,
		strike: func(s *stage) {
			eventually(s.t, "the file system of the log is full", s.logIsFull)
		},
	},
	{
		name: "the log's reader dies", what: "SIGKILL", logSuffers: true, orphan: true, must: "^by the app [^\n]*\n$",
		strike: func(s *stage) {
			time.Sleep(time.Second)
			syscall.Kill(s.parent(sidecarName), syscall.SIGKILL)
		},
	},
	{
		name: "many clients come at once", what: "400 clients at 64 MiB and half a processor", clients: 400, must: "^by the app [^\n]*\n$",
	},
	{
		name: "certificates become rubbish", what: "TLS; the pair is overwritten with rubbish after 1 s, and one is right again after 3 s",
		must: "^by the app [^\n]*\n$",
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
				if err := os.WriteFile(filepath.Join(s.certs, name), []byte("rubbish\n"), 0o644); err != nil {
					s.t.Error(err)
				}
			}
			time.Sleep(2 * time.Second)
			s.writePair()
		},
	},
	{
		name: "the clock is stepped", what: "two minutes forward for half a second, and back", must: "^by the app [^\n]*\n$",
		strike: func(s *stage) {
			time.Sleep(time.Second)
			s.step(2 * time.Minute)
			time.Sleep(500 * time.Millisecond)
			s.step(-2 * time.Minute)
		},
	},

	// The wire.
	{
		name: "packets to us are dropped", what: "one in ten", must: "by the app", clientSuffers: true,
		strike: func(s *stage) {
			s.filter("8012", "-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "DROP")
		},
		heal: func(s *stage) { s.inside("iptables", "-F") },
	},
	{
		name: "packets to us are reset", what: "one in a hundred, by tcp-reset", must: "broken", clientSuffers: true,
		strike: func(s *stage) {
			s.filter("8012", "-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "REJECT", "--reject-with", "tcp-reset")
		},
		heal: func(s *stage) { s.inside("iptables", "-F") },
	},
	{
		name: "packets to the app are dropped", what: "all of them, for 2 s", flags: firstByte, must: "by us response-start-timeout",
		strike: func(s *stage) {
			time.Sleep(500 * time.Millisecond)
			s.filter("8080", "-j", "DROP")
			time.Sleep(2 * time.Second)
			s.inside("iptables", "-F")
		},
	},
	{
		name: "packets to the app are reset", what: "one in a hundred, by tcp-reset", must: "by us app-reset",
		strike: func(s *stage) {
			s.filter("8080", "-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "REJECT", "--reject-with", "tcp-reset")
		},
		heal: func(s *stage) { s.inside("iptables", "-F") },
	},

	// The end, at every stage.
	{
		name: "SIGTERM under traffic", what: "until the deadline, 2 s, and after it", closes: true, must: "broken",
		flags:  []string{"--drain-deadline", "2s"},
		strike: func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM while requests wait", what: "one at once, seven wait", closes: true, must: "by the app",
		flags:    []string{"--concurrency", "1", "--queue-depth", "20"},
		requests: []ledger.Request{ledger.Get("/slow?ms=100", 5), ledger.Get("/slow?ms=100", 5).OverH2()},
		strike:   func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM while bodies stream", what: "up and down, for a second", closes: true, must: "by the app",
		requests: []ledger.Request{ledger.Get("/sse?n=10&ms=100", 90), ledger.Get("/sse?n=10&ms=100", 90).OverH2(), ledger.Post("/sink", 3_000_000).InChunks()},
		strike:   func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM, and the deadline comes", what: "answers of 3 s, a deadline of 1 s", closes: true, must: "(?s)broken|by us draining",
		flags:    []string{"--drain-deadline", "1s"},
		requests: []ledger.Request{ledger.Get("/sse?n=30&ms=100", 270), ledger.Get("/slow?ms=3000", 5), ledger.Get("/slow?ms=3000", 5).OverH2()},
		strike:   func(s *stage) { s.sigterm(time.Second) },
	},
	{
		name: "SIGTERM twice", what: "the second ends it at once", closes: true, clientSuffers: true, logSuffers: true, code: 1, must: "broken",
		requests: []ledger.Request{ledger.Get("/slow?ms=300", 5)},
		strike: func(s *stage) {
			s.sigterm(time.Second)
			time.Sleep(100 * time.Millisecond)
			s.signal(sidecarName, syscall.SIGTERM)
		},
	},
	{
		name: "SIGKILL of the sidecar", what: "and a start", clientSuffers: true, logSuffers: true, must: "broken",
		strike: func(s *stage) {
			time.Sleep(time.Second)
			s.signal(sidecarName, syscall.SIGKILL)
			s.ended(sidecarName, patience)
			s.start(sidecarName)
		},
	},
}

// stopped stops a container's process for a while.
func (s *stage) stopped(name string, d time.Duration) {
	time.Sleep(500 * time.Millisecond)
	s.signal(name, syscall.SIGSTOP)
	time.Sleep(d)
	s.signal(name, syscall.SIGCONT)
}

// outOfFiles takes away for a while what files a container's process might open.
func (s *stage) outOfFiles(name string, d time.Duration) {
	// As the container's user, who may change the soft limit of what is its own: root
	// itself may lack the right to change that of others.
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
	limit("5") // fewer than it has at rest: not one more
	time.Sleep(d)
	limit("4096")
}

// rude sends a text with an id, which a client does that leaves the rest to
// behave: it goes on with the connection and closes it. Such a request is broken
// by its client, who notices.
func (s *stage) rude(n int, behave func(net.Conn), text string) {
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

// parent returns the process id of who started a container and reads its log.
func (s *stage) parent(name string) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pids[name]))
	if err != nil {
		s.t.Fatal(err)
	}
	// pid (name) state ppid; proc_pid_stat(5).
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	pid, err := strconv.Atoi(f[1])
	if err != nil || pid <= 1 {
		s.t.Fatalf("%s: got parent %q, want a process", name, f[1])
	}
	return pid
}

// filter adds a rule for packets to a port of the pod.
func (s *stage) filter(port string, rule ...string) {
	s.inside(append([]string{"iptables", "-A", "INPUT", "-p", "tcp", "--dport", port}, rule...)...)
}

// sigterm ends the sidecar after a while.
func (s *stage) sigterm(after time.Duration) {
	time.Sleep(after)
	s.signal(sidecarName, syscall.SIGTERM)
}

// step sets this machine's clock, which the pod has too.
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

// makeLogTiny puts a file system of 128 KB under the sidecar's log.
func makeLogTiny(p *pod) {
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

// logIsFull reports whether the file system of the sidecar's log has no room left.
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
