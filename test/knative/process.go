package knative

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is the maximum duration of each wait. A successful test never waits that long.
const patience = 45 * time.Second

// A process is a running program that is stopped at the end of the test.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed after the process exits
	out  output
}

// start starts a program with exactly the given environment.
func start(t *testing.T, name, path string, env []string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(path), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = env, "/"
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, p.out.tail())
		}
	})
	return p
}

func (p *process) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatalf("send SIGTERM to %s: %v", p.name, err)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// code waits until the process exits and returns the exit code, or -1 after a signal.
func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s is still running after %v", p.name, patience)
	}
	return p.cmd.ProcessState.ExitCode()
}

// output contains the standard output and the standard error of a process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *output) tail() string {
	s := o.String()
	if len(s) > 6000 {
		s = "..." + s[len(s)-6000:]
	}
	return s
}

// line returns the first line that contains all words.
func (o *output) line(words ...string) (string, bool) {
next:
	for line := range strings.Lines(o.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		return line, true
	}
	return "", false
}

// poll calls ask until ask returns nil. The test fails if this takes longer than patience. what
// describes the operation in the message.
func poll(t *testing.T, what string, ask func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: timeout after %v: %v", what, patience, err)
		}
	}
}

// receive waits for a value from a channel.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatalf("%s: closed", what)
		}
		return v
	case <-time.After(patience):
		t.Fatalf("%s: timeout after %v", what, patience)
		panic("unreachable")
	}
}
