//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience is the maximum time to wait until a process starts or exits.
const patience = 20 * time.Second

// A process is a running program and its child processes.
type process struct {
	name   string
	cmd    *exec.Cmd
	output *os.File      // standard error, and standard output if it is not captured
	stdout *bytes.Buffer // captured standard output; nil if the standard output is written to output
	done   chan struct{} // closed after the process has exited
}

// startProcess starts a program. Its output is appended to a file in dir. If capture is
// true, standard output is kept in memory instead.
func startProcess(name, dir string, argv, env []string, capture bool) (*process, error) {
	output, err := os.CreateTemp(dir, "output-*-"+filepath.Base(argv[0]))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), output: output, done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stderr, p.cmd.Stdout = dir, env, output, output
	if capture {
		p.stdout = &bytes.Buffer{}
		p.cmd.Stdout = p.stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		output.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop kills the process with its child processes and waits for it.
func (p *process) stop() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
	p.output.Close()
}

// running reports whether the process is still running.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// lastOutput returns the last lines of the output, up to n bytes.
func (p *process) lastOutput(n int) string {
	text, err := os.ReadFile(p.output.Name())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-n):]))
}

// findProgram returns the path of a program. It also searches the directories of system
// administration programs.
func findProgram(name string) (string, error) {
	for _, dir := range []string{"", "/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s: not found; run test/endurance/setup to install it", name)
}
