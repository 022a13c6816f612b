package http1client

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestAbortBeforeDoReturnsAborted(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) { readRequest(conn); conn.Idle() })
	k := newCall("GET", "/")
	k.Begin()
	k.Abort()
	got := harness.Within(t, "an aborted call", func() outcome { return k.do(a) })
	if transport.FaultOf(got.err) != transport.FaultAborted || k.sends != 0 {
		t.Errorf("got %v, %d sends, want aborted, 0", got.err, k.sends)
	}
}

func TestAbortBeforeDoKeepsIdleConnection(t *testing.T) {
	a := app(t, answers("HTTP/1.1 204 No Content\r\n\r\n"))
	k := newCall("GET", "/")
	k.do(a).want(t, 204, "")
	k.Begin()
	k.Abort()
	got := k.do(a)
	if transport.FaultOf(got.err) != transport.FaultAborted || k.sends != 1 {
		t.Errorf("got %v, %d sends, want aborted, 1", got.err, k.sends)
	}
}

func TestAbortAfterDoHasNoEffect(t *testing.T) {
	a := app(t, answers("HTTP/1.1 204 No Content\r\n\r\n"))
	k := newCall("GET", "/")
	for range 3 {
		k.Begin()
		k.do(a).want(t, 204, "")
		k.Abort()
		if n := idle(a); n != 1 || !a.idle[0].alive() {
			t.Fatalf("got %d idle connections, want 1 that is alive", n)
		}
	}
}

func TestAbortEndsCallAtEachStage(t *testing.T) {
	forever := func(*testCall) io.Reader { return endless{} }
	silent := func(k *testCall) io.Reader { return &stuck{[]byte("hello"), k.stopped} }
	for name, stage := range map[string]struct {
		deaf    bool   // the user container does not read the header section
		say     string // bytes that the user container sends before the abort
		head    int    // number of additional bytes in the header section
		body    func(k *testCall) io.Reader
		expects bool
	}{
		"sending the header":           {deaf: true, head: 64 << 20},
		"waiting":                      {},
		"after a 103":                  {say: "HTTP/1.1 103 Early Hints\r\n\r\n"},
		"within a header":              {say: "HTTP/1.1 200 OK\r\nA:"},
		"sending the body":             {body: forever},
		"waiting for the body":         {body: silent},
		"waiting for a 100":            {body: silent, expects: true},
		"streaming with a length":      {say: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"},
		"streaming chunks":             {say: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"},
		"streaming until close":        {say: "HTTP/1.1 200 OK\r\n\r\nhello"},
		"streaming in both directions": {say: "HTTP/1.1 200 OK\r\n\r\nhello", body: forever},
		"streaming, body is blocked":   {say: "HTTP/1.1 200 OK\r\n\r\nhello", body: silent},
	} {
		t.Run(name, func(t *testing.T) {
			reached, ended, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
			a := app(t, func(conn *harness.AppConn) {
				if !stage.deaf {
					readHead(conn)
				}
				conn.Send(stage.say)
				close(reached)
				<-ended
				conn.Hang()
				close(closed)
			})
			k := newCall("GET", "/")
			if stage.head > 0 {
				k.field("A", strings.Repeat("a", stage.head))
			}
			if stage.body != nil {
				k.with(stage.body(k), -1)
				k.Expect100 = stage.expects
			}
			sending := make(chan struct{})
			k.sending = func() { close(sending) }
			go func() {
				<-sending
				<-reached
				k.Abort()
			}()
			got := harness.Within(t, "an aborted call", func() outcome { return k.do(a) })
			close(ended)
			if transport.FaultOf(got.err) != transport.FaultAborted || idle(a) != 0 || k.sends != 1 {
				t.Errorf("got %v, %d idle, %d sends, want aborted, 0, 1", got.err, idle(a), k.sends)
			}
			harness.Receive(t, closed, "closing the connection")
		})
	}
}

func TestAbortEndsDialRetries(t *testing.T) {
	port, _ := harness.ClosedPort(t)
	a := New(Settings{Port: port, ConnectRetry: time.Hour})
	defer a.Close()
	a.versions.setH1(true)
	k := newCall("GET", "/")
	go func() {
		harness.Until(t, "a dial that has failed", func() bool { h1, _ := a.versions.stored(); return h1 == unknown })
		k.Abort()
	}()
	got := harness.Within(t, "an aborted dial", func() outcome { return k.do(a) })
	if transport.FaultOf(got.err) != transport.FaultAborted || k.sends != 0 {
		t.Errorf("got %v, %d sends, want aborted, 0", got.err, k.sends)
	}
}

// Calls are reused while aborts happen at random times, also between two requests. No call may receive
// the response to another call, and no connection may be reused with the deadline of an abort.
func TestRandomAbortsDoNotAffectOtherRequests(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) {
		for {
			r, body := readRequest(conn)
			if r == nil {
				return
			}
			conn.Send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s%s", len(r.URL.Path)+len(body), r.URL.Path, body))
		}
	})
	const workers, times = 4, 400
	var callers, aborters sync.WaitGroup
	var answered, aborted atomic.Int64
	for w := range workers {
		k := newCall("", "")
		over := make(chan struct{})
		aborters.Go(func() { abortUntil(over, k) })
		callers.Go(func() {
			defer close(over)
			for i := range times {
				path := fmt.Sprintf("/%d/%d", w, i)
				next, want := newCall("POST", path), path
				if i%2 == 0 {
					next.with(iotest.HalfReader(strings.NewReader("some content")), -1)
					want += "some content"
				}
				k.Begin()
				k.request, k.Body = next.request, next.Body
				switch got := k.do(a); {
				case got.err == nil && got.body != want:
					t.Errorf("got %q, want %q", got.body, want)
				case got.err == nil:
					answered.Add(1)
				case transport.FaultOf(got.err) != transport.FaultAborted:
					t.Errorf("got %v, want aborted or an answer", got.err)
				default:
					aborted.Add(1)
				}
			}
		})
	}
	callers.Wait()
	aborters.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.idle {
		if !c.alive() {
			t.Error("got an unusable connection in the pool, want none")
		}
	}
	t.Logf("%d answered, %d aborted", answered.Load(), aborted.Load())
}

// abortUntil aborts a call repeatedly at random times.
func abortUntil(over <-chan struct{}, k *testCall) {
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-over:
			return
		case <-pause.C:
			pause.Reset(time.Duration(1 + rand.IntN(1000)*1000))
			k.Abort()
		}
	}
}
