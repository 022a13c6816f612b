//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// networkVariable is the name of the environment variable that is set inside the network namespace.
const networkVariable = "ENDURANCE_NETWORK"

// errReported is the error of a program that has already printed its error.
var errReported = errors.New("the error was already printed")

// inNamespace reports whether this process runs in its own network namespace.
func inNamespace() bool { return os.Getenv(networkVariable) != "" }

// enterNamespace runs this program again in a new network namespace, and waits for it.
// A user other than root also needs a new user namespace.
func enterNamespace(ctx context.Context) error {
	c := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), networkVariable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if os.Getuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = patience
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return errReported
	}
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	return nil
}

// enableLoopback brings up the loopback device of the current network namespace.
func enableLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback device: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback device: %w", err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback device: %w", err)
	}
	return nil
}

// Listening ports are less than 32768, because the kernel uses the range 32768 to 60999 for the
// ports of clients. Otherwise, a client connection could use the port of a server that has not
// started.
const (
	firstPort = 20000
	lastPort  = 32767
)

// freePorts returns n different loopback addresses on which no process listens.
func freePorts(n int) ([]string, error) {
	var addresses []string
	for port := firstPort; port <= lastPort && len(addresses) < n; port++ {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer l.Close()
		addresses = append(addresses, address)
	}
	if len(addresses) < n {
		return nil, fmt.Errorf("there are fewer than %d free ports in the range %d to %d", n, firstPort, lastPort)
	}
	return addresses, nil
}

// awaitListener waits until a process accepts connections on address. It returns an error if ended is
// closed or if the timeout patience expires.
func awaitListener(address string, ended <-chan struct{}) error {
	for end := time.Now().Add(patience); ; {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("no listener after %v: %w", patience, err)
		}
		select {
		case <-ended:
			return fmt.Errorf("the process exited before it was ready to accept connections: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
