package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// A Buffer is a bytes.Buffer that is safe for concurrent use.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns the written data.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Tail returns the last 6000 bytes of the written data.
func (b *Buffer) Tail() string {
	s := b.String()
	if len(s) > 6000 {
		s = "..." + s[len(s)-6000:]
	}
	return s
}

// HasLine reports whether a line contains all words. Escaped quotes in a line match unescaped
// quotes.
func (b *Buffer) HasLine(words ...string) bool {
	for line := range strings.Lines(b.String()) {
		for _, text := range []string{line, strings.ReplaceAll(line, `\"`, `"`)} {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
				return true
			}
		}
	}
	return false
}

// Zeros is an endless reader of zero bytes.
type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A Pattern is a reader of repeating data. Adjacent buffers contain different data, because the
// period has no common factor with the length of any buffer.
type Pattern struct {
	Left int // number of remaining bytes
	at   int
}

const patternPeriod = 65_537

func (p *Pattern) Read(b []byte) (int, error) {
	if p.Left == 0 {
		return 0, io.EOF
	}
	n := min(len(b), p.Left)
	for i := range b[:n] {
		at := (p.at + i) % patternPeriod
		b[i] = byte(at*at>>8 + at)
	}
	p.at, p.Left = p.at+n, p.Left-n
	return n, nil
}

// CheckPattern reads a Pattern of size bytes from r. It returns an error if the data is
// different.
func CheckPattern(r io.Reader, size int) error {
	want := &Pattern{Left: size}
	a, b := make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, err := r.Read(a)
		if m, _ := io.ReadFull(want, b[:n]); m != n || !bytes.Equal(a[:n], b[:n]) {
			return fmt.Errorf("got different data before byte %d", want.at)
		}
		switch {
		case err == io.EOF && want.Left > 0:
			return fmt.Errorf("got %d bytes, want %d", want.at, size)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// SendChunks sends a Pattern of size bytes in chunks of different sizes, followed by the last
// chunk.
func SendChunks(w io.Writer, size int) error {
	p := &Pattern{Left: size}
	b := make([]byte, 100_000)
	for n := 1; ; n = n*5/3%len(b) + 1 {
		k, err := p.Read(b[:n])
		if err != nil {
			break
		}
		if _, err := fmt.Fprintf(w, "%x\r\n%s\r\n", k, b[:k]); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "0\r\n\r\n")
	return err
}

// A BlockedBody is a request body that returns its text and then blocks until Stop is called.
type BlockedBody struct {
	Waiting chan struct{} // closed after the text has been read

	text    io.Reader
	once    sync.Once
	stopped chan struct{}
}

// NewBlockedBody returns a BlockedBody with the given text.
func NewBlockedBody(text string) *BlockedBody {
	return &BlockedBody{text: bytes.NewReader([]byte(text)), stopped: make(chan struct{}), Waiting: make(chan struct{})}
}

// Stop makes blocked and future calls to Read return an error.
func (b *BlockedBody) Stop() { b.once.Do(func() { close(b.stopped) }) }

func (b *BlockedBody) Read(p []byte) (int, error) {
	if n, _ := b.text.Read(p); n > 0 {
		return n, nil
	}
	close(b.Waiting)
	<-b.stopped
	return 0, errors.New("stopped")
}
