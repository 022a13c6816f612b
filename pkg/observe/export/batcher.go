// This file implements the delivery of telemetry and log messages without delaying the goroutines that produce them.

package export

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// closeTime is the time that Close waits for Write to return after the context of Close is done.
	closeTime = time.Second

	// keepSize is the maximum number of values in a slice that is reused for later batches.
	keepSize = 1 << 20
)

// BatcherOptions contains the limits and the output of a [Batcher]. A message consists of one or more
// values, such as the bytes of a line.
type BatcherOptions[T any] struct {
	MaxMessages int // maximum number of queued messages
	MaxSize     int // maximum number of queued values; 0 means no limit
	MaxBatch    int // maximum number of messages in a batch; 0 means no limit

	// Delay is the time that the first message of a batch waits for further messages. A batch of
	// FullMessages messages or FullSize values is written without this delay. FullMessages and
	// FullSize are ignored if they are 0.
	Delay                  time.Duration
	FullMessages, FullSize int

	// If Periodic is set, Write is called every Delay and by Close, even if no message is queued.
	Periodic bool

	// Write writes a batch. It must not retain batch. It returns the number of messages that were
	// lost. ctx is canceled after the context of Close is done.
	Write func(ctx context.Context, batch []T, messages int) (lost int)
}

// A Batcher queues messages, and writes them in batches in a separate goroutine. A message is
// dropped if the queue is full. The methods are safe for concurrent use.
type Batcher[T any] struct {
	options BatcherOptions[T]
	dropped atomic.Uint64
	ctx     context.Context // context passed to Write
	cancel  context.CancelCauseFunc
	wake    chan struct{} // buffers one wakeup for the first message and one for a full batch; closed by Close
	done    chan struct{} // closed when the goroutine exits

	mu       sync.Mutex
	queue    []T
	ends     []int // end of each queued message, as an index in queue; empty if MaxBatch is 0
	messages int   // number of queued messages
	writing  int   // number of messages in the batch that is being written
	idle     bool  // the goroutine is waiting for the first message of a batch
	closed   bool
}

// NewBatcher returns a Batcher and starts its goroutine, which exits after [Batcher.Close].
func NewBatcher[T any](o BatcherOptions[T]) *Batcher[T] {
	b := &Batcher[T]{options: o, idle: !o.Periodic, wake: make(chan struct{}, 2), done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	go b.run()
	return b
}

// Add queues a message and reports whether it was queued. It copies the values and does not block.
func (b *Batcher[T]) Add(message ...T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := &b.options
	size := len(b.queue) + len(message)
	if b.closed || b.messages >= o.MaxMessages || o.MaxSize > 0 && size > o.MaxSize {
		b.dropped.Add(1)
		return false
	}
	full := b.fullLocked()
	b.queue = append(b.queue, message...)
	if o.MaxBatch > 0 {
		b.ends = append(b.ends, len(b.queue))
	}
	b.messages++
	if b.idle || !full && b.fullLocked() {
		b.idle = false
		select {
		case b.wake <- struct{}{}:
		default: // the goroutine has not received the previous wakeups
		}
	}
	return true
}

// fullLocked reports whether the queue is written without a delay.
func (b *Batcher[T]) fullLocked() bool {
	o := &b.options
	return o.FullMessages > 0 && b.messages >= o.FullMessages || o.FullSize > 0 && len(b.queue) >= o.FullSize
}

// Dropped returns the number of messages that were dropped by Add or lost by Write.
func (b *Batcher[T]) Dropped() uint64 { return b.dropped.Load() }

// Close writes the queued messages and stops the goroutine. Later messages are dropped. If ctx is done first, Close
// cancels the context of Write, and returns the cause of ctx and the number of messages that were lost after the
// cancellation. The error is nil if no messages were lost. If Write ignores its context, Close returns one second
// later, and the goroutine exits when Write returns. Close may be called more than once.
func (b *Batcher[T]) Close(ctx context.Context) (lost uint64, err error) {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.wake)
	}
	b.mu.Unlock()
	select {
	case <-b.done:
		return 0, nil
	case <-ctx.Done():
	}
	before := b.dropped.Load()
	b.cancel(context.Cause(ctx))
	finished := false
	select {
	case <-b.done:
		finished = true
	case <-time.After(closeTime):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if lost = b.dropped.Load() - before + uint64(b.messages+b.writing); finished && lost == 0 {
		return 0, nil
	}
	return lost, context.Cause(ctx)
}

// run writes batches until Close is called. During traffic, the goroutine wakes only when a delay ends or a batch is
// full, because a wakeup for each message would need more CPU time than the message.
func (b *Batcher[T]) run() {
	defer close(b.done)
	defer b.cancel(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var spare []T
	idle, full := !b.options.Periodic, false
	for closed := false; !closed; {
		if idle {
			<-b.wake
		}
		if !full {
			timer.Reset(b.options.Delay)
			select {
			case <-timer.C:
			case _, open := <-b.wake:
				closed = !open
			}
		}
		var batch []T
		var messages int
		batch, messages, full = b.take(spare)
		closed = closed && !full
		if idle = messages == 0 && !b.options.Periodic; idle {
			spare = nil
			continue
		}
		b.dropped.Add(uint64(b.options.Write(b.ctx, batch, messages)))
		b.written()
		release(batch)
		if spare = batch[:0]; cap(spare) > keepSize {
			spare = nil
		}
	}
}

// take returns the next batch. The slice spare becomes the new queue. full reports whether the rest of
// the queue is written without a delay.
func (b *Batcher[T]) take(spare []T) (batch []T, messages int, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch, messages = b.queue, b.messages
	if b.idle = messages == 0 && !b.options.Periodic; b.idle {
		spare = nil // the memory is released if no messages arrive
	}
	b.queue, b.messages, b.writing = spare, 0, messages
	ends := b.ends
	b.ends = ends[:0]
	if most := b.options.MaxBatch; most > 0 && messages > most {
		end := ends[most-1]
		b.queue = append(b.queue, batch[end:]...)
		for _, e := range ends[most:] {
			b.ends = append(b.ends, e-end)
		}
		b.messages, b.writing = messages-most, most
		release(batch[end:])
		batch = batch[:end]
	}
	return batch, b.writing, b.fullLocked() || b.closed && b.messages > 0
}

// release clears values so that the memory to which they refer can be freed. It does not clear bytes, which contain
// no references.
func release[T any](values []T) {
	if _, ok := any(values).([]byte); !ok {
		clear(values)
	}
}

// written records that the batch was written.
func (b *Batcher[T]) written() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = 0
}
