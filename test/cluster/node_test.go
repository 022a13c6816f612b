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

// restartNode kills the node, with all containers on it, and starts it again. The
// control plane goes on. What runs in our process namespace is ours alone.
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
	// What the containers have printed is a ledger of the tests: containerd may write it.
	time.Sleep(500 * time.Millisecond)
	kill(node[1:]...)
	if err := m.start("containerd"); err != nil {
		return err
	}
	if err := m.until("containerd answers", func() error { _, err := run(nil, "ctr", "version"); return err }, "containerd"); err != nil {
		return err
	}
	if err := m.start(node[:3]...); err != nil {
		return err
	}
	return m.until("the node is ready", m.nodeReady, node...)
}

// killContainers ends every process of a container, and then those that look after them.
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
				return fmt.Errorf("%d processes of containers are still there", left)
			}
		}
	}
	return nil
}

// processes returns all of our namespace.
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

// commandOf returns a process's command line; of one that has ended, nothing.
func commandOf(pid int) []byte {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return line
}

// isContained reports whether a process is in a cgroup of ours, and no zombie.
func isContained(pid int, group string) bool {
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(in, []byte(group)) && len(commandOf(pid)) > 0
}
