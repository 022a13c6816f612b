package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

const (
	// gather is how long lines wait for others to be written with: a write for each
	// request would cost more than making the line.
	gather = 50 * time.Millisecond

	// enough is how much is not kept waiting, in bytes: what an empty pipe of 64 KB
	// takes at once, and what comes while the writer wakes.
	enough = 56 << 10

	// keepBatch is the largest batch whose memory is kept: that of a writer that has
	// been held up for a while.
	keepBatch = 256 << 10
)

// A buffer holds lines until its goroutine has written them.
type buffer struct {
	w                    io.Writer
	file                 syscall.RawConn // of w; nil: it has none
	maxBytes, maxLines   int
	muchBytes, muchLines int         // either is reason enough to write at once
	report               func(error) // may be nil
	dropped              atomic.Uint64

	some, much, closing, done chan struct{}

	mu      sync.Mutex
	pending []byte
	lines   int
	writing int  // lines in the batch that is being written
	idle    bool // the goroutine waits for a line, not for time to pass
	closed  bool

	torn   bool // the last write ended inside a line; of run alone
	failed bool // the last write failed; of run alone
}

// newBuffer starts the goroutine that writes to w.
func newBuffer(w io.Writer, maxBytes, maxLines int, report func(error)) *buffer {
	b := &buffer{
		w: w, maxBytes: maxBytes, maxLines: maxLines, report: report,
		idle:      true,
		muchBytes: min(maxBytes/2, enough), muchLines: max(maxLines/2, 1),
		some: make(chan struct{}, 1), much: make(chan struct{}, 1),
		closing: make(chan struct{}), done: make(chan struct{}),
	}
	if f, ok := w.(syscall.Conn); ok {
		b.file, _ = f.SyscallConn() // without it, it is written all the same
	}
	go b.run()
	return b
}

// add takes a line, or drops it.
func (b *buffer) add(line []byte) {
	b.mu.Lock()
	if b.closed || b.lines >= b.maxLines || len(b.pending)+len(line) > b.maxBytes {
		b.mu.Unlock()
		b.dropped.Add(1)
		return
	}
	before := len(b.pending)
	b.pending = append(b.pending, line...)
	b.lines++
	first := b.idle
	b.idle = false
	much := b.lines == b.muchLines || before < b.muchBytes && len(b.pending) >= b.muchBytes
	b.mu.Unlock()
	if first {
		signal(b.some)
	}
	if much {
		signal(b.much)
	}
}

// signal wakes the goroutine; a signal that is already there is enough.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run writes what is pending until close. While lines come it looks at times of its
// own; only the first one behind a silence wakes it.
func (b *buffer) run() {
	defer close(b.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var spare []byte
	for silent, last := true, false; !last; {
		if silent {
			select {
			case <-b.some:
			case <-b.closing:
			}
		}
		timer.Reset(gather)
		select {
		case <-timer.C:
		case <-b.much:
		case <-b.closing:
			last = true // nothing is added any more
		}
		batch, lines := b.take(spare)
		if silent = lines == 0; silent {
			spare = nil // and so is what is pending
			continue
		}
		b.write(batch, lines)
		if spare = batch[:0]; cap(spare) > keepBatch {
			spare = nil
		}
	}
}

// take returns what is pending and leaves spare in its place; nothing, when nothing
// is pending.
func (b *buffer) take(spare []byte) (batch []byte, lines int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch, lines = b.pending, b.lines
	if b.idle = lines == 0; b.idle {
		spare = nil
	}
	b.pending, b.lines, b.writing = spare, 0, lines
	return batch, lines
}

// write writes a batch. What the writer does not take is dropped: a full disk must
// not stop the lines that come later.
func (b *buffer) write(batch []byte, lines int) {
	if b.torn { // the next line must begin on a line of its own
		if _, err := b.w.Write([]byte{'\n'}); err != nil {
			b.lost(lines, err)
			return
		}
		b.torn = false
	}
	n, err := b.writeAll(batch)
	if err == nil && n < len(batch) {
		err = io.ErrShortWrite
	}
	if err != nil {
		n = min(max(n, 0), len(batch))
		b.torn = n > 0 && batch[n-1] != '\n'
		b.lost(bytes.Count(batch[n:], []byte{'\n'}), err)
		return
	}
	b.failed = false
	b.setWritten()
}

// writeAll writes to a file first what it takes without waiting. The runtime knows
// nothing of that: it takes the processor from a thread that is in the kernel for
// 20 microseconds, as most are that fill a pipe, and has a monitor look for them. The
// rest follows before anybody else may write to the file: it may begin inside a line.
func (b *buffer) writeAll(batch []byte) (n int, err error) {
	if b.file == nil {
		return b.w.Write(batch)
	}
	wrong := b.file.Write(func(fd uintptr) bool {
		for n += socket.WriteNow(fd, batch[n:]); n < len(batch) && err == nil; {
			var m int
			switch m, err = syscall.Write(int(fd), batch[n:]); {
			case errors.Is(err, syscall.EAGAIN): // a file that doesn't block: the runtime waits for it
				err = nil
				return false
			case errors.Is(err, syscall.EINTR):
				err = nil
			case err == nil && m == 0:
				err = io.ErrShortWrite
			case err == nil:
				n += m
			}
		}
		return true
	})
	return n, cmp.Or(err, wrong)
}

// lost counts lines that the writer did not take.
func (b *buffer) lost(lines int, err error) {
	b.dropped.Add(uint64(lines))
	if !b.failed && b.report != nil {
		b.report(fmt.Errorf("request log: %w; lines are dropped", err))
	}
	b.failed = true
	b.setWritten()
}

func (b *buffer) setWritten() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = 0
}

// close is [Log.Close].
func (b *buffer) close(ctx context.Context) error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.closing)
	}
	b.mu.Unlock()
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Errorf("request log: %d lines are not written: %w", b.lines+b.writing, errStuck)
}
