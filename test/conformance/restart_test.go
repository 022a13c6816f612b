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

// Apps that restart, and apps that close their connections: docs/promises.md 3.6, 3.7.

// An app that is killed and started again and again under load: every client
// gets the app's answer or the reason why there is none.
func TestEveryClientGetsAnAnswerOrAReasonWhileTheAppRestarts(t *testing.T) {
	alongside(t)
	for name, hard := range map[string]bool{"FIN": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start("CONNECT_RETRY=30ms")
			ledger := newLedger()
			app := &restarting{p: p, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					time.Sleep(10 * time.Millisecond) // real time: the app works on it
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
				// Real time: the pace at which the app ends and starts.
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
					kinds["cut in the midst"]++
				default:
					t.Errorf("neither an answer nor a reason: %v", a)
				}
				if got := ledger.count(a.id); got > 1 && a.client != "h2c" {
					kinds["sent twice"]++
				}
			}
			for _, id := range c.posts() {
				if got := ledger.count(id); got > 1 {
					t.Errorf("the app has seen the POST %s %d times", id, got)
				}
			}
			t.Logf("%v", kinds)
		})
	}
}

// posts returns the ids of the POSTs.
func (c *traffic) posts() (ids []string) {
	for _, a := range c.attempts() {
		if a.method == "POST" {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// A restart that is shorter than CONNECT_RETRY is not noticed by those who come
// while nothing listens.
func TestARestartShorterThanCONNECT_RETRYIsBridged(t *testing.T) {
	alongside(t)
	for _, protocol := range both {
		for _, method := range []string{"GET", "POST"} {
			t.Run(protocol+"/"+method, func(t *testing.T) {
				p := newProxy(t)
				p.start("CONNECT_RETRY=10s")
				ledger := newLedger()
				app := &restarting{p: p, handler: ledger}
				app.start()
				client := httpClient(t, protocol)
				for round := range 3 {
					app.kill()
					p.forgotten(protocol)
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
							t.Fatalf("an answer before there is an app: %+v", <-done)
						}
					})
					app.start()
					for range 10 {
						if r := receive(t, "an answer", done); r.err != nil || r.status != "200 OK" {
							t.Errorf("round %d: got %q, %v, want the app's 200", round, r.status, r.err)
						}
					}
					for _, id := range ids {
						if got := ledger.count(id); got != 1 {
							t.Errorf("the app has seen %s %d times, want once", id, got)
						}
					}
				}
			})
		}
	}
}

// A restart that takes longer is told, after that time and with its word.
func TestARestartLongerThanCONNECT_RETRYIsAnswered(t *testing.T) {
	p := newProxy(t)
	p.start("CONNECT_RETRY=300ms")
	began := time.Now()
	m := dial(t, p.addr()).ask("/")
	checkOurs(t, p, m, 502, "connection_refused", "app-unreachable")
	if took := time.Since(began); took < 250*time.Millisecond || took > 300*time.Millisecond+slack {
		t.Errorf("it took %v, want 300ms", took)
	}
}

// A careless app closes kept-alive connections whenever it likes, without a word.
type careless struct {
	app   *bareApp
	mu    sync.Mutex
	count map[string]int
}

func (a *careless) note(m *message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count[m.get("X-Id")]++
}

func (a *careless) seen(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count[id]
}

// Not one GET fails, and the app sees not one POST twice, whenever and however
// it closes its idle connections.
func TestAnAppThatClosesIdleConnectionsAtRandomCostsNothing(t *testing.T) {
	alongside(t)
	for name, reset := range map[string]bool{"FIN": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			app := &careless{count: map[string]int{}}
			var closes atomic.Int32
			app.app = p.bare(func(c *bareConn, m *message) bool {
				app.note(m)
				c.send(ok)
				// A little after its answer, at times: just when the next request comes.
				if rand.IntN(3) == 0 {
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // real time
					if c.r.Buffered() > 0 {
						return true // it has come already
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
					t.Errorf("a GET failed: %v", a)
				case a.method == "POST" && seen > 1:
					t.Errorf("the app has seen a POST %d times: %v", seen, a)
				case a.method == "POST" && (!a.whole || a.status != 200):
					// It may have been read in the moment of the close: only the client knows
					// whether it can be sent again. It has to be told.
					if a.status != 502 || a.word != "app-reset" {
						t.Errorf("a POST got neither an answer nor a reason: %v", a)
					}
					failed++
				}
			}
			t.Logf("%d requests, %d connections closed by the app, %d POSTs told app-reset", len(c.attempts()), closes.Load(), failed)
		})
	}
}

// An app that announces how long it keeps idle connections is believed.
func TestAnAnnouncedKeepAliveIsRespected(t *testing.T) {
	p := newProxy(t)
	var late atomic.Int32
	app := &careless{count: map[string]int{}}
	app.app = p.bare(func(c *bareConn, m *message) bool {
		app.note(m)
		c.send("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=2\r\nContent-Length: 2\r\n\r\nok")
		// It closes after its two seconds, and never looks at what comes then.
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
			pause := time.Duration(1900+client*40) * time.Millisecond // around the timeout
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
					t.Errorf("the app has seen %s %d times, want once", id, got)
				}
				time.Sleep(pause) // real time: the pace of a client
			}
		})
	}
	all.Wait()
}
