package streams_test

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// patience bounds each wait of a batch. Only a defect reaches it.
var patience = flag.Duration("patience", time.Minute, "bound on each wait")

// A batch runs a list of schedules concurrently. In each turn, it performs the next event of
// each schedule. Then it waits for the frames that the model predicts.
type batch struct {
	t     *testing.T
	http1 bool // the application uses HTTP/1.1
	alone bool // each schedule has its own connections

	proxy      *proxytest.Proxy
	appStreams uint32 // SETTINGS_MAX_CONCURRENT_STREAMS of the application
	clients    []*conn
	readers    sync.WaitGroup

	mu         sync.Mutex
	apps       []*conn
	exchanges  []*exchange
	violations []string
	patterns   map[string]*regexp.Regexp
}

// exchange returns the exchange of a request. b.mu is held.
func (b *batch) exchange(path string) *exchange {
	n, _ := strconv.Atoi(path[1:])
	return b.exchanges[n]
}

// violation records frames that no schedule explains. b.mu is held.
func (b *batch) violation(format string, args ...any) {
	b.violations = append(b.violations, fmt.Sprintf(format, args...))
}

// run runs schedules.
func (b *batch) run(schedules []schedule) {
	b.appStreams, b.patterns = 1000, map[string]*regexp.Regexp{}
	if b.alone {
		b.appStreams = 1
	}
	serve := b.serveHTTP2
	if b.http1 {
		serve = b.serveHTTP1
	}
	app := harness.NewApp(b.t, serve)
	b.proxy = proxytest.Start(b.t, app, func(p *queue.Proxy, o *proxytest.Options) {
		p.Limit = queue.NewLimit(len(schedules), len(schedules))
		o.UnknownApp = !b.http1
	})
	var shared *conn
	longest := 0
	for i, s := range schedules {
		x := &exchange{batch: b, path: "/" + strconv.Itoa(i), events: s, conn: shared, want: model{http1: b.http1, alone: b.alone}}
		if shared == nil || b.alone {
			shared = b.dial()
			x.conn = shared
		}
		b.exchanges = append(b.exchanges, x)
		longest = max(longest, len(s))
	}
	for step := range longest {
		b.turn(step)
		b.settle(step)
	}
	b.audit()
}

// turn performs one event of each schedule.
func (b *batch) turn(step int) {
	acted := false
	for _, x := range b.exchanges {
		if step >= len(x.events) || x.failed {
			continue
		}
		e := x.events[step]
		b.mu.Lock()
		x.want, _ = x.want.after(e)
		b.mu.Unlock()
		if !e.byProxy() {
			x.perform(e, contentOf(step))
			continue
		}
		if !acted {
			acted = true
			b.act(e)
		}
	}
	b.mu.Lock()
	conns := append([]*conn(nil), b.clients...)
	conns = append(conns, b.apps...)
	b.mu.Unlock()
	for _, c := range conns {
		c.ping()
	}
}

// act performs an action of the proxy, in the order of pkg/sidecar.
func (b *batch) act(e event) {
	b.proxy.Queue.Drain.Begin(true)
	b.proxy.HTTP2.GoAway()
	if e == proxyAbort {
		b.proxy.Queue.Drain.Abort()
	}
}

// settle waits until all frames have arrived. It reports and stops the other schedules.
func (b *batch) settle(step int) {
	b.t.Helper()
	for end := time.Now().Add(*patience); ; time.Sleep(200 * time.Microsecond) {
		late := time.Now().After(end)
		if b.settled(step, late) {
			return
		}
		if late {
			b.t.Errorf("event %d of a batch: not all frames arrived within %v", step+1, *patience)
			return
		}
	}
}

// settled reports whether all frames have arrived. report reports the frames that have not.
func (b *batch) settled(step int, report bool) bool {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	all, reported := true, 0
	for _, c := range append(slices.Clone(b.clients), b.apps...) {
		all = all && !c.pinged
	}
	for _, x := range b.exchanges {
		if x.failed || b.hasReceived(x) {
			continue
		}
		if all = false; report {
			x.failed = true
			if reported++; reported > 10 {
				continue
			}
			b.t.Errorf("%v: after event %d: got %q at the client, %q at the application and %q for the connection, want %q, %q and %q",
				x.events, min(step+1, len(x.events)), x.client, x.app, x.conn.trace, x.want.toClient, x.want.toApp, x.want.toConn)
		}
	}
	for _, v := range b.violations {
		b.t.Error(v)
	}
	b.violations = nil
	return all
}

// hasReceived reports whether both peers of an exchange have received the frames that the
// model predicts. b.mu is held.
func (b *batch) hasReceived(x *exchange) bool {
	conn := ""
	if x.conn.trace != "" {
		conn = " " + string(x.conn.trace)
	}
	return b.matches(x.want.toClient, string(x.client)) && b.matches(x.want.toApp, string(x.app)) && b.matches(x.want.toConn, conn)
}

func (b *batch) matches(pattern, text string) bool {
	if pattern == text {
		return true
	}
	r := b.patterns[pattern]
	if r == nil {
		r = regexp.MustCompile("^(" + pattern + ")$")
		b.patterns[pattern] = r
	}
	return r.MatchString(text)
}

// audit closes the connections of the clients. It checks that all slots are released and that
// there is one observation for each request.
func (b *batch) audit() {
	b.t.Helper()
	for _, c := range b.clients {
		_ = c.tcp.Close()
	}
	b.readers.Wait()
	b.proxy.WantReleased(-1) // TestMain counts the goroutines
	b.proxy.Shutdown()
	observed := map[string]int{}
	for _, o := range b.proxy.Observed(len(b.exchanges)) {
		observed[o.Target]++
	}
	for _, x := range b.exchanges {
		if got := observed[x.path]; got != 1 {
			b.t.Errorf("%v: got %d observations, want 1", x.events, got)
		}
	}
}
