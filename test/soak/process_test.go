//go:build soak

package soak

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"
)

// A process is a running program whose output is read.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed after the process has exited and all output has been processed
}

// start starts a program. env contains all environment variables of the program. A goroutine calls
// the function each with the lines of the output.
func start(t *testing.T, path string, env []string, each func(string), args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = env, t.TempDir()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(stdout)
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
		p.t.Errorf("%s: send %v: %v", p.cmd.Path, s, err)
	}
}

// kill kills the process if it is still running, and waits until it exits.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}
