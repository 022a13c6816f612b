package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// window is a user's terminal that contains the output of the program.
type window struct {
	file *os.File
	mu   sync.Mutex
	text []byte
}

// openWindow opens a pseudo-terminal, and returns it and the file for the program.
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
				return // the program has closed its file
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

func (w *window) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

// modes returns the modes of a terminal.
func modes(t *testing.T, file *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	harness.NoError(t, err)
	return *m
}

func TestLiveViewRestoresTerminal(t *testing.T) {
	for ending, end := range map[string]func(*window, context.CancelFunc){
		"q":        func(w *window, _ context.CancelFunc) { _, _ = io.WriteString(w.file, "q") },
		"Ctrl-C":   func(w *window, _ context.CancelFunc) { _, _ = io.WriteString(w.file, "\x03") },
		"a signal": func(_ *window, cancel context.CancelFunc) { cancel() },
	} {
		(&apiServer{pods: podItem("shop", "web-1", "") + "," + podItem("shop", "web-2", "")}).install(t)
		w, file := openWindow(t, 100, 20)
		before := modes(t, file)
		ctx, cancel := context.WithCancel(t.Context())
		var stderr bytes.Buffer
		ended := make(chan int, 1)
		p := &program{stdin: file, stdout: file, stderr: &stderr, environ: []string{"TERM=xterm-256color"}}
		go func() { ended <- p.run(ctx, []string{"top", "-n", "shop", "--interval=1s"}) }()
		harness.Until(t, "the rows are shown", func() bool {
			return strings.Contains(w.all(), "2 sidecars, 2 unknown") && strings.Contains(w.all(), "port 9091: connection refused")
		})
		w.resize(t, 80, 10)
		harness.NoError(t, unix.Kill(os.Getpid(), unix.SIGWINCH))
		harness.Until(t, "the rows fit in the window", func() bool { return strings.Contains(w.all(), "RUN/LIMIT") })
		end(w, cancel)
		if code := harness.Receive(t, ended, "the end"); code != 0 || stderr.Len() > 0 {
			t.Errorf("%s: got code %d and %q, want 0 and no error", ending, code, stderr.String())
		}
		cancel()
		harness.Until(t, "the screen is restored", func() bool { return strings.Contains(w.all(), "\x1b[?1049l") })
		harness.Equal(t, modes(t, file), before, ending, "modes of the terminal")
	}
}

func TestNoColorDisablesColorsOfLiveView(t *testing.T) {
	(&apiServer{pods: podItem("shop", "web-1", "")}).install(t)
	w, file := openWindow(t, 100, 20)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	p := &program{stdin: file, stdout: file, stderr: io.Discard, environ: []string{"TERM=xterm-256color", "NO_COLOR=1"}}
	go func() { ended <- p.run(ctx, []string{"top", "-n", "shop"}) }()
	harness.Until(t, "a row is shown", func() bool { return strings.Contains(w.all(), "web-1") })
	cancel()
	harness.Receive(t, ended, "the end")
	if regexp.MustCompile("\x1b\\[[0-9;]*3[0-9]m").MatchString(w.all()) {
		t.Errorf("got %q, want no colors", w.all())
	}
}

func TestDumbTerminalGetsText(t *testing.T) {
	(&apiServer{pods: podItem("shop", "web-1", "")}).install(t)
	w, file := openWindow(t, 100, 20)
	p := &program{stdin: file, stdout: file, stderr: io.Discard, environ: []string{"TERM=dumb"}}
	harness.Equal(t, p.run(t.Context(), []string{"top", "-n", "shop", "--interval=1s"}), 0, "code")
	harness.Until(t, "a row is shown", func() bool { return strings.Contains(w.all(), "web-1") })
	if strings.Contains(w.all(), "\x1b") {
		t.Errorf("got %q, want plain text", w.all())
	}
}
