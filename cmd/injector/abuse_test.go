package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// injectorMemory is the memory limit in deploy/base in bytes.
const injectorMemory = 256 << 20

const goodReview = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","namespace":"shop","resource":{"version":"v1","resource":"pods"},` +
	`"object":{"metadata":{"annotations":{"a":"b"}},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]}]}}}}`

// A served injector is a process without the race detector, which would use five times the memory.
// It has the memory limit of deploy/base. Each line of its log must be JSON.
type served struct {
	cmd              *exec.Cmd
	reviews, metrics string // addresses of the webhook and of the metrics
	roots            *x509.CertPool
	started          string   // log lines up to the line "listening"
	logged           chan int // receives the number of log lines after the process ends
}

// buildInjector builds the program and returns its path.
func buildInjector(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "injector")
	build := exec.Command("go", "build", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return program
}

// startInjector starts an injector that stops at the end of the test. program can be the test
// binary: see TestMain.
func startInjector(t *testing.T, program string, args ...string) *served {
	t.Helper()
	dir := t.TempDir()
	roots := harness.WriteCertificate(t, dir, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	p := &served{roots: roots, logged: make(chan int, 1)}
	p.cmd = exec.Command(program, append([]string{"serve", "--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--cert-dir=" + dir, "--linger=10ms", "--image=queue-proxy:dev"}, args...)...)
	p.cmd.Env = append(os.Environ(), "BE_THE_INJECTOR=1", "GOMEMLIMIT=200MiB") // deploy/base sets this GOMEMLIMIT
	log, err := p.cmd.StderrPipe()
	harness.NoError(t, err)
	harness.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	lines := bufio.NewReaderSize(log, 64<<10)
	var at struct{ Message, Reviews, Metrics string }
	for at.Message != "listening" {
		line, err := lines.ReadBytes('\n')
		p.started += string(line)
		if err != nil || json.Unmarshal(line, &at) != nil {
			t.Fatalf("line %q is not JSON: %v", line, err)
		}
	}
	p.reviews, p.metrics = at.Reviews, at.Metrics
	go func() { // each line of the log must be JSON
		n := 0
		defer func() { p.logged <- n }()
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			if n++; !json.Valid(line) || len(line) > 16<<10 {
				t.Errorf("got a line of %d bytes %.200q, want at most 16 KiB of JSON", len(line), line)
			}
		}
	}()
	return p
}

// peak returns the peak memory usage of the injector in bytes.
func (p *served) peak(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	harness.NoError(t, err)
	n, _ := strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindStringSubmatch(string(b))[1])
	return n << 10
}

// A poster sends a body to the webhook and returns the response.
type poster func(contentType string, body io.Reader) (status int, text string, err error)

func (p *served) poster() poster {
	client := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}, MaxConnsPerHost: 40, MaxIdleConnsPerHost: 40}}
	return func(contentType string, body io.Reader) (status int, text string, err error) {
		r, err := client.Post("https://"+p.reviews+"/inject", contentType, body)
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return r.StatusCode, string(b), err
	}
}

// Every invalid request must receive a 4xx status with a reason. The memory must stay
// within the memory limit in deploy/base.
func TestInvalidRequestsStayWithinMemoryLimit(t *testing.T) {
	p := startInjector(t, buildInjector(t))
	post := p.poster()
	postSpoiltReviews(t, post)
	postWrongReviews(t, post, map[string]wrongReview{
		"a deep pod": {"application/json", strings.Replace(goodReview, `"b"`, strings.Repeat("[", 9000)+strings.Repeat("]", 9000), 1), 200},
		"text":       {"text/plain", goodReview, 415},
		"no kind":    {"", goodReview, 415},
	})
	sendNoHTTP(t, p)
	if status, text, err := post("application/json", strings.NewReader(goodReview)); err != nil || status != 200 || !strings.Contains(text, `"patch"`) {
		t.Errorf("valid review after the test: got %d %.200q, %v, want a patch", status, text, err)
	}
	peak := p.peak(t)
	t.Logf("peak memory: %d MB", peak>>20)
	if peak > injectorMemory {
		t.Errorf("got a peak of %d MB of memory, want at most %d", peak>>20, injectorMemory>>20)
	}
	_ = p.cmd.Process.Kill()
	if n := <-p.logged; n < 1000 {
		t.Errorf("got %d log lines, want one for each invalid review", n)
	}
}

// postSpoiltReviews sends mutations of a valid review.
func postSpoiltReviews(t *testing.T, post poster) {
	t.Helper()
	nasty := []string{`"`, `\`, `{`, `}`, `[`, `]`, `,`, `:`, `null`, `true`, `-1`, `1e999`, "\x00", "\xff", "\u2028", `\u0000`, `\ud800`, `"a":`, `"uid":{}`, `{"spec":[]}`, strings.Repeat("[", 5000), strings.Repeat(`{"a":`, 5000), "\n"}
	r := rand.New(rand.NewPCG(3, 3))
	bodies := make(chan string)
	var all sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for range 20 {
		all.Go(func() {
			for body := range bodies {
				status, text, err := post("application/json", strings.NewReader(body))
				mu.Lock()
				got[status]++
				mu.Unlock()
				if err != nil || status != 200 && (status != 400 || text == "") {
					t.Errorf("%.200q: got %d %q, %v, want 200, or 400 with a message", body, status, text, err)
				}
			}
		})
	}
	for range 3000 {
		body := goodReview
		for range 1 + r.IntN(3) {
			i := r.IntN(len(body) + 1)
			if j := min(len(body), i+r.IntN(6)); r.IntN(2) == 0 {
				body = body[:i] + body[j:]
			} else {
				body = body[:i] + nasty[r.IntN(len(nasty))] + body[j:]
			}
		}
		bodies <- body
	}
	close(bodies)
	all.Wait()
	t.Logf("statuses: %v", got)
	if got[400] < 1000 {
		t.Errorf("got 400 for %d of 3000 mutations, want more", got[400])
	}
}

// A wrongReview is a request and the expected status code of the response.
type wrongReview struct {
	contentType, body string
	status            int
}

// postWrongReviews sends four copies of each request at the same time.
func postWrongReviews(t *testing.T, post poster, reviews map[string]wrongReview) {
	t.Helper()
	var all sync.WaitGroup
	for name, r := range reviews {
		for range 4 {
			all.Go(func() {
				if status, text, err := post(r.contentType, strings.NewReader(r.body)); err != nil || status != r.status || text == "" {
					t.Errorf("%s: got %d %.100q, %v, want %d with a reason", name, status, text, err, r.status)
				}
			})
		}
		all.Wait()
	}
}

// sendNoHTTP sends invalid HTTP requests to both ports.
func sendNoHTTP(t *testing.T, p *served) {
	t.Helper()
	for _, text := range []string{"\x00\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/9.9\r\nHost: a\r\n\r\n", "POST /inject HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
		"POST /inject HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n", "GET /" + strings.Repeat("a", 100<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", "GET /metrics HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a: b\r\n", 20_000) + "\r\n"} {
		for port, dial := range map[string]func() (net.Conn, error){
			"reviews": func() (net.Conn, error) { return tls.Dial("tcp", p.reviews, &tls.Config{RootCAs: p.roots}) },
			"metrics": func() (net.Conn, error) { return net.Dial("tcp", p.metrics) },
		} {
			c, err := dial()
			harness.NoError(t, err)
			_ = c.SetDeadline(time.Now().Add(harness.Patience))
			go func() { _, _ = io.WriteString(c, text) }() // an error is not reported, because the server can close the connection early
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || answer.StatusCode < 400 || answer.StatusCode > 505 {
				t.Errorf("%s, %.60q: got %v, %v, want an error", port, text, answer, err)
			}
			c.Close()
		}
	}
}
