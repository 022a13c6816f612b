package nethttp_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// hinting is an app that gives so many hints, and then an answer.
func hinting(hints int, fields http.Header) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ok" {
			return
		}
		for name, values := range fields {
			w.Header()[name] = values
		}
		for range hints {
			w.WriteHeader(http.StatusEarlyHints)
			if r.Context().Err() != nil {
				return
			}
		}
	}
}

// All that is pooled or shared serves somebody else by then.
func TestAHintThatComesWhenItsRequestIsOverReachesNobody(t *testing.T) {
	fields := http.Header{}
	for i := range 40 {
		fields[http.CanonicalHeaderKey("X-"+strings.Repeat("a", i+1))] = []string{"x"}
	}
	for name, port := range map[string]func(*testing.T) int{
		"HTTP/1.1": func(t *testing.T) int { return serve(t, true, false, hinting(90, fields)) },
		"HTTP/2":   func(t *testing.T) int { return serve(t, false, true, hinting(1000, fields)) },
	} {
		t.Run("an app in "+name, func(t *testing.T) {
			proxy := start(t, port(t), func(p *queue.Proxy, _ *proxytest.Options) { p.Clocks.Request = 30 * time.Millisecond })
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					client := proxy.Client("HTTP/2")
					for i := range 30 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10*5)*time.Millisecond)
						r, _ := http.NewRequestWithContext(ctx, "GET", "http://"+proxy.Address+"/", nil)
						if r, err := client.Do(r); err == nil {
							r.Body.Close()
						}
						cancel()
					}
				})
			}
			all.Wait()
		})
	}
}

// A client that takes nothing: what is given to it is more than all sockets hold.
func TestAClientThatTakesNoHintsIsEndedByTheClocksAndHoldsUpNobody(t *testing.T) {
	many := http.Header{"Link": {strings.Repeat("x", 60<<10)}}
	for name, c := range map[string]struct {
		clocks queue.Clocks
		reason queue.Reason
	}{
		"request": {queue.Clocks{Request: time.Second}, queue.RequestTimeout},
		"send":    {queue.Clocks{Send: time.Second}, queue.IdleTimeout},
	} {
		clocks := func(p *queue.Proxy, _ *proxytest.Options) { p.Clocks = c.clocks }
		for protocol, build := range map[string]func(t *testing.T) *proxytest.Proxy{
			"HTTP/1.1": func(t *testing.T) *proxytest.Proxy { return startHandler(t, hinting(90, many), clocks) },
			"HTTP/2":   func(t *testing.T) *proxytest.Proxy { return start(t, serve(t, false, true, hinting(90, many)), clocks) },
		} {
			t.Run(name+", an app in "+protocol, func(t *testing.T) {
				proxy := build(t)
				ok := func() {
					if c.clocks.Request > 0 {
						return // a busy host may take as long
					}
					if r, err := proxy.Client("HTTP/1.1").Get("http://" + proxy.Address + "/ok"); err != nil || r.StatusCode != 200 {
						t.Errorf("got %v, %v, want 200", r, err)
					}
				}
				ok()
				d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
					return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
				}}
				client, err := d.Dial("tcp", proxy.Address)
				harness.NoError(t, err)
				defer client.Close()
				io.WriteString(client, "GET /hints HTTP/1.1\r\nHost: a\r\n\r\n")
				proxy.InFlight(1)
				ok()
				proxy.InFlight(0)
				for _, o := range proxy.Observed(1) {
					if o.Target == "/hints" && o.Reason != c.reason {
						t.Errorf("got %v, want %v", o.Reason, c.reason)
					}
				}
			})
		}
	}
}
