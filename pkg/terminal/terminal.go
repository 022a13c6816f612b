// Package terminal shows a screen that is drawn again and again, as top(1) does, and gives the
// terminal back as it was.
//
// It knows terminals that understand the control sequences of ECMA-48 with xterm's alternate
// screen, which are all that are in use, and works on Linux and macOS. Elsewhere nothing is a
// terminal to it.
package terminal

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"
)

// Control sequences: ECMA-48, and xterm's private modes.
const (
	enter = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	end   = "\x1b[K" // erases the rest of the line
	below = "\x1b[J" // erases the rest of the screen
)

// keyWait is how long a read waits for a key: as long as the end of the program may.
const keyWait = 200 * time.Millisecond

// A Terminal shows a screen until it is closed.
type Terminal struct {
	in, out *os.File
	restore func() error
	resized chan os.Signal
}

// Open takes a terminal: it shows an empty screen, and what is typed on in is not shown, if in
// is a terminal too. Ctrl-C still sends its signal, Ctrl-Z does nothing.
func Open(in, out *os.File) (*Terminal, error) {
	t := &Terminal{in: in, out: out, restore: func() error { return nil }, resized: make(chan os.Signal, 1)}
	if Is(in) {
		restore, err := quiet(in)
		if err != nil {
			return nil, err
		}
		t.restore = restore
	}
	notifyResized(t.resized)
	if _, err := io.WriteString(out, enter); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// Close gives the terminal back as it was.
func (t *Terminal) Close() error {
	signal.Stop(t.resized)
	_, err := io.WriteString(t.out, leave)
	return errors.Join(err, t.restore())
}

// Resized receives when the window has another size.
func (t *Terminal) Resized() <-chan os.Signal { return t.resized }

// Usual is the size of a terminal that does not say its own: VT100's.
const usualWidth, usualHeight = 80, 24

// Size is the size of the window in characters.
func (t *Terminal) Size() (width, height int) {
	width, height = size(t.out)
	if width <= 0 || height <= 0 {
		return usualWidth, usualHeight
	}
	return width, height
}

// Draw shows lines in place of those that were shown. There must be no more of them, and they
// must not be longer, than the window's size says.
func (t *Terminal) Draw(lines []string) error {
	_, err := io.WriteString(t.out, frame(lines))
	return err
}

// frame is written at once, and erases no line before it is written, so that nothing flickers.
func frame(lines []string) string {
	return home + strings.Join(lines, end+"\r\n") + end + below
}

// Keys calls press for each key until ctx is done or there is no more input.
func (t *Terminal) Keys(ctx context.Context, press func(byte)) {
	if !Is(t.in) {
		return
	}
	b := make([]byte, 1)
	for ctx.Err() == nil {
		began := time.Now()
		n, err := t.in.Read(b) // at most keyWait
		switch {
		case n > 0:
			press(b[0])
		case err != io.EOF, time.Since(began) < keyWait/2: // the terminal has gone
			return
		}
	}
}
