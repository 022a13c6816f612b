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

// What a small pod gets: `cpu: 30m` as a limit.
const (
	quotaPeriod = 100 * time.Millisecond
	quotaShare  = 3 * time.Millisecond
)

// A quota is a cgroup whose processes together get 30m of a CPU.
type quota struct{ dir string }

// newQuota makes the cgroup, of version 2 or 1. The error says why this machine
// does not let us.
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
	return nil, fmt.Errorf("no CPU quota can be set here: %w", errors.Join(err1, err2))
}

func (q *quota) create(files map[string]string) error {
	if err := os.Mkdir(q.dir, 0o755); err != nil {
		return err
	}
	for name, value := range files {
		// The kernel makes the files. One that is not there must not be made by us.
		if err := write(filepath.Join(q.dir, name), value); err != nil {
			return errors.Join(err, q.remove())
		}
	}
	return nil
}

// add puts a process into the cgroup, and lets one period pass: what it has used
// before is then forgotten.
func (q *quota) add(pid int) error {
	if err := write(filepath.Join(q.dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return err
	}
	time.Sleep(2 * quotaPeriod)
	return nil
}

// remove ends the cgroup, whose processes have ended. The kernel may still be busy
// with the last of them.
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
