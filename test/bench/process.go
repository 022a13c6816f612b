//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// patience is the maximum time to wait for a process. The value is large so that a wait does
// not fail because the machine is slow.
const patience = 3 * time.Minute

// A process is a running program with its child processes.
type process struct {
	name    string
	cmd     *exec.Cmd
	output  *tail
	started time.Time // time at which the shell received the input line
	done    chan struct{}
}

// A program describes a process to start.
type program struct {
	name      string
	argv, env []string
	separate  uintptr             // new namespaces: CLONE_NEWNET, CLONE_NEWNS
	before    func(pid int) error // called before exec; may be nil
	out       io.Writer           // receives standard output in addition to the tail; may be nil
}

// launch starts a program in a shell that waits for a line of input before exec. The function
// before can therefore change the shell, for example move it to a cgroup, and the program
// inherits the change. The measured start time is the time of the input line, immediately
// before exec.
func launch(g program) (*process, error) {
	p := &process{name: g.name, output: &tail{}, done: make(chan struct{})}
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", `read -r word; exec "$@" </dev/null`, "sh"}, g.argv...)...)
	p.cmd.Env = g.env
	p.cmd.Stderr = p.output
	p.cmd.Stdout = p.output
	if g.out != nil {
		p.cmd.Stdout = io.MultiWriter(g.out, p.output)
	}
	// The new process has its own process group, so that stop also kills its children. It receives
	// SIGTERM if the bench exits.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM, Unshareflags: g.separate}
	word, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	if g.before != nil {
		if err := g.before(p.pid()); err != nil {
			p.stop()
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
	}
	p.started = time.Now()
	if _, err := io.WriteString(word, "go\n"); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	word.Close()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop kills the process and its children immediately, because the drain is not measured.
func (p *process) stop() {
	syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.done
}

// answers waits until a request to address gets status 200. It returns the time from exec to
// the first byte of this response.
func (p *process) answers(address, request string) (time.Duration, error) {
	for end := time.Now().Add(patience); ; {
		at, err := askOnce(address, request)
		if err == nil {
			return at.Sub(p.started), nil
		}
		select {
		case <-p.done:
			return 0, fmt.Errorf("%s exited before the first response: %v; output: %s", p.name, err, p.output)
		default:
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("%s: timeout after %v: %v; output: %s", p.name, patience, err, p.output)
		}
		time.Sleep(askAgain)
	}
}

// askAgain is the delay before another attempt to connect. It is short compared with the
// measured times, which are several milliseconds, and causes little CPU load.
const askAgain = 100 * time.Microsecond

// askOnce sends one request and returns the time when the first byte of a response with status
// 200 arrives.
func askOnce(address, request string) (time.Time, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return time.Time{}, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		return time.Time{}, err
	}
	r := bufio.NewReader(c)
	if _, err := r.Peek(1); err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	line, err := r.ReadString('\n')
	if err != nil {
		return time.Time{}, err
	}
	if !strings.Contains(line, " 200 ") {
		return time.Time{}, fmt.Errorf("got %q, want status 200", line)
	}
	return at, nil
}

// family returns the process and its descendants.
func (p *process) family() ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process exited while its files were read
		}
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		// The name of the program is in parentheses and may contain any characters. The state and
		// the parent process ID follow.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
	}
	family := []int{p.pid()}
	for i := 0; i < len(family); i++ {
		for pid, parent := range parents {
			if parent == family[i] {
				family = append(family, pid)
			}
		}
	}
	return family, nil
}

// cpu returns the CPU time of the process and its children since their start. It is the sum of
// utime and stime in /proc/PID/stat, but with nanosecond resolution.
func (p *process) cpu() (time.Duration, error) {
	family, err := p.family()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range family {
		d, err := cpuClock(pid)
		if err != nil {
			return 0, fmt.Errorf("CPU time of %s (%d): %w", p.name, pid, err)
		}
		sum += d
	}
	return sum, nil
}

// cpuClock reads the CPU clock of another process. It computes the clock ID like
// clock_getcpuclockid(3).
func cpuClock(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: the clock of all threads, including threads that have exited
	id := int32(^pid)<<3 | scheduled
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(id), uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0, errno
	}
	return time.Duration(ts.Nano()), nil
}

// stolen returns the time during which the hypervisor did not run the CPUs of this machine, in
// ticks since the machine started. Without a hypervisor, it is 0.
func stolen() (ticks int, err error) {
	if _, err := fmt.Sscan(find("/proc/stat", `(?m)^cpu (?: *\d+){7} (\d+)`), &ticks); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return ticks, nil
}

// memory returns a value of /proc/PID/status in bytes, such as VmRSS. It is the sum for the
// process and all child processes, so shared memory is counted several times.
func (p *process) memory(line string) (float64, error) { return p.sum("status", line) }

// memoryShare returns the memory of the process and its children in bytes: the private memory, and
// the proportional share (Pss), which counts 1/n of a page that n processes share.
func (p *process) memoryShare() (private, proportional float64, err error) {
	for _, line := range []string{"Private_Clean", "Private_Dirty", "Private_Hugetlb", "Swap"} {
		v, err := p.sum("smaps_rollup", line)
		if err != nil {
			return 0, 0, err
		}
		private += v
	}
	proportional, err = p.sum("smaps_rollup", "Pss")
	return private, proportional, err
}

// sum returns the sum, in bytes, of a value in a file below /proc/PID, for the process and its
// children. The value in the file is in kB.
func (p *process) sum(file, line string) (float64, error) {
	family, err := p.family()
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, pid := range family {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return 0, err
		}
		_, rest, found := strings.Cut(string(text), "\n"+line+":")
		var kB float64
		if _, err := fmt.Sscan(rest, &kB); !found || err != nil {
			return 0, fmt.Errorf("%s of %s (%d): not found in /proc/PID/%s", line, p.name, pid, file)
		}
		sum += kB * 1024
	}
	return sum, nil
}

// A tail stores the end of the output of a process.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 2 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[max(0, len(b)-tailSize):]...)
	t.text = append(t.text[:0], t.text[max(0, len(t.text)-tailSize):]...)
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// freePorts returns n unused ports of the loopback address.
func freePorts(n int) ([]string, error) {
	var ports []string
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// commandPath returns the path of a program. It also searches the directories in the PATH of
// root.
func commandPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if err == nil {
			return path, nil
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	if err != nil {
		return "", errors.New(name + " not found; run test/bench/setup")
	}
	return path, nil
}
