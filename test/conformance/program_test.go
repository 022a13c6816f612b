package conformance

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// programVersion is the version of the program queue-proxy-conformance. The linker sets it. It is empty
// if go test builds the package.
var programVersion string

// Environment variables of the processes that run the tests for the program.
const (
	testsVariable = "CONFORMANCE_TESTS" // if not empty, run the tests and not the program
	urlVariable   = "CONFORMANCE_URL"   // URL of the running sidecar
)

// With fixed ports, each test runs in its own process and network namespace, because a test of a
// binary that does not keep the promises can wait forever. Otherwise, one process runs all tests.
const (
	processes         = 12 // maximum number of processes at the same time; most tests wait for timeouts
	timeoutOfProcess  = "4m"
	timeoutOfAllTests = "60m"
)

const usage = `queue-proxy-conformance tests whether a queue-proxy keeps the promises of
https://github.com/queue-proxy/queue-proxy/blob/main/docs/promises.md.

  queue-proxy-conformance -bin PATH   starts this binary with test applications and runs all checks
  queue-proxy-conformance -url URL    tests the running sidecar at this URL. Only a few checks are
                                      possible; all others are reported as "not run". The checks send
                                      invalid requests, so do not use a sidecar in production.

It prints a table with a line for each check. The numbers are sections of the promises. The exit
code is 0 if no check failed, 1 if a check failed, and 2 if the checks could not run.

With -bin, Linux and the commands curl, h2load, ip and openssl are required.

Options:
`

// A program is the command line of queue-proxy-conformance.
type program struct {
	bin, url    string
	fixedPorts  bool
	log         string
	write, name string
	summary     string
	selected    *regexp.Regexp
}

// runProgram runs the program and returns its exit code.
func runProgram(args []string, stdout, stderr io.Writer) int {
	p, err := parseProgram(args, stdout, stderr)
	if p == nil && err == nil {
		return 0
	}
	if err == nil {
		var failed bool
		if failed, err = p.run(stdout, stderr); err == nil && failed {
			return 1
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "queue-proxy-conformance:", err)
		return 2
	}
	return 0
}

// parseProgram parses the command line. It returns nil if it printed the help or the version.
func parseProgram(args []string, stdout, stderr io.Writer) (*program, error) {
	p := &program{}
	flags := flag.NewFlagSet("queue-proxy-conformance", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&p.bin, "bin", "", "`path` of the sidecar binary")
	flags.StringVar(&p.url, "url", "", "`URL` of a running sidecar, such as http://10.0.0.7:8012")
	flags.BoolVar(&p.fixedPorts, "fixed-ports", false, "the binary does not support ADMIN_PORT, AUTOSCALER_PORT, METRICS_PORT and STATUS_PORT, such as Knative's queue-proxy; requires root or user namespaces")
	pattern := flags.String("run", "", "only run checks that match this `regexp`; in the table of -write, the others keep their results")
	flags.StringVar(&p.log, "log", "", "write the output of the checks to this `file`")
	flags.StringVar(&p.write, "write", "", "write the results to a table in this Markdown `file`, and keep the results of other binaries in it")
	flags.StringVar(&p.summary, "summary", "", "also write the number of passed checks of each section to this Markdown `file`; requires -write")
	flags.StringVar(&p.name, "name", "queue-proxy", "`name` of the binary in the table of -write")
	showVersion := flags.Bool("version", false, "print the version")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return nil, nil
	case err != nil:
	case *showVersion:
		fmt.Fprintln(stdout, "queue-proxy-conformance", programVersion)
		return nil, nil
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case (p.bin == "") == (p.url == ""):
		err = errors.New("one of -bin and -url is required; see -help")
	case p.summary != "" && p.write == "":
		err = errors.New("-summary requires -write")
	case p.url != "" && p.fixedPorts:
		err = errors.New("-fixed-ports requires -bin")
	case p.url != "":
		_, err = parseTarget(p.url)
	default:
		p.bin, err = executable(p.bin)
	}
	if err == nil {
		p.selected, err = regexp.Compile(*pattern)
	}
	return p, err
}

// executable returns the absolute path of a program.
func executable(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return exec.LookPath(path)
}

// run runs the checks and prints the table. It reports whether a check failed.
func (p *program) run(stdout, stderr io.Writer) (failed bool, err error) {
	all, sections, err := readChecks()
	if err != nil {
		return false, err
	}
	if p.bin != "" {
		if err := requireTools(); err != nil {
			return false, err
		}
	}
	var names []string
	for _, c := range all {
		if p.selected.MatchString(c.test) && (p.bin != "" || c.url) {
			names = append(names, c.test)
		}
	}
	if len(names) == 0 {
		return false, fmt.Errorf("no check that can run matches -run %q", p.selected)
	}
	log := io.Discard
	if p.log != "" {
		f, err := os.Create(p.log)
		if err != nil {
			return false, err
		}
		defer f.Close()
		log = f
	}
	fmt.Fprintf(stderr, "running %d of %d checks\n", len(names), len(all))
	results, err := p.runTests(names, log)
	if err != nil {
		return false, err
	}
	counts := printChecks(stdout, all, results)
	if p.write != "" {
		err = writeDocument(p.write, p.name, all, sections, results, p.selected.String() != "")
	}
	if err == nil && p.summary != "" {
		err = writeSummary(p.summary, p.write, all, sections)
	}
	return counts[failure] > 0, err
}

// runTests runs tests in one process, or with fixed ports in a process for each test. It writes the
// output of a process to log after the process has exited.
func (p *program) runTests(names []string, log io.Writer) (map[string]result, error) {
	parts := [][]string{names}
	if p.fixedPorts {
		parts = slices.Collect(slices.Chunk(names, 1))
	}
	var (
		all     sync.WaitGroup
		mu      sync.Mutex
		results = map[string]result{}
		failed  error
		running = make(chan struct{}, processes)
	)
	for _, part := range parts {
		all.Go(func() {
			running <- struct{}{}
			defer func() { <-running }()
			out, err := p.runProcess(part)
			var some map[string]result
			if err == nil || errors.As(err, new(*exec.ExitError)) {
				some, err = processResults(part, string(out), err)
			}
			mu.Lock()
			defer mu.Unlock()
			_, logErr := log.Write(out)
			maps.Copy(results, some)
			failed = errors.Join(failed, err, logErr)
		})
	}
	all.Wait()
	return results, failed
}

// runProcess runs tests in a new process of this program and returns its output.
func (p *program) runProcess(names []string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	timeout := timeoutOfAllTests
	if p.fixedPorts {
		timeout = timeoutOfProcess
	}
	args := []string{"-test.v=test2json", "-test.timeout=" + timeout, "-test.run=^(" + strings.Join(names, "|") + ")$"}
	c := exec.Command(self, args...)
	c.SysProcAttr = dieWithParent
	if p.fixedPorts {
		c = exec.Command("sh", append([]string{"-c", `ip link set lo up && exec "$0" "$@"`, self}, args...)...)
		c.SysProcAttr = networkNamespace()
	}
	c.Env = append(os.Environ(), testsVariable+"=1", "QUEUE_PROXY="+p.bin, urlVariable+"="+p.url)
	if p.fixedPorts {
		c.Env = append(c.Env, "QUEUE_PROXY_FIXED_PORTS=1", namespaceVariable+"="+allTests)
	}
	return c.CombinedOutput()
}

// processResults returns the results of tests in the output of their process. err is the error of
// the process. A test without a result failed because it crashed or exceeded its timeout. If no test
// started, processResults returns an error.
func processResults(names []string, out string, err error) (map[string]result, error) {
	switch started := strings.Contains(out, "=== RUN"); {
	case !started && err == nil:
		return nil, errors.New("no check matches")
	case !started:
		return nil, fmt.Errorf("the process that runs the checks did not start a check: %w; use -log to see its output", err)
	}
	results := parseResults(out)
	for _, name := range names {
		if results[name] == "" {
			results[name] = failure
		}
	}
	return results, nil
}

// resultLine matches the result of a test, and not of a subtest, in the output of -test.v. The
// character \x16 marks a result that follows an incomplete line of the test.
var resultLine = regexp.MustCompile(`(?:^|\x16)--- (PASS|FAIL): (Test\w+) \(`)

// parseResults returns the results of tests in their output.
func parseResults(out string) map[string]result {
	results := map[string]result{}
	for line := range strings.Lines(out) {
		if m := resultLine.FindStringSubmatch(line); m != nil {
			results[m[2]] = failure
			if m[1] == "PASS" {
				results[m[2]] = success
			}
		}
	}
	return results
}

// networkNamespace returns the attributes of a process in a new network namespace. The interface
// lo is down.
func networkNamespace() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 { // an unprivileged user is root in a new user namespace
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return a
}
