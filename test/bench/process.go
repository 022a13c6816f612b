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

// A process is a program that was started, and its workers.
type process struct {
	name    string
	cmd     *exec.Cmd
	said    *tail
	started time.Time // when it was told to exec
	done    chan struct{}
}

// A program is what is to be started.
type program struct {
	name      string
	argv, env []string
	separate  uintptr             // namespaces of its own: CLONE_NEWNET, CLONE_NEWNS
	before    func(pid int) error // called before exec; may be nil
	out       io.Writer           // gets standard output beside the tail; may be nil
}

// launch starts a program in a shell that first waits for a word. Whatever is done
// to the shell in before (putting it into a cgroup) is so inherited without being
// part of what is timed: the clock starts when the word is given, and what follows
// is exec.
func launch(g program) (*process, error) {
	p := &process{name: g.name, said: &tail{}, done: make(chan struct{})}
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", `read -r word; exec "$@" </dev/null`, "sh"}, g.argv...)...)
	p.cmd.Env = g.env
	p.cmd.Stderr = p.said
	p.cmd.Stdout = p.said
	if g.out != nil {
		p.cmd.Stdout = io.MultiWriter(g.out, p.said)
	}
	// A group of its own, so that the workers end with it; and nothing outlives us.
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

// stop ends the process and its workers at once: how each of them drains is not
// what is measured.
func (p *process) stop() {
	syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.done
}

// answers waits until a request to address is answered with 200 and returns the
// time from exec to the first byte of that answer.
func (p *process) answers(address, request string) (time.Duration, error) {
	for end := time.Now().Add(patience); ; {
		at, err := askOnce(address, request)
		if err == nil {
			return at.Sub(p.started), nil
		}
		select {
		case <-p.done:
			return 0, fmt.Errorf("%s ended before it answered: %v; it said: %s", p.name, err, p.said)
		default:
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("%s does not answer after %v: %v; it said: %s", p.name, patience, err, p.said)
		}
		time.Sleep(askAgain)
	}
}

// askAgain is how soon a process that refuses connections is asked again: little
// against the milliseconds that are timed, and little enough of a CPU.
const askAgain = 100 * time.Microsecond

// askOnce makes one request and returns when the first byte of a 200 came.
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
		return time.Time{}, fmt.Errorf("got %q", line)
	}
	return at, nil
}

// family returns the process and all that descend from it.
func (p *process) family() ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended meanwhile
		}
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		// The name stands in brackets and may hold anything; state and parent follow.
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

// cpu returns what the process and its workers have used since they were
// started. It is what the fields utime and stime of /proc/PID/stat tell in
// hundredths of a second, read from the same account to the nanosecond.
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

// cpuClock reads the CPU clock of another process; its number is made as
// clock_getcpuclockid(3) makes it.
func cpuClock(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of all threads, those that have ended too
	id := int32(^pid)<<3 | scheduled
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(id), uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0, errno
	}
	return time.Duration(ts.Nano()), nil
}

// stolen returns for how long all CPUs of this machine together could not run
// because the hypervisor ran somebody else, in ticks since the machine started;
// 0 where there is no hypervisor.
func stolen() (ticks int, err error) {
	if _, err := fmt.Sscan(find("/proc/stat", `(?m)^cpu (?: *\d+){7} (\d+)`), &ticks); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return ticks, nil
}

// memory returns a line of /proc/PID/status, such as VmRSS, in bytes, summed over
// the process and its workers. What they share is counted for each.
func (p *process) memory(line string) (float64, error) { return p.sum("status", line) }

// memoryShare returns the process's and its workers' part of the memory of the machine,
// in bytes: what is theirs alone, and that with their part of what they share with
// other processes, a page that n of them have counting 1/n in each (Pss).
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

// sum adds up a line of a file of /proc/PID, which is in kB, over the process and
// its workers, in bytes.
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
			return 0, fmt.Errorf("%s of %s (%d): not in /proc/PID/%s", line, p.name, pid, file)
		}
		sum += kB * 1024
	}
	return sum, nil
}

// A tail remembers the end of what a process said.
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

// freePorts returns so many ports of the loopback address that nobody has.
func freePorts(n int) ([]string, error) {
	var ports []string
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		held = append(held, l)
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// commandPath finds a program, also where only root's PATH looks.
func commandPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if err == nil {
			return path, nil
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	if err != nil {
		return "", errors.New(name + " is missing; test/bench/setup installs it")
	}
	return path, nil
}
