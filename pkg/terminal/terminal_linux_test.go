package terminal

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// pair opens a pseudo-terminal: what a person's terminal holds, and what a program sees.
func pair(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	harness.NoError(t, err)
	t.Cleanup(func() { person.Close() })
	harness.NoError(t, unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	harness.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	harness.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return person, program
}

// shown reads what the person sees until it ends as expected.
func shown(t *testing.T, person *os.File, ending string) string {
	t.Helper()
	var all strings.Builder
	b := make([]byte, 1024)
	for !strings.HasSuffix(all.String(), ending) {
		n, err := person.Read(b)
		if err != nil {
			t.Fatalf("%v after %q, want %q at the end", err, all.String(), ending)
		}
		all.Write(b[:n])
	}
	return all.String()
}

func TestTheTerminalIsGivenBackAsItWas(t *testing.T) {
	person, program := pair(t)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	harness.NoError(t, err)
	screen, err := Open(program, program)
	harness.NoError(t, err)
	during, _ := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if during.Lflag&(unix.ECHO|unix.ICANON) != 0 || during.Lflag&unix.ISIG == 0 {
		t.Errorf("got the modes %b, want no echo, no lines, and Ctrl-C to send its signal", during.Lflag)
	}
	harness.NoError(t, screen.Draw([]string{"one", "two"}))
	harness.NoError(t, screen.Close())
	if after, _ := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS); *after != *before {
		t.Errorf("got the modes %+v after the end, want those from before: %+v", after, before)
	}
	const want = "\x1b[?1049h\x1b[?25l" + "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J" + "\x1b[?25h\x1b[?1049l"
	harness.Equal(t, strings.ReplaceAll(shown(t, person, "\x1b[?1049l"), "\r\r\n", "\r\n"), want)
}

func TestTheSizeIsTheWindows(t *testing.T) {
	person, program := pair(t)
	screen, err := Open(program, program)
	harness.NoError(t, err)
	defer screen.Close()
	if w, h := screen.Size(); w != 80 || h != 24 {
		t.Errorf("got %d x %d of a window without a size, want 80 x 24", w, h)
	}
	harness.NoError(t, unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 132, Row: 50}))
	if w, h := screen.Size(); w != 132 || h != 50 {
		t.Errorf("got %d x %d, want 132 x 50", w, h)
	}
}

func TestKeysArriveOneByOneUntilTheEnd(t *testing.T) {
	person, program := pair(t)
	screen, err := Open(program, program)
	harness.NoError(t, err)
	defer screen.Close()
	ctx, end := context.WithTimeout(t.Context(), harness.Patience)
	defer end()
	if _, err := io.WriteString(person, "sq"); err != nil {
		t.Fatal(err)
	}
	got := ""
	screen.Keys(ctx, func(key byte) {
		if got += string(key); key == 'q' {
			end()
		}
	})
	harness.Equal(t, got, "sq", "the keys")
}

func TestAFileIsNoTerminal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	harness.NoError(t, err)
	defer f.Close()
	if Is(f) {
		t.Error("got a terminal of /dev/null, want none")
	}
	(&Terminal{in: f}).Keys(t.Context(), func(byte) { t.Error("got a key of /dev/null, want none") })
}
