package conformance

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// This file tests applications that restart or close their connections (docs/promises.md
// 3.6 and 3.7).

// An app is killed and restarted several times under load. Each client receives the response
// from the app or an error with a reason.
func TestAppRestartsUnderLoadGiveResponseOrReason(t *testing.T) {
	inParallel(t)
	for name, hard := range map[string]bool{"FIN": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start("CONNECT_RETRY=30ms")
			ledger := newLedger()
			app := &restartableApp{p: p, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					time.Sleep(10 * time.Millisecond) // simulate work of the app
				}
				ledger.ServeHTTP(w, r)
			})}
			app.hard.Store(hard)
			app.start()
			c := newTraffic(t, p)
			c.http1(10, true, "GET", "/")
			c.http1(5, true, "POST", "/")
			c.http1(5, true, "POST", "/slow")
			c.http1(5, false, "GET", "/slow")
			c.h2c(2, 5, "/slow")
			c.until("requests are answered", func() bool { return c.answered() > 100 })
			random := rand.New(rand.NewPCG(1, 2))
			for range 15 {
				// Sleep, because the application must run, and then be stopped, for random
				// durations.
				time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
				app.kill()
				time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond))))
				app.start()
			}
			answered := c.answered()
			c.until("requests are answered after the last restart", func() bool { return c.answered() > answered+100 })
			c.end()
			kinds := map[string]int{}
			for _, a := range c.attempts() {
				switch {
				case a.whole && a.status == 200 && a.word == "":
					kinds["answered"]++
				case a.whole && a.status == 502 && slices.Contains([]string{"app-unreachable", "app-reset"}, a.word):
					kinds[a.word]++
				case a.begun && a.status == 200 && a.word == "":
					kinds["truncated"]++
				default:
					t.Errorf("got %v, want a response or a failure reason", a)
				}
				if got := ledger.count(a.id); got > 1 && a.client != "h2c" {
					kinds["sent twice"]++
				}
			}
			for _, id := range c.posts() {
				if got := ledger.count(id); got > 1 {
					t.Errorf("the app received POST %s %d times, want at most 1", id, got)
				}
			}
			t.Logf("%v", kinds)
		})
	}
}

// posts returns the IDs of the POST requests.
func (c *traffic) posts() (ids []string) {
	for _, a := range c.attempts() {
		if a.method == "POST" {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// Requests wait during a restart that is shorter than CONNECT_RETRY.
func TestShortAppRestartIsBridged(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		for _, method := range []string{"GET", "POST"} {
			t.Run(protocol+"/"+method, func(t *testing.T) {
				p := newProxy(t)
				p.start("CONNECT_RETRY=10s")
				ledger := newLedger()
				app := &restartableApp{p: p, handler: ledger}
				app.start()
				client := httpClient(t, protocol)
				for round := range 3 {
					app.kill()
					p.awaitAppConnectionsClosed(protocol)
					type result struct {
						status string
						err    error
					}
					done := make(chan result, 10)
					var ids []string
					for i := range 10 {
						id := fmt.Sprintf("%d-%d", round, i)
						ids = append(ids, id)
						go func() {
							r, _ := http.NewRequest(method, p.url("/"), nil)
							r.Header.Set("X-Id", id)
							answer, err := client.Do(r)
							if err != nil {
								done <- result{"", err}
								return
							}
							defer answer.Body.Close()
							b, err := io.ReadAll(answer.Body)
							if err == nil && string(b) != byTheApp {
								err = fmt.Errorf("got %q", b)
							}
							done <- result{answer.Status, err}
						}()
					}
					p.watch(300*time.Millisecond, func() {
						if len(done) > 0 {
							t.Fatalf("got a response before the app started: %+v", <-done)
						}
					})
					app.start()
					for range 10 {
						if r := receive(t, "a response", done); r.err != nil || r.status != "200 OK" {
							t.Errorf("round %d: got %q, %v, want 200 from the app", round, r.status, r.err)
						}
					}
					for _, id := range ids {
						if got := ledger.count(id); got != 1 {
							t.Errorf("the app received %s %d times, want 1", id, got)
						}
					}
				}
			})
		}
	}
}

// If a restart takes longer than CONNECT_RETRY, the sidecar reports the reason.
func TestLongAppRestartReturns502(t *testing.T) {
	p := newProxy(t)
	p.start("CONNECT_RETRY=300ms")
	began := time.Now()
	m := dial(t, p.addr()).ask("/")
	checkOurs(t, p, m, 502, "connection_refused", "app-unreachable")
	if took := time.Since(began); took < 250*time.Millisecond || took > 300*time.Millisecond+slack {
		t.Errorf("response after %v, want 300ms", took)
	}
}

// A closingApp closes idle connections at any time and without an announcement.
type closingApp struct {
	app   *bareApp
	mu    sync.Mutex
	count map[string]int
}

func (a *closingApp) note(m *message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count[m.get("X-Id")]++
}

func (a *closingApp) seen(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count[id]
}

// No GET request fails, and the app receives no POST request twice, if the app closes its idle
// connections at random times.
func TestAppThatClosesIdleConnectionsAtRandom(t *testing.T) {
	inParallel(t)
	for name, reset := range map[string]bool{"FIN": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			app := &closingApp{count: map[string]int{}}
			var closes atomic.Int32
			app.app = p.bare(func(c *bareConn, m *message) bool {
				app.note(m)
				c.send(ok)
				// In some cases, close the connection shortly after the response, when the next
				// request arrives.
				if rand.IntN(3) == 0 {
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // wait, because the application must close the connection at about the time of the next request
					if c.r.Buffered() > 0 {
						return true // the next request has arrived before the connection was closed
					}
					closes.Add(1)
					if reset {
						c.reset()
					}
					return false
				}
				return true
			})
			p.start()
			c := newTraffic(t, p)
			c.http1(8, true, "GET", "/")
			c.http1(4, true, "POST", "/")
			c.until("the app has closed many connections", func() bool { return closes.Load() > 600 && c.answered() > 3000 })
			c.end()
			failed := 0
			for _, a := range c.attempts() {
				seen := app.seen(a.id)
				switch {
				case a.method == "GET" && (a.status != 200 || !a.whole):
					t.Errorf("GET failed: %v", a)
				case a.method == "POST" && seen > 1:
					t.Errorf("the app received a POST %d times: %v", seen, a)
				case a.method == "POST" && (!a.whole || a.status != 200):
					// The app may have read the request while it closed the connection. Only
					// the client can decide whether to send the request again, so it must
					// receive an error.
					if a.status != 502 || a.word != "app-reset" {
						t.Errorf("POST: got %v, want a response or app-reset", a)
					}
					failed++
				}
			}
			t.Logf("%d requests, %d connections closed by the app, %d POST requests failed with app-reset", len(c.attempts()), closes.Load(), failed)
		})
	}
}

// The sidecar respects the keep-alive timeout that an app announces.
func TestKeepAliveTimeoutOfAppIsRespected(t *testing.T) {
	p := newProxy(t)
	var late atomic.Int32
	app := &closingApp{count: map[string]int{}}
	app.app = p.bare(func(c *bareConn, m *message) bool {
		app.note(m)
		c.send("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=2\r\nContent-Length: 2\r\n\r\nok")
		// The application stops reading after two seconds, the timeout in the field Keep-Alive.
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.r.Peek(1); err != nil {
			return false
		}
		c.SetReadDeadline(time.Now().Add(patience))
		return true
	})
	p.start()
	end := time.Now().Add(4 * time.Second)
	var all sync.WaitGroup
	for client := range 6 {
		all.Go(func() {
			pause := time.Duration(1900+client*40) * time.Millisecond // shorter than the timeout for some clients, and longer for others
			for i := 0; time.Now().Before(end); i++ {
				id := fmt.Sprintf("%d-%d", client, i)
				w := dial(t, p.addr())
				w.send("POST / HTTP/1.1\r\nHost: a.test\r\nX-Id: " + id + "\r\nContent-Length: 4\r\n\r\nbody")
				m, err := readResponse(w.r, "POST")
				w.Close()
				if err != nil || m.status() != 200 {
					late.Add(1)
					t.Errorf("%s: got %v, %v, want 200", id, m, err)
				}
				if got := app.seen(id); got != 1 {
					t.Errorf("the app received %s %d times, want 1", id, got)
				}
				time.Sleep(pause) // wait for about the keep-alive timeout
			}
		})
	}
	all.Wait()
}
