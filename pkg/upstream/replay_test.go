package upstream

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
)

// second returns a user container whose first connection serves one request and
// plays on the second; all others serve what comes.
func second(t *testing.T, play func(p *peer)) (*App, *script) {
	t.Helper()
	s := serve(t, "127.0.0.1:0", func(p *peer) {
		for turn := 0; ; turn++ {
			if p.turn == 0 && turn == 1 {
				play(p)
				return
			}
			r := p.head()
			if r == nil {
				return
			}
			if r.ContentLength > 0 {
				p.say("HTTP/1.1 100 Continue\r\n\r\n")
				io.Copy(io.Discard, r.Body)
			}
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
		}
	})
	a := stranger(t, s.port)
	a.speech.learnH1(true)
	ask("GET", "/").do(a).want(t, 200, "hello")
	return a, s
}

func TestARequestIsReplayedOnceByTheRule(t *testing.T) {
	body := func(*asker) io.Reader { return strings.NewReader("hello") }
	closes := func(p *peer) { p.head() }
	resets := func(p *peer) { p.head(); p.rst() }
	for _, c := range []struct {
		name     string
		method   string
		body     func(k *asker) io.Reader
		expects  bool
		play     func(p *peer)
		replayed bool
		fault    forward.Fault
	}{
		{name: "GET, closed", method: "GET", play: closes, replayed: true},
		{name: "GET, reset", method: "GET", play: resets, replayed: true},
		{name: "HEAD", method: "HEAD", play: closes, replayed: true},
		{name: "OPTIONS", method: "OPTIONS", play: closes, replayed: true},
		{name: "TRACE", method: "TRACE", play: closes, replayed: true},
		{name: "DELETE", method: "DELETE", play: closes, replayed: true},
		{name: "PUT without a body", method: "PUT", play: closes, replayed: true},
		{name: "PUT whose body was asked for", method: "PUT", body: body, play: closes, fault: forward.Reset},
		{name: "PUT whose body still waits", method: "PUT", body: body, expects: true, play: closes, replayed: true},
		{name: "PUT whose body was let come", method: "PUT", body: body, expects: true, play: func(p *peer) { p.head(); p.say("HTTP/1.1 100 Continue\r\n\r\n") }, fault: forward.Reset},
		{name: "POST without a body", method: "POST", play: closes, fault: forward.Reset},
		{name: "POST", method: "POST", body: body, play: closes, fault: forward.Reset},
		{name: "POST whose body still waits", method: "POST", body: body, expects: true, play: closes, fault: forward.Reset},
		{name: "PATCH", method: "PATCH", play: closes, fault: forward.Reset},
		{name: "get, which is not GET", method: "get", play: closes, fault: forward.Reset},
		{name: "one byte of a response", method: "GET", play: func(p *peer) { p.head(); p.say("H") }, fault: forward.Reset},
		{name: "an informational response", method: "GET", play: func(p *peer) { p.head(); p.say("HTTP/1.1 103 Early Hints\r\n\r\n") }, fault: forward.Reset},
		{name: "garbage", method: "GET", play: func(p *peer) { p.head(); p.say("what?\r\n") }, fault: forward.Garbage},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s := second(t, c.play)
			k := ask(c.method, "/")
			if c.body != nil {
				k.with(c.body(k), 5)
				k.Expect100 = c.expects
			}
			got := k.do(a)
			sends, connections := 1, 1
			if c.replayed {
				sends, connections = 2, 2
			}
			if k.sends != sends || s.connections() != connections || fault(got.err) != c.fault {
				t.Errorf("got %d sends, %d connections, %v, want %d, %d, fault %d", k.sends, s.connections(), got.err, sends, connections, c.fault)
			}
			if c.replayed && got.status != 200 {
				t.Errorf("got status %d, want 200", got.status)
			}
		})
	}
}

func TestARequestOnAFreshConnectionIsNotReplayed(t *testing.T) {
	a := app(t, func(p *peer) { p.head() })
	k := ask("GET", "/")
	if got := k.do(a); fault(got.err) != forward.Reset || k.sends != 1 {
		t.Errorf("got %v, %d sends, want a reset, 1", got.err, k.sends)
	}
}

func TestARequestIsReplayedOnce(t *testing.T) {
	s := serve(t, "127.0.0.1:0", func(p *peer) {
		if p.turn == 0 {
			p.head()
			p.say("HTTP/1.1 204 No Content\r\n\r\n")
		}
		p.head()
	})
	a := stranger(t, s.port)
	ask("GET", "/").do(a).want(t, 204, "")
	k := ask("GET", "/")
	if got := k.do(a); fault(got.err) != forward.Reset || k.sends != 2 || s.connections() != 2 {
		t.Errorf("got %v, %d sends, %d connections, want a reset, 2, 2", got.err, k.sends, s.connections())
	}
}

func TestAReplayTakesNoOtherUsedConnection(t *testing.T) {
	s := serve(t, "127.0.0.1:0", func(p *peer) {
		p.head()
		p.say("HTTP/1.1 204 No Content\r\n\r\n")
		p.head()
	})
	a := stranger(t, s.port)
	open := make([]*Response, 3)
	for i := range open { // three connections, all of which will be useless
		r, err := ask("GET", "/").Do(a)
		if err != nil {
			t.Fatal(err)
		}
		open[i] = r
	}
	for _, r := range open {
		r.Next()
		r.Close()
	}
	s.ln.Close()
	k := ask("GET", "/")
	got := k.do(a)
	if fault(got.err) != forward.Unreachable || k.sends != 1 || idle(a) != 2 {
		t.Errorf("got %v, %d sends, %d idle, want unreachable, 1, 2", got.err, k.sends, idle(a))
	}
}

// mute is a connection that takes some bytes of the first write and then is
// found to be broken.
type mute struct {
	*net.TCPConn
	takes int
}

func (m *mute) Write(p []byte) (int, error) {
	n, _ := m.TCPConn.Write(p[:m.takes])
	m.CloseWrite()
	return n, syscall.EPIPE
}

func TestARequestOfWhichNothingWasWrittenIsReplayedWhateverTheMethod(t *testing.T) {
	for _, takes := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d bytes written", takes), func(t *testing.T) {
			s := serve(t, "127.0.0.1:0", func(p *peer) {
				r, body := p.request()
				if r == nil {
					return
				}
				p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)
			})
			a := stranger(t, s.port)
			a.speech.learnH1(true)
			nc, err := net.Dial("tcp", a.addresses[0])
			if err != nil {
				t.Fatal(err)
			}
			a.put(newConn(&mute{nc.(*net.TCPConn), takes}, &a.buffers), -1)
			k := ask("POST", "/").with(strings.NewReader("hello"), 5)
			got := k.do(a)
			if takes == 0 {
				got.want(t, 200, "hello")
			} else if fault(got.err) != forward.Reset || k.sends != 1 {
				t.Errorf("got %v, %d sends, want a reset, 1", got.err, k.sends)
			}
		})
	}
}

func TestAClosedIdleConnectionIsNoticedBeforeItIsUsed(t *testing.T) {
	for name, leave := range map[string]func(p *peer){
		"closed":      func(p *peer) {},
		"half-closed": func(p *peer) { p.CloseWrite(); p.hang() },
		"reset":       func(p *peer) { p.rst() },
		"a 408":       func(p *peer) { p.say("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"); p.hang() },
		"a 408, then closed": func(p *peer) {
			p.say("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept := make(chan struct{})
			s := serve(t, "127.0.0.1:0", func(p *peer) {
				r, body := p.request()
				p.say("HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(r.Method+body)) + "\r\n\r\n" + r.Method + body)
				<-kept
				leave(p)
			})
			a := stranger(t, s.port)
			ask("GET", "/").do(a).want(t, 200, "GET")
			close(kept)
			soon(t, "a useless connection", func() bool { return !a.idle[0].alive() })
			k := ask("POST", "/").with(strings.NewReader("hello"), 5)
			k.do(a).want(t, 200, "POSThello")
			if k.sends != 1 || s.connections() != 2 {
				t.Errorf("got %d sends, %d connections, want 1, 2", k.sends, s.connections())
			}
		})
	}
}

// The most frequent cause of a 502 is a user container that closes its idle
// connections. It costs an idempotent request nothing, and no other request may
// be seen twice.
func TestAUserContainerThatClosesAtRandomCostsNoIdempotentRequestAndRepeatsNoOther(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	s := serve(t, "127.0.0.1:0", func(p *peer) {
		for served := 0; ; served++ {
			patience := bound
			if served > 0 {
				patience = time.Duration(rand.IntN(1000)) * time.Microsecond
			}
			p.SetReadDeadline(time.Now().Add(patience))
			if _, err := p.in.Peek(1); err != nil {
				if rand.IntN(2) == 0 {
					p.rst()
				}
				return
			}
			p.SetReadDeadline(time.Now().Add(bound))
			r, body := p.request()
			if r == nil {
				return
			}
			mu.Lock()
			seen[r.Method+body+r.URL.Path]++
			mu.Unlock()
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
		}
	})
	a := stranger(t, s.port)
	const workers, times = 4, 500
	var all sync.WaitGroup
	var replays, lost int
	for w := range workers {
		all.Go(func() {
			for i := range times {
				id := fmt.Sprintf("/%d/%d", w, i)
				k := ask("GET", id)
				switch i % 3 {
				case 1:
					k = ask("POST", id)
				case 2:
					k = ask("POST", id).with(strings.NewReader("body"), 4)
				}
				got := k.do(a)
				if got.err != nil && k.request.Method == "GET" {
					t.Errorf("got %v, want no error of a GET", got.err)
				}
				mu.Lock()
				replays += k.sends - 1
				if got.err != nil {
					lost++
				}
				mu.Unlock()
				if rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // the idle time that is the matter here
				}
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	for request, n := range seen {
		if n > 1 && strings.HasPrefix(request, "POST") {
			t.Errorf("got %s %d times, want once", request, n)
		}
	}
	t.Logf("%d requests on %d connections, %d replays, %d POSTs lost", workers*times, s.connections(), replays, lost)
}
