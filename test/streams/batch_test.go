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

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// patience is the maximum time that a batch waits for one event. Without a defect, no wait
// takes that long.
var patience = flag.Duration("patience", time.Minute, "maximum duration of each wait")

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

// exchange returns the exchange of a request. b.mu must be held.
func (b *batch) exchange(path string) *exchange {
	n, _ := strconv.Atoi(path[1:])
	return b.exchanges[n]
}

// violation records frames that no schedule explains. b.mu must be held.
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
	b.proxy = proxytest.Start(b.t, app, func(p *proxy.Proxy, o *proxytest.Options) {
		p.Limit = proxy.NewLimit(len(schedules), len(schedules))
		o.UnknownApp = !b.http1
	})
	var shared *conn
	if !b.alone {
		// The application answers one request first. After ENHANCE_YOUR_CALM, a GET request is
		// repeated only if the connection has received a response.
		shared = b.dial()
		b.add(schedule{clientHeadEnd, appHeadEnd}, shared)
		b.play()
		b.exchanges[0].want.toConn = ".*" // any frames are accepted, because GOAWAY depends on the other schedules
	}
	for _, s := range schedules {
		c := shared
		if b.alone {
			c = b.dial()
		}
		b.add(s, c)
	}
	b.play()
	b.audit()
}

// add adds an exchange. Its client uses the connection c.
func (b *batch) add(s schedule, c *conn) {
	x := &exchange{batch: b, path: "/" + strconv.Itoa(len(b.exchanges)), events: s, conn: c, want: model{http1: b.http1, alone: b.alone}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.exchanges = append(b.exchanges, x)
}

// play performs all events that have not been performed yet.
func (b *batch) play() {
	for b.turn() {
		b.settle()
	}
}

// turn performs the next event of each schedule. It returns false if all events were performed.
func (b *batch) turn() (more bool) {
	acted := false
	for _, x := range b.exchanges {
		if x.performed == len(x.events) || x.failed {
			continue
		}
		more = true
		e, content := x.events[x.performed], contentOf(x.performed)
		b.mu.Lock()
		x.want, _ = x.want.after(e)
		x.performed++
		b.mu.Unlock()
		if !e.byProxy() {
			x.perform(e, content)
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
	return more
}

// act performs an action of the proxy, in the order of pkg/sidecar.
func (b *batch) act(e event) {
	b.proxy.Queue.Drain.Begin(true)
	b.proxy.HTTP2.GoAway()
	if e == proxyAbort {
		b.proxy.Queue.Drain.Abort()
	}
}

// settle waits until all frames have arrived. If they do not arrive, it reports an error
// and stops the other schedules.
func (b *batch) settle() {
	b.t.Helper()
	for end := time.Now().Add(*patience); ; time.Sleep(200 * time.Microsecond) {
		late := time.Now().After(end)
		if b.settled(late) {
			return
		}
		if late {
			b.t.Errorf("not all frames arrived within %v", *patience)
			return
		}
	}
}

// settled reports whether all frames have arrived. If report is true, it reports an error
// for each frame that has not arrived.
func (b *batch) settled(report bool) bool {
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
				x.events, x.performed, x.client, x.app, x.conn.trace, x.want.toClient, x.want.toApp, x.want.toConn)
		}
	}
	for _, v := range b.violations {
		b.t.Error(v)
	}
	b.violations = nil
	return all
}

// hasReceived reports whether both peers of an exchange have received the frames that the model
// predicts. b.mu must be held.
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
	b.proxy.WantReleased(-1) // goroutines are not counted here, because TestMain counts them
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
