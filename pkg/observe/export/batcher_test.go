package export

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// An output records batches and their times in a synctest bubble.
type output struct {
	start    time.Time
	batches  []string
	times    []time.Duration
	messages int
	lost     int                       // result of each write
	wait     func(ctx context.Context) // called by each write; may be nil
}

func (o *output) write(ctx context.Context, batch []byte, messages int) int {
	o.batches, o.times = append(o.batches, string(batch)), append(o.times, time.Since(o.start))
	o.messages += messages
	if o.wait != nil {
		o.wait(ctx)
	}
	return o.lost
}

// newBatcher returns a Batcher for at most 4 messages and 10 bytes. change may be nil.
func (o *output) newBatcher(change func(*BatcherOptions[byte])) *Batcher[byte] {
	o.start = time.Now()
	options := BatcherOptions[byte]{MaxMessages: 4, MaxSize: 10, Delay: time.Second, FullMessages: 3, FullSize: 8, Write: o.write}
	if change != nil {
		change(&options)
	}
	return NewBatcher(options)
}

func mustClose(t *testing.T, b *Batcher[byte]) {
	t.Helper()
	lost, err := b.Close(t.Context())
	if lost != 0 || err != nil {
		t.Errorf("Close: got %d, %v, want 0, nil", lost, err)
	}
}

func TestMessagesWithinDelayFormOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		b := out.newBatcher(nil)
		b.Add('a', 'b')
		time.Sleep(900 * time.Millisecond)
		b.Add('c')
		time.Sleep(10 * time.Second)
		b.Add('d')
		time.Sleep(time.Second)
		synctest.Wait()
		harness.Equal(t, out.batches, []string{"abc", "d"}, "batches")
		harness.Equal(t, out.times, []time.Duration{time.Second, 11900 * time.Millisecond}, "times")
		mustClose(t, b)
		harness.Equal(t, out.messages, 3, "messages")
	})
}

func TestFullBatchIsWrittenWithoutDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, messages := range map[string][]string{"messages": {"a", "b", "c"}, "size": {"abcd", "efgh"}} {
			var out output
			b := out.newBatcher(nil)
			for _, m := range messages {
				b.Add([]byte(m)...)
			}
			synctest.Wait()
			harness.Equal(t, out.times, []time.Duration{0}, name, "times")
			mustClose(t, b)
		}
	})
}

func TestFullQueueDropsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, message := range map[string]string{"messages": "a", "size": "abc"} {
			resume := make(chan struct{})
			out := output{wait: func(context.Context) { <-resume }}
			b := out.newBatcher(nil)
			b.Add('x')
			time.Sleep(time.Second)
			synctest.Wait() // the first message is being written
			want := min(4, 10/len(message))
			for i := range 6 {
				harness.Equal(t, b.Add([]byte(message)...), i < want, name, "message", i)
			}
			harness.Equal(t, b.Dropped(), uint64(6-want), name, "dropped")
			close(resume)
			mustClose(t, b)
			harness.Equal(t, out.messages, 1+want, name, "written")
			harness.Equal(t, b.Add('y'), false, name, "a message after Close")
		}
	})
}

func TestMaxBatchSplitsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		b := out.newBatcher(func(o *BatcherOptions[byte]) { o.MaxBatch, o.FullMessages = 2, 2 })
		for _, m := range []byte("abcd") {
			b.Add(m)
		}
		synctest.Wait()
		harness.Equal(t, out.batches, []string{"ab", "cd"}, "batches")
		for _, m := range []byte("efg") {
			b.Add(m)
		}
		mustClose(t, b)
		harness.Equal(t, out.batches[2:], []string{"ef", "g"}, "batches of Close")
	})
}

func TestMaxBatchDoesNotSplitMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resume := make(chan struct{})
		out := output{wait: func(context.Context) { <-resume }}
		b := out.newBatcher(func(o *BatcherOptions[byte]) { o.MaxBatch, o.FullMessages, o.MaxMessages = 2, 2, 5 })
		for _, m := range []string{"aa", "b", "ccc", "d", "ee", "f", "g"} {
			b.Add([]byte(m)...)
			synctest.Wait()
		}
		close(resume)
		mustClose(t, b)
		harness.Equal(t, out.batches, []string{"aab", "cccd", "eef", "g"}, "batches")
		harness.Equal(t, out.messages, 7, "messages")
	})
}

func TestPeriodicBatcherWritesWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		b := out.newBatcher(func(o *BatcherOptions[byte]) { o.Periodic = true })
		time.Sleep(2500 * time.Millisecond)
		mustClose(t, b)
		harness.Equal(t, out.times, []time.Duration{time.Second, 2 * time.Second, 2500 * time.Millisecond}, "times")
	})
}

func TestLostMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := output{lost: 2}
		b := out.newBatcher(nil)
		b.Add('a')
		b.Add('b')
		mustClose(t, b)
		harness.Equal(t, b.Dropped(), 2, "dropped")
	})
}

func TestCloseCancelsWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := output{lost: 1, wait: func(ctx context.Context) { <-ctx.Done() }}
		b := out.newBatcher(func(o *BatcherOptions[byte]) { o.MaxBatch, o.FullMessages = 1, 1 })
		b.Add('a')
		b.Add('b')
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		lost, err := b.Close(ctx)
		harness.Equal(t, time.Since(out.start), 3*time.Second, "Close")
		if lost != 2 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %d, %v, want 2 and the deadline", lost, err)
		}
	})
}

func TestCloseReturnsIfWriteBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resume := make(chan struct{})
		out := output{wait: func(context.Context) { <-resume }}
		b := out.newBatcher(nil)
		b.Add('a')
		time.Sleep(time.Second)
		b.Add('b')
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		lost, err := b.Close(ctx)
		harness.Equal(t, time.Since(began), time.Second+closeTime, "Close")
		if lost != 2 || err == nil {
			t.Errorf("got %d, %v, want 2 and an error", lost, err)
		}
		close(resume)
		mustClose(t, b)
		harness.Equal(t, out.messages, 2, "written")
	})
}

func TestIdleBatcherReleasesMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		b := out.newBatcher(nil)
		for range 3 {
			b.Add('a')
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.mu.Lock()
		if cap(b.queue) != 0 || !b.idle {
			t.Errorf("got a queue of %d bytes, idle %t, want 0, true", cap(b.queue), b.idle)
		}
		b.mu.Unlock()
		mustClose(t, b)
	})
}

func TestConcurrentMessagesAreWrittenOnce(t *testing.T) {
	var written int
	b := NewBatcher(BatcherOptions[int]{MaxMessages: 1 << 20, Write: func(_ context.Context, batch []int, messages int) int {
		if len(batch) != messages {
			t.Errorf("got %d values and %d messages, want equal numbers", len(batch), messages)
		}
		written += messages
		return 0
	}})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				b.Add(i)
			}
		})
	}
	all.Wait()
	if lost, err := b.Close(t.Context()); lost != 0 || err != nil || b.Add(1) {
		t.Errorf("Close: got %d, %v, want 0, nil, and no further message", lost, err)
	}
	harness.Equal(t, written, 8000, "messages")
}

func TestAddDoesNotAllocate(t *testing.T) {
	b := NewBatcher(BatcherOptions[byte]{MaxMessages: 1, Delay: time.Hour, Write: func(context.Context, []byte, int) int { return 0 }})
	line := []byte("a line of a log\n")
	harness.Equal(t, testing.AllocsPerRun(100, func() { b.Add(line...) }), 0, "allocations")
	if _, err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
