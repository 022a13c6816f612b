package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/socket"
)

const (
	// The lines that wait have bounds: a tenth of a second of the busiest sidecar that was
	// measured fits many times over, and a stuck reader costs no more memory than this.
	maxBytes = 1 << 20
	maxLines = 4096

	// gather is how long lines wait for others to be written with: a write for each
	// request would cost more than making the line.
	gather = 50 * time.Millisecond

	// So much is not kept waiting: what an empty pipe of 64 KB takes at once, and what comes
	// while the writer wakes.
	muchBytes = 56 << 10
	muchLines = maxLines / 2

	// keepBatch is the largest batch whose memory is kept: that of a writer that has
	// been held up for a while.
	keepBatch = 256 << 10
)

// A buffer holds lines until its goroutine has written them.
type buffer struct {
	w       io.Writer
	file    syscall.RawConn // of w; nil: it has none
	report  func(error)     // may be nil
	dropped atomic.Uint64
	wake    chan struct{} // with room for the first line after a silence, and for much; closed: no more are added
	done    chan struct{}

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
func newBuffer(w io.Writer, report func(error)) *buffer {
	b := &buffer{w: w, report: report, idle: true, wake: make(chan struct{}, 2), done: make(chan struct{})}
	if f, ok := w.(syscall.Conn); ok {
		b.file, _ = f.SyscallConn() // without it, it is written all the same
	}
	go b.run()
	return b
}

// add takes a line, or drops it.
func (b *buffer) add(line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.lines >= maxLines || len(b.pending)+len(line) > maxBytes {
		b.dropped.Add(1)
		return
	}
	before := len(b.pending)
	b.pending = append(b.pending, line...)
	b.lines++
	if b.idle || b.lines == muchLines || before < muchBytes && len(b.pending) >= muchBytes {
		b.idle = false
		select {
		case b.wake <- struct{}{}:
		default: // it will look in any case
		}
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
			<-b.wake
		}
		timer.Reset(gather)
		select {
		case <-timer.C:
		case _, open := <-b.wake:
			last = !open
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
		batch = slices.Insert(batch, 0, '\n')
	}
	n, err := b.writeAll(batch)
	if err == nil && n < len(batch) {
		err = io.ErrShortWrite
	}
	if n = min(max(n, 0), len(batch)); n > 0 {
		b.torn = batch[n-1] != '\n'
	}
	if err != nil {
		b.dropped.Add(uint64(min(bytes.Count(batch[n:], []byte{'\n'}), lines)))
		if !b.failed && b.report != nil {
			b.report(fmt.Errorf("request log: %w; lines are dropped", err))
		}
	}
	b.failed = err != nil
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = 0
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

// close is [Log.Close].
func (b *buffer) close(ctx context.Context) error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.wake)
	}
	b.mu.Unlock()
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Errorf("request log: %d lines are not written: the writer takes nothing", b.lines+b.writing)
}
