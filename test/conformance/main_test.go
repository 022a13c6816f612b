package conformance

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

var (
	queueProxy    string                                             // path of the queue-proxy under test
	fixedPorts    = os.Getenv("QUEUE_PROXY_FIXED_PORTS") != ""       // the queue-proxy under test supports only Knative's fixed ports
	quiet         = log.New(io.Discard, "", 0)                       // logger that discards the errors of servers that a test breaks
	dieWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // attribute that makes the kernel kill the sidecars when the tests exit
)

// tools lists the commands that the tests require.
var tools = []string{"curl", "h2load", "ip", "openssl"}

func TestMain(m *testing.M) {
	if programVersion != "" && os.Getenv(testsVariable) == "" {
		os.Exit(runProgram(os.Args[1:], os.Stdout, os.Stderr))
	}
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	if parallel.Value.String() == parallel.DefValue {
		parallel.Value.Set("8") // run more tests in parallel than CPUs, because most tests wait for timeouts and use little CPU time
	}
	os.Exit(testMain(m))
}

// requireTools returns an error if a required command is missing.
func requireTools() error {
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s not found; on Debian, install curl, iproute2, nghttp2-client and openssl", tool)
		}
	}
	return nil
}

func testMain(m *testing.M) int {
	if os.Getenv(urlVariable) != "" {
		return m.Run()
	}
	if err := requireTools(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		return 1
	}
	queueProxy = os.Getenv("QUEUE_PROXY")
	if queueProxy != "" {
		path, err := filepath.Abs(queueProxy)
		if err != nil {
			fmt.Fprintln(os.Stderr, "conformance: QUEUE_PROXY:", err)
			return 1
		}
		queueProxy = path
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	queueProxy = filepath.Join(dir, "queue-proxy")
	build := exec.Command("go", "build", "-o", queueProxy)
	if os.Getenv("QUEUE_PROXY_RACE") != "" {
		build.Args = append(build.Args, "-race")
	}
	build.Args = append(build.Args, "github.com/queue-proxy/queue-proxy/cmd/queue-proxy")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "conformance: build cmd/queue-proxy: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
