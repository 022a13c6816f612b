//go:build linux || darwin

package terminal

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Is reports whether a file is a terminal.
func Is(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}

// quiet makes a terminal give each key at once, within keyWait, and show none.
func quiet(f *os.File) (restore func() error, err error) {
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return nil, err
	}
	t := *before
	t.Lflag &^= unix.ICANON | unix.ECHO
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 0, uint8(keyWait/(100*time.Millisecond)) // tenths of a second
	t.Cc[unix.VSUSP] = noCharacter
	return func() error { return unix.IoctlSetTermios(fd, setTermios, before) }, unix.IoctlSetTermios(fd, setTermios, &t)
}

func size(f *os.File) (width, height int) {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(w.Col), int(w.Row)
}

func notifyResized(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }
