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
	root = "../../.." // root directory of the project, relative to the directory in which the tests of a release run

	insideName     = "KNATIVE_INSIDE"     // directory of the programs; only set in the process that runs the tests
	servingName    = "KNATIVE_SERVING"    // directory of knative.dev/serving
	networkingName = "KNATIVE_NETWORKING" // directory of knative.dev/networking
	sidecarName    = "QUEUE_PROXY"        // queue-proxy under test; "knative" means the queue-proxy of the release

	knativesOwn = "knative"
)

// images lists the programs of Knative's end-to-end tests that are used.
var images = []string{"wsserver", "timeout", "grpc-ping"}

// Main builds the sidecar and the test programs of Knative. It then runs the tests in a new
// network namespace, where the fixed ports are free, and in a new mount namespace, where
// certificates can be written to Knative's mount paths. It returns the exit code.
func Main(m *testing.M) int {
	if os.Getenv(insideName) != "" {
		if err := prepareNamespaces(); err != nil {
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

// runInside builds all programs and runs this program again in new namespaces.
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
		"SYSTEM_NAMESPACE=knative-serving", "METRICS_DOMAIN=knative.dev/internal/serving") // set the variables that the controller also sets
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

// build builds the test programs of Knative and, unless QUEUE_PROXY names one, the sidecar in
// dir. It returns the path of the sidecar.
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
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
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

// prepareNamespaces prepares the new namespaces: it enables the loopback interface and mounts an empty
// file system at /var/lib.
func prepareNamespaces() error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer syscall.Close(s)
	up := struct { // the layout of struct ifreq
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP | syscall.IFF_RUNNING}
	copy(up.name[:], "lo")
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&up))); errno != 0 {
		return fmt.Errorf("enable the loopback interface: %w", errno)
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /var/lib: %w", err)
	}
	return nil
}

// program returns the path of a built program.
func program(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv(insideName), name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("program %s not found", name)
	}
	return path
}
