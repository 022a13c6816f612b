//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolated is set in the environment of a bench that has a network of its own.
const isolated = "BENCH_ISOLATED"

// isolate starts this program again, under the same process id, in a network
// namespace that holds nothing but a loopback device, and does not return. Knative's
// queue-proxy listens on fixed ports: there nobody else has them. The namespace ends
// with the last process in it. An error says why this machine does not let us.
func isolate() error {
	if os.Getenv(isolated) != "" {
		return nil
	}
	// A namespace is a thread's. The thread that calls exec becomes the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("no network namespace can be made here: %w", err)
	}
	if err = loopbackUp(); err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), isolated+"=1"))
	}
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(fmt.Sprintf("back from a network namespace: %v", back)) // half of this process would be in it
	}
	return err
}

// loopbackUp lets the calling thread's network namespace reach itself.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("the loopback device: %w", err)
	}
	return nil
}

// insideNetwork calls f in the network namespace of a process. Sockets that f
// itself opens are of that namespace; those of goroutines that it starts are not.
func insideNetwork(pid int, f func() error) error {
	// The thread must come back and live on: processes that it started are sent a
	// signal when it ends (Pdeathsig).
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	theirs, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err == nil {
		err = unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET)
		theirs.Close()
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("the network of process %d: %w", pid, err)
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(fmt.Sprintf("back from a network namespace: %v", back)) // others would run on this thread
	}
	runtime.UnlockOSThread()
	return err
}

// provided makes files appear in a folder, which need not exist: a file system in
// memory covers the deepest folder on the way to it that does.
const provided = `set -e
folder=$1
shift
covered=$folder
while [ ! -d "$covered" ]; do covered=$(dirname "$covered"); done
mount -t tmpfs tmpfs "$covered"
mkdir -p "$folder"
cp "$@" "$folder"`

// provide returns what makes files appear in a folder for a process that has mounts
// of its own. Nothing is left of it when the process has ended.
func provide(folder string, files ...string) func(pid int) error {
	return func(pid int) error {
		args := []string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid), "sh", "-c", provided, "sh", folder}
		out, err := exec.Command("nsenter", append(args, files...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("making %s: %w: %s", folder, err, out)
		}
		return nil
	}
}
