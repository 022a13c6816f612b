//go:build cluster

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// restartNode kills the node with all its containers and starts it again. The control plane
// continues to run.
func (m *machine) restartNode() error {
	node := []string{"kubelet", "kube-proxy", "dns", "containerd"}
	kill := func(names ...string) {
		for _, name := range names {
			d := m.daemons[name]
			_ = d.cmd.Process.Kill()
			<-d.done
		}
	}
	kill("kubelet")
	if err := m.killContainers(); err != nil {
		return err
	}
	// Wait before the other processes are killed, so that containerd can write the output of
	// the containers, which the tests need.
	time.Sleep(500 * time.Millisecond)
	kill(node[1:]...)
	if err := m.start("containerd"); err != nil {
		return err
	}
	if err := m.until("containerd responds", func() error { _, err := run(nil, "ctr", "version"); return err }, "containerd"); err != nil {
		return err
	}
	if err := m.start(node[:3]...); err != nil {
		return err
	}
	return m.until("the node is ready", m.nodeReady, node...)
}

// killContainers kills the processes in the containers, and then the shims.
func (m *machine) killContainers() error {
	for _, is := range []func(int) bool{
		func(pid int) bool { return isContained(pid, m.group) },
		func(pid int) bool { return bytes.Contains(commandOf(pid), []byte("containerd-shim")) },
	} {
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			left := 0
			for _, pid := range processes() {
				if is(pid) {
					left++
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			if left == 0 {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("got %d remaining processes of containers", left)
			}
		}
	}
	return nil
}

// processes returns the IDs of all processes in the namespace. All of them belong to the test.
func processes() []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	var all []int
	for _, name := range names {
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// commandOf returns the command line of a process, or nil if the process has exited.
func commandOf(pid int) []byte {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return line
}

// isContained reports whether a process is in the given cgroup and is not a zombie.
func isContained(pid int, group string) bool {
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(in, []byte(group)) && len(commandOf(pid)) > 0
}
