package knative

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

const (
	root = "../../.." // the project, seen from a release's folder, where its tests run

	insideName     = "KNATIVE_INSIDE"     // set: we are in namespaces of our own, and this folder has the programs
	servingName    = "KNATIVE_SERVING"    // the folder of knative.dev/serving
	networkingName = "KNATIVE_NETWORKING" // the folder of knative.dev/networking
	sidecarName    = "QUEUE_PROXY"        // the queue-proxy under test; "knative": the release's own

	knativesOwn = "knative"
)

// images are the programs of Knative's end-to-end tests that are used.
var images = []string{"wsserver", "timeout", "grpc-ping"}

// Main builds the sidecar and Knative's test programs, then runs the tests in a network
// namespace of their own, where the ports that Knative fixes are free, and in a mount
// namespace, where certificates can lie where Knative mounts them. It returns the exit code.
func Main(m *testing.M) int {
	if os.Getenv(insideName) != "" {
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "knative:", err)
			return 1
		}
		return m.Run()
	}
	code, err := runInside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "knative:", err)
		return 1
	}
	return code
}

// runInside builds all programs and starts this one again in new namespaces.
func runInside() (code int, err error) {
	dir, err := os.MkdirTemp("", "knative")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	sidecar, err := build(dir)
	if err != nil {
		return 0, err
	}
	serving, err := moduleDir("knative.dev/serving")
	if err != nil {
		return 0, err
	}
	networking, err := moduleDir("knative.dev/networking")
	if err != nil {
		return 0, err
	}

	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.Env = append(os.Environ(),
		insideName+"="+dir, sidecarName+"="+sidecar, servingName+"="+serving, networkingName+"="+networking,
		"SYSTEM_NAMESPACE=knative-serving", "METRICS_DOMAIN=knative.dev/internal/serving") // as the controller has them
	again.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Getuid() != 0 {
		again.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		again.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		again.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	err = again.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// build puts Knative's test programs into dir and returns the path of the sidecar, which
// is built there too, unless one was named.
func build(dir string) (sidecar string, err error) {
	for _, i := range images {
		if err := goBuild(".", dir, i, "knative.dev/serving/test/test_images/"+i); err != nil {
			return "", err
		}
	}
	sidecar = filepath.Join(dir, "queue-proxy")
	switch named := os.Getenv(sidecarName); named {
	case "":
		return sidecar, goBuild(root, dir, "queue-proxy", "./cmd/queue-proxy")
	case knativesOwn:
		return sidecar, goBuild(".", dir, "queue-proxy", "knative.dev/serving/cmd/queue")
	default:
		return filepath.Abs(named)
	}
}

func goBuild(where, dir, name, pkg string) error {
	c := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), pkg)
	c.Dir = where
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

func moduleDir(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// furnish makes the new namespaces fit to live in: the loopback interface is up, and
// what is mounted below /var/lib is seen by us alone.
func furnish() error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer syscall.Close(s)
	up := struct { // struct ifreq
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP | syscall.IFF_RUNNING}
	copy(up.name[:], "lo")
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&up))); errno != 0 {
		return fmt.Errorf("setting the loopback interface up: %w", errno)
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting /var/lib: %w", err)
	}
	return nil
}

// program returns the path of a program that was built.
func program(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(insideName), name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s was not built", name)
	}
	return path
}
