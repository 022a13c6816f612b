package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A window is a person's terminal: what has been written to it.
type window struct {
	file *os.File
	mu   sync.Mutex
	text []byte
}

// openWindow opens a pseudo-terminal of a size, and returns the end that a program sees.
func openWindow(t *testing.T, width, height uint16) (*window, *os.File) {
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	harness.NoError(t, err)
	w := &window{file: file}
	harness.NoError(t, unix.IoctlSetPointerInt(int(file.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPTN)
	harness.NoError(t, err)
	w.resize(t, width, height)
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	harness.NoError(t, err)
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := file.Read(b)
			if err != nil {
				return // the program's end is closed
			}
			w.mu.Lock()
			w.text = append(w.text, b[:n]...)
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() { program.Close(); <-read; file.Close() })
	return w, program
}

func (w *window) resize(t *testing.T, width, height uint16) {
	t.Helper()
	harness.NoError(t, unix.IoctlSetWinsize(int(w.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}))
}

// frame is what is shown now, without control sequences.
func (w *window) frame() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := string(w.text[max(0, bytes.LastIndex(w.text, []byte("\x1b[H"))):])
	return regexp.MustCompile("\x1b\\[[?0-9;]*[A-Za-z]").ReplaceAllString(text, "")
}

func (w *window) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

func TestTheScreenFollowsUntilSomebodyQuits(t *testing.T) {
	sidecar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE queue_proxy_ready gauge\nqueue_proxy_ready 0\n# TYPE queue_proxy_waiting_requests gauge\nqueue_proxy_waiting_requests 5\n")
	}))
	defer sidecar.Close()
	at := strings.TrimPrefix(sidecar.URL, "http://")
	for ending, end := range map[string]func(*window, context.CancelFunc){
		"q":        func(w *window, _ context.CancelFunc) { _, _ = io.WriteString(w.file, "q") },
		"a signal": func(_ *window, cancel context.CancelFunc) { cancel() },
	} {
		(&cluster{pods: podItem("shop", "web-1", "") + "," + podItem("shop", "web-2", ""), ports: map[string]string{"web-1:9091": at}}).install(t, "")
		w, file := openWindow(t, 100, 20)
		ctx, cancel := context.WithCancel(t.Context())
		var stderr bytes.Buffer
		ended := make(chan int, 1)
		p := &program{stdin: file, stdout: file, stderr: &stderr, terminal: "xterm"}
		go func() { ended <- p.run(ctx, []string{"top", "-n", "shop", "--interval=1s"}) }()
		harness.Until(t, "both rows are there", func() bool {
			f := w.frame()
			return strings.Contains(f, "namespace shop   2 sidecars, 1 not ready, 1 unknown") && strings.Contains(f, "web-1  no") && strings.Contains(f, "port 9091: connection refused")
		})
		w.resize(t, 40, 6)
		_, _ = io.WriteString(w.file, "s")
		harness.Until(t, "the screen fits the window", func() bool { return strings.Contains(w.frame(), "…") })
		end(w, cancel)
		if code := harness.Receive(t, ended, "the end"); code != 0 || stderr.Len() > 0 {
			t.Errorf("%s: got code %d and %q, want 0 and nothing", ending, code, stderr.String())
		}
		cancel()
		harness.Until(t, "the terminal is as it was", func() bool { return strings.HasSuffix(w.all(), "\x1b[?25h\x1b[?1049l") })
		harness.Contains(t, w.all(), "\x1b[31mweb-1", ending)
	}
}

func TestNoColourWhereNobodyWantsAny(t *testing.T) {
	(&cluster{pods: podItem("shop", "web-1", "")}).install(t, "")
	w, file := openWindow(t, 100, 20)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	p := &program{stdin: file, stdout: file, stderr: io.Discard, terminal: "xterm", plain: true}
	go func() { ended <- p.run(ctx, []string{"top", "-n", "shop"}) }()
	harness.Until(t, "a row is there", func() bool { return strings.Contains(w.frame(), "web-1") })
	cancel()
	harness.Receive(t, ended, "the end")
	if regexp.MustCompile("\x1b\\[[0-9;]*m").MatchString(w.all()) {
		t.Errorf("got %q, want no colours", w.all())
	}
}

func TestADumbTerminalGetsText(t *testing.T) {
	(&cluster{pods: podItem("shop", "web-1", "")}).install(t, "")
	w, file := openWindow(t, 100, 20)
	p := &program{stdin: file, stdout: file, stderr: io.Discard, terminal: "dumb"}
	harness.Equal(t, p.run(t.Context(), []string{"top", "-n", "shop", "--interval=1s"}), 0, "code")
	harness.Until(t, "a row is there", func() bool { return strings.Contains(w.all(), "web-1") })
	if strings.Contains(w.all(), "\x1b") {
		t.Errorf("got %q, want text alone", w.all())
	}
}
