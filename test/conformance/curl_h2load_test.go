package conformance

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// tool runs a command and returns its output. The test fails if the command fails.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestH2loadSucceeds(t *testing.T) {
	for name, args := range map[string][]string{
		"h1":      {"--h1", "-c", "20"},
		"h2c":     {"-c", "10", "-m", "10"},
		"one h2c": {"-c", "1", "-m", "100"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			app := p.sample()
			out := tool(t, "h2load", append(args, "-n", "10000", p.url("/bytes/1000"))...)
			for _, want := range []string{
				`requests: 10000 total, 10000 started, 10000 done, 10000 succeeded, 0 failed, 0 errored, 0 timeout`,
				`status codes: 10000 2xx, 0 3xx, 0 4xx, 0 5xx`,
			} {
				if !strings.Contains(out, want) {
					t.Errorf("output does not contain %q:\n%s", want, out)
				}
			}
			if got := app.Running().Ended; got != 10000 {
				t.Errorf("the app served %d requests, want 10000", got)
			}
		})
	}
}

func TestH2loadSucceedsWithLimit(t *testing.T) {
	p := newProxy(t)
	p.start("CONTAINER_CONCURRENCY=4", "QUEUE_DEPTH=1000")
	app := p.sample()
	out := tool(t, "h2load", "-c", "10", "-m", "10", "-n", "5000", p.url("/bytes/100"))
	if !strings.Contains(out, "5000 succeeded, 0 failed, 0 errored, 0 timeout") {
		t.Errorf("h2load reported failures:\n%s", out)
	}
	if got := app.Running(); got.Max > 4 || got.Ended != 5000 {
		t.Errorf("the app served %d requests, %d concurrent, want 5000 and at most 4", got.Ended, got.Max)
	}
}

const gigabyte = 1 << 30

// Transfers of 1 GiB in both directions use a bounded amount of memory, because the sidecar
// does not buffer complete bodies.
func TestLargeTransfersUseBoundedMemory(t *testing.T) {
	const bound = 64 << 20
	if os.Getenv("QUEUE_PROXY_RACE") != "" {
		t.Log("the race detector is enabled, so memory is only logged")
	}
	file := filepath.Join(t.TempDir(), "gigabyte")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, gigabyte); err != nil { // create a sparse file of zeros
		t.Fatal(err)
	}
	for protocol, flag := range map[string]string{"h1": "--http1.1", "h2c": "--http2-prior-knowledge"} {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			p.sample()
			common := []string{"-sS", "--fail", "--max-time", "110", flag}

			out := tool(t, "curl", append(common, "-o", "/dev/null", "-w", "%{http_code} %{size_download}", p.url(fmt.Sprintf("/bytes/%d", gigabyte)))...)
			if want := fmt.Sprintf("200 %d", gigabyte); out != want {
				t.Errorf("download: got %q, want %q", out, want)
			}
			down := p.memory("VmHWM")

			out = tool(t, "curl", append(common, "-T", file, p.url("/sink"))...)
			if want := fmt.Sprintf(`"length": %d`, gigabyte); !strings.Contains(out, want) {
				t.Errorf("upload: got %q, want %q in it", out, want)
			}
			if want := fmt.Sprintf(`"sha256": "%s"`, zeros(t)); !strings.Contains(out, want) {
				t.Errorf("upload: got %q, want %q in it", out, want)
			}
			peak, now := p.memory("VmHWM"), p.memory("VmRSS")
			t.Logf("peak memory: %d MB after the download, %d MB after both; current memory: %d MB", down>>20, peak>>20, now>>20)
			if peak > bound && os.Getenv("QUEUE_PROXY_RACE") == "" {
				t.Errorf("peak memory is %d MB, want at most %d", peak>>20, bound>>20)
			}
		})
	}
}

// zeros returns the SHA-256 hash of 1 GiB of zeros.
func zeros(t *testing.T) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.CopyN(h, zero{}, gigabyte); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestCurl sends requests with common options of curl.
func TestCurl(t *testing.T) {
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.start()
	p.sample()
	upload := filepath.Join(t.TempDir(), "upload")
	if err := os.WriteFile(upload, noise(2_000_000), 0o600); err != nil {
		t.Fatal(err)
	}
	tls := fmt.Sprintf("https://127.0.0.1:%d", p.port.tls)
	for _, row := range []struct {
		name string
		args []string
		want string
	}{
		{"usual request", []string{p.url("/echo?x=1;y=%zz")}, `"target": "/echo\?x=1;y=%zz"`},
		{"queue probe", []string{"-H", "K-Network-Probe: queue", p.url("/")}, `^queue$`},
		{"statistics for the autoscaler", []string{fmt.Sprintf("http://127.0.0.1:%d/metrics?format=prometheus", p.port.autoscaler)}, `(?m)^queue_requests_per_second\{`},
		{"upload of 2 MB with 100 Continue", []string{"--data-binary", "@" + upload, p.url("/sink")}, `"length": 2000000,`},
		{"upgrade to HTTP/2", []string{"--http2", "-w", " %{http_version}", p.url("/echo")}, `"proto": "HTTP/1.1"[\s\S]* 1.1$`},
		{"HTTP/2 with prior knowledge", []string{"--http2-prior-knowledge", "-w", " %{http_version}", p.url("/bytes/2")}, `^01 2$`},
		{"HTTP/1.0", []string{"--http1.0", "-w", " %{http_code}", p.url("/bytes/2")}, `^01 200$`},
		{"TLS with HTTP/2", []string{"-k", "-w", " %{http_version}", tls + "/bytes/2"}, `^01 2$`},
		{"TLS with HTTP/1.1", []string{"-k", "--http1.1", "-w", " %{http_version}", tls + "/bytes/2"}, `^01 1.1$`},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := append([]string{"-sS", "--max-time", "20"}, row.args...)
			out := tool(t, "curl", c...)
			if !regexp.MustCompile(row.want).MatchString(out) {
				t.Errorf("got %q, want a match for %s", out, row.want)
			}
		})
	}
}
