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

// isolated is the name of the environment variable that is set in a bench with its own network namespace.
const isolated = "BENCH_ISOLATED"

// isolate restarts this program with the same process ID in a network namespace that contains only
// a loopback device, and does not return. In this namespace the fixed ports of Knative's
// queue-proxy are free. The namespace exists until its last process exits. isolate returns nil in
// the restarted program, and an error if the machine does not allow new namespaces.
func isolate() error {
	if os.Getenv(isolated) != "" {
		return nil
	}
	// A network namespace belongs to a thread. The thread that calls exec becomes the main
	// thread of the new program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("create a network namespace: %w", err)
	}
	if err = loopbackUp(); err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), isolated+"=1"))
	}
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(fmt.Sprintf("leave the network namespace: %v", back)) // panic, because a thread of this process would remain in the namespace
	}
	return err
}

// loopbackUp enables the loopback device in the network namespace of the calling thread.
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
		return fmt.Errorf("enable the loopback device: %w", err)
	}
	return nil
}

// insideNetwork calls f in the network namespace of a process. Sockets that f opens belong to
// that namespace. Sockets of goroutines that f starts do not.
func insideNetwork(pid int, f func() error) error {
	// The thread must leave the namespace and continue to run, because its child processes
	// receive a signal when it exits (Pdeathsig).
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
		return fmt.Errorf("enter the network namespace of process %d: %w", pid, err)
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(fmt.Sprintf("leave the network namespace: %v", back)) // panic, because other goroutines would run on this thread
	}
	runtime.UnlockOSThread()
	return err
}

// provided is a script that copies files to a directory that may not exist. It mounts a tmpfs
// over the deepest existing parent directory.
const provided = `set -e
folder=$1
shift
covered=$folder
while [ ! -d "$covered" ]; do covered=$(dirname "$covered"); done
mount -t tmpfs tmpfs "$covered"
mkdir -p "$folder"
cp "$@" "$folder"`

// provide returns a function that copies files to a directory for a process with its own mount
// namespace. The files disappear when the process exits.
func provide(folder string, files ...string) func(pid int) error {
	return func(pid int) error {
		args := []string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", pid), "sh", "-c", provided, "sh", folder}
		out, err := exec.Command("nsenter", append(args, files...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("provide files in %s: %w: %s", folder, err, out)
		}
		return nil
	}
}
