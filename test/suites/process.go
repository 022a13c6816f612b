//go:build linux

package main

import (
	"context"
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
)

// patience is the maximum time to wait until a process starts or exits.
const patience = 20 * time.Second

// A process is a running program and its child processes.
type process struct {
	cmd    *exec.Cmd
	output string        // file with the output
	done   chan struct{} // closed after the process has exited
}

// startProcess starts a program that runs until stop is called. Its output is written to a file
// in dir.
func startProcess(dir string, env []string, argv ...string) (*process, error) {
	output, err := os.CreateTemp(dir, "output-*-"+filepath.Base(argv[0]))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	defer output.Close()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), output: output.Name()}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, output, output
	return p, p.start()
}

// start starts the command. The kernel kills the process when its parent exits.
func (p *process) start() error {
	p.done = make(chan struct{})
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.cmd.Path, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// stop kills the process with its child processes and waits for it.
func (p *process) stop() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// running reports whether the process has not exited.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// lastOutput returns the last lines of the output, up to 2000 bytes.
func (p *process) lastOutput() string {
	text, err := os.ReadFile(p.output)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}

// await waits until the process accepts connections at each address.
func (p *process) await(addresses ...string) error {
	for _, address := range addresses {
		for end := time.Now().Add(patience); ; {
			c, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				c.Close()
				break
			}
			if !p.running() || time.Now().After(end) {
				return fmt.Errorf("%s is not listening on %s (output: %q): %w", filepath.Base(p.cmd.Path), address, p.lastOutput(), err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// runProgram runs a program until it exits and returns its output. ok reports whether the exit
// status is 0. Another exit status is not an error.
func runProgram(ctx context.Context, argv ...string) (text string, ok bool, err error) {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = patience
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		return "", false, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return string(out), err == nil, nil
}

// Listening ports are less than 32768, because the kernel uses the range 32768 to 60999 for the
// ports of clients. Otherwise, a client connection could use the port of a server that has not
// started.
const (
	firstPort = 20000
	lastPort  = 32767
)

// freePorts returns n different loopback addresses on which no process listens. The next port
// is stored in a file in dir, because several processes of a run choose ports at the same time.
func freePorts(dir string, n int) ([]string, error) {
	file, err := os.OpenFile(filepath.Join(dir, "port"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("free ports: %w", err)
	}
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("free ports: %w", err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("free ports: %w", err)
	}
	port, err := strconv.Atoi(string(text))
	if err != nil { // the file is new; use the process ID, so that two runs begin at different ports
		port = firstPort + os.Getpid()%(lastPort-firstPort)
	}
	var addresses []string
	for range lastPort - firstPort {
		if len(addresses) == n {
			break
		}
		if port++; port > lastPort {
			port = firstPort
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		l.Close()
		addresses = append(addresses, address)
	}
	if len(addresses) < n {
		return nil, fmt.Errorf("there are fewer than %d free ports in the range %d to %d", n, firstPort, lastPort)
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(port)), 0); err != nil {
		return nil, fmt.Errorf("free ports: %w", err)
	}
	return addresses, nil
}
