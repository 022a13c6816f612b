//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// runTool runs a load generator repeatedly until the load ends, and adds up the results. Each
// run sends a fixed number of requests, so that the number of failed requests is exact.
func runTool(ctx context.Context, l *load) error {
	if len(l.command) == 0 {
		return errors.New("no command")
	}
	path, err := findProgram(l.command[0])
	if err != nil {
		return err
	}
	for l.more() && ctx.Err() == nil {
		c := exec.CommandContext(ctx, path, l.command[1:]...)
		c.Stderr = os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		// Ignore the exit status, because some load generators report failed requests with it.
		// Their output contains the number of failed requests.
		text, err := c.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return fmt.Errorf("run %s: %w", path, err)
		}
		part, err := parseResult(path, string(text))
		if err != nil {
			return err
		}
		l.tally.add(part)
		if part.failures() >= part.Requests {
			return nil // stop, because the target does not respond
		}
	}
	return nil
}

// parseResult returns the result that a client load printed. The peers of this project print
// JSON. The other programs have different formats.
func parseResult(program, text string) (*result, error) {
	r := &result{}
	switch filepath.Base(program) {
	case "h2load":
		parseH2load(r, text)
	case "wrk":
		parseWrk(r, text)
	case "curl":
		parseCurl(r, text)
	default:
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), r); err != nil {
			return nil, fmt.Errorf("result: %w", err)
		}
	}
	if r.Requests == 0 {
		r.fail("no request completed", 1)
	}
	return r, nil
}

// number returns the first number in text that matches the pattern, or 0 if the pattern does
// not match.
func number(text, pattern string) int {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// parseH2load reads the summary of h2load, which contains the number of failed requests
// and the number of responses for each class of status codes.
func parseH2load(r *result, text string) {
	r.Requests = number(text, `requests: (\d+) total`)
	r.Bytes = int64(number(text, `traffic: .* \((\d+)\) total`))
	for _, kind := range []string{"failed", "errored", "timeout"} {
		if n := number(text, `requests:.* (\d+) `+kind); n > 0 && kind != "errored" {
			r.fail("h2load: "+kind, n) // h2load includes the "errored" requests in the number of "failed" requests
		}
	}
	for _, class := range []string{"3xx", "4xx", "5xx"} {
		if n := number(text, `status codes:.* (\d+) `+class); n > 0 {
			r.fail("h2load: "+class, n)
		}
	}
	if r.Requests != number(text, `, (\d+) done`) {
		r.fail("h2load: not done", r.Requests-number(text, `, (\d+) done`))
	}
}

// parseWrk reads the summary of wrk. wrk prints the error lines only if there were errors.
func parseWrk(r *result, text string) {
	r.Requests = number(text, `(\d+) requests in`)
	for _, kind := range []string{"connect", "read", "write", "timeout"} {
		if n := number(text, `Socket errors:.*`+kind+` (\d+)`); n > 0 {
			r.fail("wrk: "+kind, n)
		}
	}
	if n := number(text, `Non-2xx or 3xx responses: (\d+)`); n > 0 {
		r.fail("wrk: status", n)
	}
}

// parseCurl reads one line for each transfer: the status, the size in bytes, and the error
// code of curl.
func parseCurl(r *result, text string) {
	for line := range strings.Lines(text) {
		var status, size, code int
		if n, _ := fmt.Sscanf(line, "transfer %d %d %d", &status, &size, &code); n != 3 {
			continue
		}
		r.Requests++
		r.Bytes += int64(size)
		if status != 200 || code != 0 {
			r.fail(fmt.Sprintf("curl: status %d, exit code %d", status, code), 1)
		}
	}
}
