package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observe/export"
)

const (
	// maxBytes and maxLines limit the size and the number of the queued lines if the output is not
	// read. The busiest measured sidecar writes only a fraction of these limits in 0.1 s.
	maxBytes = 1 << 20
	maxLines = 4096

	// gather is the maximum delay of a line. Lines that arrive during the delay are written together, because a
	// separate write for each line would need more CPU time than formatting the line.
	gather = 50 * time.Millisecond

	// If at least fullBytes or fullLines are queued, the lines are written without this delay.
	// fullBytes is less than the pipe capacity of 64 KiB, because more lines are added until the
	// goroutine runs.
	fullBytes = 56 << 10
	fullLines = maxLines / 2
)

// A writer writes batches of lines.
type writer struct {
	w        io.Writer
	file     syscall.RawConn                // raw access to w; nil if w is not a file
	writeNow func(fd uintptr, b []byte) int // Options.WriteNow; not nil if file is not nil
	dropped  message.Tally
	torn     bool // the last write ended inside a line
}

// errNotRead is reported if lines were dropped because the queue was full.
var errNotRead = errors.New("output blocked: timeout")

// newWriter returns a writer that writes lines to w.
func newWriter(w io.Writer, o *Options) *writer {
	out := &writer{w: w, writeNow: o.WriteNow}
	out.dropped.Usual, out.dropped.Restored = errNotRead, o.Restored
	if report := o.Report; report != nil {
		out.dropped.Report = func(lines uint64, err error) { report(fmt.Errorf("%d lines dropped: %w", lines, err)) }
	}
	if f, ok := w.(syscall.Conn); ok && o.WriteNow != nil {
		out.file, _ = f.SyscallConn() // if the call fails, lines are written to w
	}
	return out
}

// newBatcher returns a Batcher that writes lines to w.
func (w *writer) newBatcher() *export.Batcher[byte] {
	return export.NewBatcher(export.BatcherOptions[byte]{
		MaxMessages: maxLines, MaxSize: maxBytes, Delay: gather, FullMessages: fullLines, FullSize: fullBytes, Write: w.write,
	})
}

// write writes a batch and returns the number of lines that were lost. If the writer fails, for
// example because the disk is full, the rest of the batch is dropped, and later lines are still
// written.
func (w *writer) write(ctx context.Context, batch []byte, lines int) (lost int) {
	if w.torn { // the next line must start on a new line
		batch = slices.Insert(batch, 0, '\n')
	}
	n, err := w.writeAll(batch)
	if err == nil && n < len(batch) {
		err = io.ErrShortWrite
	}
	if n = min(max(n, 0), len(batch)); n > 0 {
		w.torn = batch[n-1] != '\n'
	}
	if err != nil {
		lost = min(bytes.Count(batch[n:], []byte{'\n'}), lines)
		if ctx.Err() == nil { // otherwise Close returns the number of lost lines
			w.dropped.Add(uint64(lost), err)
		}
	} else {
		w.dropped.End()
	}
	return lost
}

// writeAll writes a batch. If w is a file, the first write does not block and does not notify the Go scheduler.
// Otherwise the scheduler would wake its monitor thread. The monitor thread would take the processor from this thread
// during a system call of more than 20 microseconds, such as most writes to a pipe. The rest of the batch may start
// in the middle of a line. Therefore writeAll writes the rest before any other writer can use the file.
func (w *writer) writeAll(batch []byte) (n int, err error) {
	if w.file == nil {
		return w.w.Write(batch)
	}
	failed := w.file.Write(func(fd uintptr) bool {
		for n += w.writeNow(fd, batch[n:]); n < len(batch) && err == nil; {
			var m int
			switch m, err = syscall.Write(int(fd), batch[n:]); {
			case errors.Is(err, syscall.EAGAIN): // the runtime waits until the non-blocking file is writable
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
	return n, cmp.Or(err, failed)
}
