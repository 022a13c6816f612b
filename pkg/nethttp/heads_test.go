package nethttp

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// frame is an HTTP/2 frame of so many bytes.
func frame(kind, flags byte, size int) string {
	return string([]byte{byte(size >> 16), byte(size >> 8), byte(size), kind, flags, 0, 0, 0, 1}) + string(make([]byte, size))
}

// However the bytes are cut: a head is open from its first frame to the end of the
// last, and nothing else opens one.
func TestAnHTTP2HeadIsFollowedFromFrameToFrame(t *testing.T) {
	parts := []struct {
		text string
		open bool // behind it
	}{
		{wire.Preface, false},
		{frame(4, 0, 12), false},
		{frame(frameHeaders, 1|flagEndHeaders, 30), false},
		{frame(0, flagEndHeaders, 5), false},
		{frame(frameHeaders, 0, 30), true},
		{frame(frameContinuation, 0, 0), true},
		{frame(frameContinuation, 0, 70000), true},
		{frame(frameContinuation, flagEndHeaders, 0), false},
		{frame(frameHeaders, 0, 0), true},
		{frame(frameContinuation, flagEndHeaders, 1), false},
		{frame(6, 0, 8), false},
	}
	for range 50 {
		proxy := newHeads(0, nil)
		for i, part := range parts {
			for rest := part.text; len(rest) > 0; {
				n := 1 + rand.IntN(min(len(rest), 1+rand.IntN(40000)))
				proxy.follow([]byte(rest[:n]))
				rest = rest[n:]
			}
			if proxy.open != part.open {
				t.Fatalf("behind part %d: got open %v, want %v", i, proxy.open, part.open)
			}
		}
	}
}

func TestAnHTTP2HeadThatIsLateEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Pointer[time.Time]
		proxy := newHeads(time.Second, func() { now := time.Now(); cut.CompareAndSwap(nil, &now) })
		defer proxy.stop()
		proxy.follow([]byte(wire.Preface))
		for range 10 { // heads that are in time, and time between them
			proxy.follow([]byte(frame(frameHeaders, 0, 10)))
			time.Sleep(900 * time.Millisecond)
			proxy.follow([]byte(frame(frameContinuation, flagEndHeaders, 10) + frame(frameHeaders, 0, 10)))
			time.Sleep(900 * time.Millisecond)
			proxy.follow([]byte(frame(frameContinuation, flagEndHeaders, 10)))
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
		}
		if cut.Load() != nil {
			t.Fatalf("a connection was ended whose heads were in time")
		}
		began := time.Now()
		proxy.follow([]byte(frame(frameHeaders, 0, 10)))
		for range 30 { // one that goes on and on
			time.Sleep(100 * time.Millisecond)
			proxy.follow([]byte(frame(frameContinuation, 0, 10)))
		}
		if end := cut.Load(); end == nil || end.Sub(began) != time.Second {
			t.Errorf("the connection was ended at %v, want %v", end, began.Add(time.Second))
		}
	})
}
