package netconn_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// noise returns n pseudorandom bytes that depend only on n.
func noise(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// writeInPieces writes b in parts of random size.
func writeInPieces(w io.Writer, b []byte) error {
	r := rand.New(rand.NewPCG(uint64(len(b)), 2))
	for len(b) > 0 {
		n := min(len(b), 1+r.IntN(60_000))
		if _, err := w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func TestConcurrentReadAndWrite(t *testing.T) {
	const size = 3 << 20
	forEachKind(t, func(t *testing.T, p pair) {
		p.link.SetDeadline(time.Now().Add(harness.Patience))
		up, down := noise(size), noise(size+1)
		var all sync.WaitGroup
		all.Go(func() {
			if err := writeInPieces(p.client, up); err != nil {
				t.Errorf("the client writes: %v", err)
			}
		})
		all.Go(func() {
			if err := writeInPieces(p.link, down); err != nil {
				t.Errorf("the server writes: %v", err)
			}
		})
		all.Go(func() {
			got := make([]byte, len(up))
			if _, err := io.ReadFull(p.link, got); err != nil || !bytes.Equal(got, up) {
				t.Errorf("the server read other bytes or failed: %v", err)
			}
		})
		got := make([]byte, len(down))
		if _, err := io.ReadFull(p.client, got); err != nil || !bytes.Equal(got, down) {
			t.Errorf("the client read other bytes or failed: %v", err)
		}
		all.Wait()
	})
}

func TestTryReadReturnsErrAgainAndEOF(t *testing.T) {
	forEachKind(t, func(t *testing.T, p pair) {
		var got []byte
		again := 0
		read := func(fd uintptr) (done bool) {
			buf := make([]byte, 100)
			n, err := p.link.TryRead(fd, buf)
			got = append(got, buf[:n]...)
			if errors.Is(err, netconn.ErrAgain) {
				if again++; again == 1 {
					go p.client.Write([]byte("hello"))
				}
				return false
			}
			return err != nil || len(got) == len("hello")
		}
		p.link.SetReadDeadline(time.Now().Add(harness.Patience))
		if err := p.link.WaitRead(read); err != nil || string(got) != "hello" || again == 0 {
			t.Fatalf("got %q, %v after %d times ErrAgain, want hello", got, err, again)
		}
		p.client.Close()
		if n, err := p.link.Read(make([]byte, 10)); n != 0 || err != io.EOF {
			t.Errorf("after the client's end: got %d, %v, want EOF", n, err)
		}
	})
}

func TestReadDeadline(t *testing.T) {
	forEachKind(t, func(t *testing.T, p pair) {
		p.link.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := p.link.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v, want the deadline's error", err)
		}
		p.link.SetReadDeadline(time.Now().Add(harness.Patience)) // the connection is still usable
		go p.client.Write([]byte("x"))
		if n, err := p.link.Read(make([]byte, 10)); n != 1 || err != nil {
			t.Errorf("after the deadline: got %d, %v, want 1 byte", n, err)
		}
	})
}

// A client that does not read blocks the writer. No bytes are lost or repeated when it continues to
// read.
func TestWriteWaitsForReader(t *testing.T) {
	forEachKind(t, func(t *testing.T, p pair) {
		want := noise(12 << 20) // exceeds all socket buffers
		again := make(chan struct{})
		var once sync.Once
		written := make(chan error, 1)
		left := want
		go func() {
			var failed error
			err := p.link.WaitWrite(func(fd uintptr) (done bool) {
				for {
					n, err := p.link.TryWrite(fd, left[:min(len(left), 50_000)], left[min(len(left), 50_000):min(len(left), 60_000)])
					left = left[n:]
					switch {
					case errors.Is(err, netconn.ErrAgain):
						once.Do(func() { close(again) })
						return false
					case err != nil || len(left) == 0 && n == 0:
						failed = err
						return true
					}
				}
			})
			written <- errors.Join(err, failed)
		}()
		select {
		case <-again:
		case <-time.After(harness.Patience):
			t.Fatal("got no ErrAgain, want it when the sockets are full")
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(p.client, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("the client read other bytes or failed: %v", err)
		}
		if err := <-written; err != nil {
			t.Errorf("writing: %v", err)
		}
	})
}

func TestCloseWriteKeepsReadSideOpen(t *testing.T) {
	forEachKind(t, func(t *testing.T, p pair) {
		if _, err := p.link.Write([]byte("bye")); err != nil {
			t.Fatal(err)
		}
		harness.NoError(t, p.link.CloseWrite())
		if b, err := io.ReadAll(p.client); string(b) != "bye" || err != nil {
			t.Errorf("the client got %q, %v, want bye and EOF", b, err)
		}
		if _, err := p.client.Write([]byte("still here")); err != nil {
			t.Errorf("the client cannot write any more: %v", err)
		}
		go func() { p.client.Write(make([]byte, 100_000)); p.client.Close() }()
		p.link.Linger(false)
		if err := p.link.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}
