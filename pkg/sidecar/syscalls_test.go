//go:build linux && !race

package sidecar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/ledger"
)

// These tests count the system calls of a request in the complete sidecar with all features that
// are on by default. The sidecar runs in a separate process, which the test traces with ptrace.
// Users may trace processes that they have started.

// countedRole is the environment variable that makes the test binary run the sidecar.
const countedRole = "COUNTED_SIDECAR"

// leaveOut is the environment variable that skips the test on machines that do not permit ptrace.
const leaveOut = "WITHOUT_PTRACE"

// callNames contains the names of the expected system calls in steady state. Other system calls are
// reported by number.
var callNames = map[uint64]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_READV: "readv", unix.SYS_WRITEV: "writev",
	unix.SYS_RECVFROM: "recvfrom", unix.SYS_SENDTO: "sendto", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_PWRITEV2: "pwritev2", unix.SYS_SPLICE: "splice", unix.SYS_CLOSE: "close", unix.SYS_SHUTDOWN: "shutdown",
	unix.SYS_SOCKET: "socket", unix.SYS_CONNECT: "connect", unix.SYS_ACCEPT4: "accept4",
	unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_GETSOCKNAME: "getsockname", unix.SYS_GETPEERNAME: "getpeername",
	unix.SYS_EPOLL_CTL: "epoll_ctl", unix.SYS_EPOLL_PWAIT: "epoll_pwait", unix.SYS_FCNTL: "fcntl",
	unix.SYS_FUTEX: "futex", unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_SCHED_YIELD: "sched_yield", unix.SYS_MADVISE: "madvise",
	unix.SYS_CLONE: "clone", unix.SYS_TGKILL: "tgkill", unix.SYS_GETPID: "getpid", unix.SYS_RT_SIGRETURN: "rt_sigreturn",
	unix.SYS_CLOCK_GETTIME: "clock_gettime", unix.SYS_GETRANDOM: "getrandom", unix.SYS_TIMER_SETTIME: "timer_settime",
}

// scheduling contains the names of the system calls of the Go scheduler. Their number depends on
// elapsed time and on the load of the machine, not on the number of requests.
var scheduling = []string{"futex", "nanosleep", "sched_yield", "madvise", "clone", "tgkill", "getpid", "rt_sigreturn", "clock_gettime"}

func TestRequestSystemCallCount(t *testing.T) {
	if os.Getenv(countedRole) != "" {
		beCounted(t)
		return
	}
	post := "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 10003\r\n\r\n" + strings.Repeat("x", 10000) + "end"
	// Each direction needs one read, one write, and one read that returns EAGAIN. After EAGAIN, the
	// Go scheduler looks for other work and then waits.
	most := map[string]float64{"recvfrom": 2, "recvfrom (nothing yet)": 2, "sendto": 2, "epoll_pwait": 4}
	for _, v := range []struct {
		name, request string
		secure        bool
	}{
		{"GET", ordinaryGET, false},
		{"POST of 10 KB", post, false},
		{"GET over TLS", ordinaryGET, true},
		{"POST of 10 KB over TLS", post, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			c, calls := counted(t, v.secure)
			const requests = 200
			request := []byte(v.request)
			answer := make([]byte, sizeOf(t, c, request))
			talkOften := func() {
				for range requests {
					harness.NoError(t, calls.rest())
					talk(t, c, request, answer)
				}
			}
			talkOften() // completes one-time work
			before := calls.snapshot()
			talkOften()
			got := calls.since(before, requests)
			t.Logf("calls per request: %s", inWords(got))
			const slack = 0.1 // additional calls per request for periodic work and the end of the previous request
			for name, n := range got {
				if call, _, _ := strings.Cut(name, " ("); n > most[name]+slack && !slices.Contains(scheduling, call) {
					t.Errorf("got %.2f %s per request, want at most %.2f; all: %s", n, name, most[name], inWords(got))
				}
			}
		})
	}
}

// inWords formats numbers of system calls.
func inWords(calls map[string]float64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		words = append(words, fmt.Sprintf("%s %.2f", name, calls[name]))
	}
	return strings.Join(words, ", ")
}

// beCounted runs the sidecar until the parent process stops it.
func beCounted(t *testing.T) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := config.Load()
	harness.NoError(t, err)
	harness.NoError(t, Run(ctx, c, Process{Log: zap.NewNop(), Started: time.Now()}))
}

// counted starts a sidecar in front of an app and counts its system calls. It returns a connection
// to the sidecar.
func counted(t *testing.T, secure bool) (net.Conn, *callCounter) {
	t.Helper()
	calls := newCallCounter()
	app := harness.NewApp(t, (&frugal{answer: []byte(ordinaryAnswer), before: func() { _ = calls.rest() }}).serve)

	dir := t.TempDir()
	harness.NoError(t, ledger.WritePair(dir))
	env := append(os.Environ(), countedRole+"=1", "GOMAXPROCS=1", "TLS_CERT_DIR="+dir, "USER_PORT="+strconv.Itoa(app.Port))
	names := []string{"QUEUE_SERVING_PORT", "QUEUE_SERVING_TLS_PORT", "ADMIN_PORT", "AUTOSCALER_PORT", "METRICS_PORT", "STATUS_PORT"}
	ports := harness.FreePorts(t, len(names))
	for i, name := range names {
		env = append(env, name+"="+ports[i])
	}
	trace(t, calls, []string{os.Args[0], "-test.run=^TestRequestSystemCallCount$", "-test.timeout=1m"}, env, filepath.Join(dir, "output"))

	var c net.Conn
	var err error
	defer func() {
		if c == nil {
			text, _ := os.ReadFile(filepath.Join(dir, "output"))
			t.Logf("the sidecar does not serve: %v\n%s", err, text)
		}
	}()
	harness.Until(t, "connection to the sidecar", func() bool {
		if !secure {
			c, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", ports[0]))
			return err == nil
		}
		var encrypted *tls.Conn
		encrypted, err = tls.Dial("tcp", net.JoinHostPort("127.0.0.1", ports[1]), &tls.Config{
			InsecureSkipVerify:          true,
			DynamicRecordSizingDisabled: true, // each request is one TLS record
		})
		if err == nil {
			c = encrypted
		}
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(harness.Patience))
	return c, calls
}

// A callCounter counts the system calls of a process by name. Calls that returned EAGAIN are
// counted separately.
type callCounter struct {
	mu      sync.Mutex
	changed *sync.Cond
	count   map[string]int
	at      map[int]call // current call of each thread
}

// A call is the system call that a thread executes. The name is empty if the thread executes none.
type call struct {
	name string
	idle bool // the thread waits for work
}

func newCallCounter() *callCounter {
	c := &callCounter{count: map[string]int{}, at: map[int]call{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// move records the current call of a thread and counts the previous one.
func (c *callCounter) move(tid int, to call, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := c.at[tid].name; left != "" {
		if again {
			left += " (nothing yet)"
		}
		c.count[left]++
	}
	c.at[tid] = to
	c.changed.Broadcast()
}

// removeThread removes a thread that has exited.
func (c *callCounter) removeThread(tid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, tid)
	c.changed.Broadcast()
}

// rest waits until all threads are idle. The next request then arrives when all reads have returned
// EAGAIN, so the number of system calls does not depend on the load of the machine.
func (c *callCounter) rest() error {
	late := false
	bound := time.AfterFunc(harness.Patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.changed.Broadcast()
	})
	defer bound.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; ; c.changed.Wait() {
		busy := len(c.at) == 0
		for _, at := range c.at {
			busy = busy || !at.idle
		}
		switch {
		case !busy:
			return nil
		case late:
			return fmt.Errorf("the sidecar is not idle after %v: positions of the threads: %v", harness.Patience, c.at)
		}
	}
}

func (c *callCounter) snapshot() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.count)
}

// since returns the number of system calls per request since a snapshot.
func (c *callCounter) since(before map[string]int, requests int) map[string]float64 {
	each := map[string]float64{}
	for name, n := range c.snapshot() {
		if n > before[name] {
			each[name] = float64(n-before[name]) / float64(requests)
		}
	}
	return each
}

// trace runs a program until the test ends and counts its system calls. args[0] is the path of the
// program.
func trace(t *testing.T, c *callCounter, args, env []string, output string) {
	t.Helper()
	out, err := os.Create(output)
	harness.NoError(t, err)
	t.Cleanup(func() { out.Close() })
	started, ended := make(chan int), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a tracer is an OS thread, and a locked thread exits with its goroutine
		pid, err := start(args, env, out)
		if err != nil {
			ended <- err
			return
		}
		started <- pid
		ended <- c.follow(pid)
	}()
	select {
	case pid := <-started:
		t.Cleanup(func() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			if err := <-ended; err != nil {
				t.Errorf("trace: %v", err)
			}
		})
	case err := <-ended:
		// A skipped test would be reported as passed, and the counts could increase unnoticed.
		if os.Getenv(leaveOut) == "" {
			t.Fatalf("cannot count system calls because ptrace is not permitted: %v; set %s=1 to skip this test", err, leaveOut)
		}
		t.Skipf("%s is set: %v", leaveOut, err)
	}
}

// start starts a program that this thread traces, and stops it before its first instruction.
func start(args, env []string, out *os.File) (pid int, err error) {
	pid, err = syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{out.Fd(), out.Fd(), out.Fd()},
		Sys:   &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start: %w", err)
	}
	var status unix.WaitStatus
	if _, err = wait(pid, &status); err == nil && !status.Stopped() {
		err = fmt.Errorf("got status %#x, want a stopped process", status)
	}
	if err == nil {
		err = unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL)
	}
	if err == nil {
		err = unix.PtraceSyscall(pid, 0)
	}
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return 0, fmt.Errorf("trace: %w", err)
	}
	return pid, nil
}

// wait waits for a traced thread. A tid of -1 means any thread.
func wait(tid int, status *unix.WaitStatus) (int, error) {
	for {
		got, err := unix.Wait4(tid, status, unix.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

// follow counts system calls until the process exits.
func (c *callCounter) follow(pid int) error {
	for {
		var status unix.WaitStatus
		tid, err := wait(-1, &status)
		switch {
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case !status.Stopped() && tid == pid:
			return nil
		case !status.Stopped():
			c.removeThread(tid)
			continue
		}
		var deliver int
		switch stop := status.StopSignal(); stop {
		case unix.SIGTRAP | 0x80: // entry or exit of a system call; see PTRACE_O_TRACESYSGOOD
			if err := c.atCall(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("system call: %w", err)
			}
		case unix.SIGTRAP, unix.SIGSTOP: // a thread creates a thread or has just started
		default:
			deliver = int(stop)
		}
		// The thread may have been killed in the meantime.
		if err := unix.PtraceSyscall(tid, deliver); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("continue: %w", err)
		}
	}
}

// callInfo is struct ptrace_syscall_info of linux/ptrace.h.
type callInfo struct {
	op    uint8
	_     [3]uint8
	_     uint32
	_, _  uint64
	first uint64    // number of the system call on entry, result on exit
	args  [6]uint64 // arguments on entry
	_     [16]byte
}

// atCall records the entry or exit of a system call.
func (c *callCounter) atCall(tid int) error {
	var info callInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return errno
	}
	if info.op != unix.PTRACE_SYSCALL_INFO_ENTRY {
		c.move(tid, call{}, int64(info.first) == -int64(unix.EAGAIN))
		return nil
	}
	name, ok := callNames[info.first]
	if !ok {
		name = fmt.Sprintf("call %d", info.first)
	}
	idle := name == "futex" || name == "nanosleep"
	if name == "epoll_pwait" {
		idle = info.args[3] != 0 // if the timeout is not 0, the thread blocks until there is work
	}
	c.move(tid, call{name: name, idle: idle}, false)
	return nil
}
