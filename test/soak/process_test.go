//go:build soak

package soak

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"
)

// A process is one of ours, and what it prints is heard.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and all that it printed has been heard
}

// start starts a program with exactly this environment. Each line that it prints is
// handed to each, by one goroutine.
func start(t *testing.T, path string, env []string, each func(string), args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = env, t.TempDir()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(said)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			each(lines.Text())
		}
		if err := lines.Err(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		p.cmd.Wait()
	}()
	return p
}

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%s: %v: %v", p.cmd.Path, s, err)
	}
}

// kill ends the process if it still runs, and returns when it has ended.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}
