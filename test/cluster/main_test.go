//go:build cluster

package cluster

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Environment variables with the role and the settings of this process. They are not set
// in the process that `go test` starts.
const (
	roleName  = "CLUSTER_ROLE" // "first" in the first process in the namespaces, "tests" in its child
	stateName = "CLUSTER_STATE"
	groupName = "CLUSTER_CGROUP"

	roleFirst = "first"
	roleTests = "tests"
)

// newestRelease is the directory of the newest Knative release.
const newestRelease = "knative"

var (
	shell   = flag.Bool("shell", false, "start the cluster, run no test, and leave it running until this program is interrupted")
	release = flag.String("knative", newestRelease, "directory of the go.mod with the Knative release: knative or knative-VERSION")
	update  = flag.Bool("update", false, "write the tables of the results into the documents")
)

func TestMain(m *testing.M) {
	flag.Parse()
	var code int
	var err error
	switch os.Getenv(roleName) {
	case roleFirst:
		code, err = collect()
	case roleTests:
		code, err = withCluster(m)
	default:
		code, err = enclose()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		code = 1
	}
	os.Exit(code)
}

// enclose starts this program as the first process in new namespaces. When the process exits,
// enclose removes the cgroup and the directory.
func enclose() (code int, err error) {
	if os.Getuid() != 0 {
		return 0, errors.New("must run as root to mount file systems and create cgroups")
	}
	cache, err := cacheDir()
	if err != nil {
		return 0, err
	}
	if err := removeOld(cache); err != nil {
		return 0, err
	}
	state, err := os.MkdirTemp(cache, "run-")
	if err != nil {
		return 0, err
	}
	lock, err := lockState(state) // the lock is held until this process exits
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	group := groupOf(state)
	defer func() {
		for _, left := range []error{removeGroups(group), removeState(state)} {
			if left != nil && err == nil {
				err = fmt.Errorf("clean up: %w", left)
			}
		}
	}()
	restore, err := makeGroups(group)
	defer restore()
	if err != nil {
		return 0, err
	}
	return runEnclosed(state, group)
}

// runEnclosed starts this program as the first process in new namespaces.
func runEnclosed(state, group string) (code int, err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.Env = append(os.Environ(), roleName+"="+roleFirst, stateName+"="+state, groupName+"="+group)
	again.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true, // a separate session, so that only this process receives an interrupt
	}
	runtime.LockOSThread() // the kernel sends Pdeathsig when the thread that started the process exits
	if err := again.Start(); err != nil {
		return 0, fmt.Errorf("create namespaces: %w", err)
	}
	// Processes in the namespaces cannot determine the outer process ID.
	if err := os.WriteFile(state+"/pid", []byte(strconv.Itoa(again.Process.Pid)), 0o644); err != nil {
		_ = again.Process.Kill()
		return 0, errors.Join(err, again.Wait())
	}
	ended := make(chan error, 1)
	go func() { ended <- again.Wait() }()
	select {
	case err = <-ended:
	case s := <-stop:
		fmt.Fprintf(os.Stderr, "cluster: %v: stopping\n", s)
		_ = again.Process.Kill() // after the first process exits, the kernel kills all other processes in the namespace
		<-ended
		return 128 + int(s.(syscall.Signal)), nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// collect mounts the file systems of the namespaces, starts this program again with the tests,
// and reaps all processes until the tests have exited.
func collect() (int, error) {
	if err := mountOwn(os.Getenv(stateName)); err != nil {
		return 0, err
	}
	env := []string{}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, roleName+"=") {
			env = append(env, e)
		}
	}
	tests, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(env, roleName+"="+roleTests),
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case pid == tests.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == tests.Pid:
			return status.ExitStatus(), nil
		}
	}
}

// mountOwn replaces the directories and settings of the machine that the cluster writes to:
// /run, /var/log, the directory of the kubelet, and the kernel settings that the kubelet
// changes.
func mountOwn(state string) error {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"", "/", "", syscall.MS_REC | syscall.MS_SHARED}, // share mounts within the namespace, which pods require
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{state + "/kubelet", "/var/lib/kubelet", "", syscall.MS_BIND},
		{state + "/log", "/var/log", "", syscall.MS_BIND},
	} {
		if m.flags&syscall.MS_BIND != 0 {
			for _, dir := range []string{m.source, m.target} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
			}
		}
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, dir := range []string{"/run/netns", "/run/lock", "/run/queue-proxy-cluster"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// The kubelet changes these kernel parameters to the following values.
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		target := "/proc/sys/" + name
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		file := "/run/queue-proxy-cluster/" + strings.ReplaceAll(name, "/", ".")
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, target, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// cacheDir returns the directory outside the checkout in which test/cluster/build stores its
// results. The directory exists.
func cacheDir() (string, error) {
	modules, err := programs("kubernetes")
	if err != nil {
		return "", err
	}
	return filepath.Dir(modules), nil
}

// programs returns the directory with the programs of a module (see test/cluster/build).
func programs(module string) (string, error) {
	out, err := exec.Command("./build", "-path", module).Output()
	if err != nil {
		return "", fmt.Errorf("build -path %s: %w", module, err)
	}
	dir := strings.TrimSpace(string(out))
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("%w (run test/cluster/setup)", err)
	}
	return dir, nil
}

// groupRoots returns the root cgroups of the machine: one path for version 2, or one path per
// controller for version 1.
func groupRoots() ([]string, error) {
	const mounted = "/sys/fs/cgroup"
	if _, err := os.Stat(mounted + "/cgroup.controllers"); err == nil {
		return []string{mounted}, nil
	}
	all, err := filepath.Glob(mounted + "/*/cgroup.procs")
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("no cgroups found in %s", mounted)
	}
	for i := range all {
		all[i] = filepath.Dir(all[i])
	}
	return all, nil
}

// makeGroups creates a cgroup in each root. restore is never nil. It reverts the changes to the
// roots, and must be called after the cgroup is deleted.
func makeGroups(group string) (restore func(), err error) {
	roots, err := groupRoots()
	if err != nil {
		return func() {}, err
	}
	restore = func() {}
	if len(roots) == 1 {
		restore = enableControllers(roots[0] + "/cgroup.subtree_control")
	}
	for _, root := range roots {
		if err := os.Mkdir(root+group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return restore, err
		}
		// An empty cpuset of version 1 accepts no processes.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if all, err := os.ReadFile(filepath.Join(root, name)); err == nil && len(roots) > 1 {
				_ = os.WriteFile(filepath.Join(root+group, name), all, 0o644)
			}
		}
	}
	return restore, nil
}

// enableControllers enables the controllers that a kubelet needs for the children of a version
// 2 cgroup, if the machine supports them. It returns a function that reverts the change.
func enableControllers(file string) (restore func()) {
	before, _ := os.ReadFile(file)
	var added []string
	for _, name := range []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"} {
		if !slices.Contains(strings.Fields(string(before)), name) && os.WriteFile(file, []byte("+"+name), 0) == nil {
			added = append(added, name)
		}
	}
	return func() {
		for _, name := range added {
			_ = os.WriteFile(file, []byte("-"+name), 0)
		}
	}
}

// groupOf returns the name of a run's cgroup.
func groupOf(state string) string { return "/queue-proxy-" + filepath.Base(state) }

// lockState marks the directory of a run as in use.
func lockState(state string) (*os.File, error) {
	f, err := os.OpenFile(state+"/lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// removeOld removes the directories and cgroups of earlier runs that were killed.
func removeOld(cache string) error {
	old, err := filepath.Glob(cache + "/run-*")
	if err != nil {
		return err
	}
	for _, state := range old {
		lock, err := lockState(state)
		if err != nil {
			continue // the run that uses the directory is still active
		}
		err = errors.Join(removeGroups(groupOf(state)), removeState(state))
		lock.Close()
		if err != nil {
			return fmt.Errorf("clean up an earlier run: %w", err)
		}
	}
	return nil
}

// removeGroups removes cgroups, starting at the leaves. It retries, because a process that has
// exited remains in its cgroup for some time.
func removeGroups(group string) error {
	roots, err := groupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			var dirs []string
			_ = filepath.WalkDir(root+group, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			var last error
			for i := len(dirs) - 1; i >= 0; i-- {
				if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
					last = fmt.Errorf("%s: %w", dirs[i], err)
				}
			}
			if last == nil {
				break
			}
			if time.Now().After(end) {
				return last
			}
		}
	}
	return nil
}

// removeState removes the directory of a run after the kernel has removed the mounts in it.
func removeState(state string) (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = os.RemoveAll(state); err == nil {
			return nil
		}
	}
	return err
}
