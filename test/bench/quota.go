//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The CPU quota of a container with a limit of 30m.
const (
	quotaPeriod = 100 * time.Millisecond
	quotaShare  = 3 * time.Millisecond
)

// A quota is a cgroup whose processes share a CPU limit of 30m.
type quota struct{ dir string }

// newQuota creates the cgroup. It supports versions 1 and 2 of cgroups. It returns an error if the
// machine does not allow it.
func newQuota() (*quota, error) {
	period, share := strconv.Itoa(int(quotaPeriod.Microseconds())), strconv.Itoa(int(quotaShare.Microseconds()))
	name := "queue-proxy-bench-" + strconv.Itoa(os.Getpid())
	one := &quota{dir: filepath.Join("/sys/fs/cgroup/cpu", name)}
	err1 := one.create(map[string]string{"cpu.cfs_period_us": period, "cpu.cfs_quota_us": share})
	if err1 == nil {
		return one, nil
	}
	two := &quota{dir: filepath.Join("/sys/fs/cgroup", name)}
	err2 := two.create(map[string]string{"cpu.max": share + " " + period})
	if err2 == nil {
		return two, nil
	}
	return nil, fmt.Errorf("set a CPU quota: %w", errors.Join(err1, err2))
}

func (q *quota) create(files map[string]string) error {
	if err := os.Mkdir(q.dir, 0o755); err != nil {
		return err
	}
	for name, value := range files {
		// The kernel creates the files. If a file is missing, write returns an error and does not
		// create it.
		if err := write(filepath.Join(q.dir, name), value); err != nil {
			return errors.Join(err, q.remove())
		}
	}
	return nil
}

// add moves a process into the cgroup and waits for two periods, so that CPU time that the process
// used before does not reduce its quota.
func (q *quota) add(pid int) error {
	if err := write(filepath.Join(q.dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return err
	}
	time.Sleep(2 * quotaPeriod)
	return nil
}

// remove deletes the cgroup after its processes have exited. It retries until the kernel has
// released the last process.
func (q *quota) remove() (err error) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err = os.Remove(q.dir); !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

func write(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
