package conformance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The clients in this file make the sidecar use a large amount of memory, because they send slowly
// or do not read (docs/bounds.md, "Memory budget").

const (
	// attackers is the number of connections of an attack.
	attackers = 64
	// maxHeldMemory is the maximum growth of memory, in bytes, in a container with a memory limit
	// of 64 MiB.
	maxHeldMemory = 50 << 20
)

// A memoryAttack is the input of a single connection.
type memoryAttack struct {
	name       string
	http       int  // HTTP version: 1 or 2
	notReading bool // the client does not read
	make       func(a *attacker)
}

var memoryAttacks = []memoryAttack{
	{"990 indexed fields in each of 250 requests", 2, false, func(a *attacker) {
		a.requests(250, "/wait", slices.Repeat([]string{"a: b"}, 990)...)
	}},
	{"250 requests with a long indexed field", 2, false, func(a *attacker) {
		a.requests(250, "/wait", slices.Repeat([]string{"c: " + strings.Repeat("v", 3900)}, 220)...)
	}},
	{"250 requests with 15 indexed X-Forwarded-For fields", 2, false, func(a *attacker) {
		a.requests(250, "/wait", slices.Repeat([]string{"x-forwarded-for: " + strings.Repeat("v", 3900)}, 15)...)
	}},
	{"long fields", 2, false, func(a *attacker) {
		for range 4 {
			a.largeHeaders(true)
		}
	}},
	{"a long header block that does not end", 2, false, func(a *attacker) { a.largeHeaders(false) }},
	{"250 bodies that are not read", 2, false, func(a *attacker) { a.bodies(250) }},
	{"20 responses that are not read", 2, true, func(a *attacker) { a.requests(20, "/stream/10000000") }},
	{"99 informational responses that are not read", 2, true, func(a *attacker) { a.requests(1, "/informational") }},
	{"990 fields", 1, false, func(a *attacker) { a.lines("/wait", strings.Repeat("a: b\r\n", 990)+"\r\n") }},
	{"long fields", 1, false, func(a *attacker) { a.lines("/wait", longLines+"\r\n") }},
	{"a long header section that does not end", 1, false, func(a *attacker) { a.lines("/wait", longLines) }},
	{"a response that is not read", 1, true, func(a *attacker) { a.lines("/stream/10000000", "\r\n") }},
	{"99 informational responses that are not read", 1, true, func(a *attacker) { a.lines("/informational", "\r\n") }},
}

// longLines contains fields with a total size of 900 KB.
var longLines = strings.Repeat("x-long: "+strings.Repeat("y", 1000)+"\r\n", 900)

func (a *attacker) lines(path, rest string) {
	io.WriteString(a.out, "GET "+path+" HTTP/1.1\r\nHost: a.test\r\n"+rest)
}

func (a *attacker) requests(n int, path string, fields ...string) {
	for range n {
		a.open(true, asks("GET", path, fields...)...)
	}
}

// bodies opens n requests and sends the first 64 KB of their bodies.
func (a *attacker) bodies(n int) {
	for range n {
		a.open(false, asks("POST", "/wait")...)
		for range 4 {
			a.framer.WriteData(a.stream, false, make([]byte, 16000))
		}
	}
}

// largeHeaders adds a header block of 900 KB.
func (a *attacker) largeHeaders(end bool) {
	a.stream = max(a.stream+2, 3)
	a.encode(asks("GET", "/wait")...)
	for range 75 {
		a.block.Write(literal("x-long", 12000))
	}
	a.raw(http2.FrameHeaders, http2.FlagHeadersEndStream, a.stream, a.block.Next(16000))
	for a.block.Len() > 0 {
		part := a.block.Next(16000)
		var flags http2.Flags
		if end && a.block.Len() == 0 {
			flags = http2.FlagContinuationEndHeaders
		}
		a.raw(http2.FrameContinuation, flags, a.stream, part)
	}
}

// input returns the bytes that a connection sends.
func (m *memoryAttack) input() []byte {
	var b bytes.Buffer
	a := &attacker{out: bufio.NewWriter(&b)}
	a.framer = http2.NewFramer(a.out, nil)
	a.framer.AllowIllegalWrites = true
	a.encoder = hpack.NewEncoder(&a.block)
	if m.http == 2 {
		io.WriteString(a.out, http2.ClientPreface)
		a.framer.WriteSettings()
	}
	m.make(a)
	a.out.Flush()
	return b.Bytes()
}

// attackMany runs an attack on many connections at the same time. It closes the connections
// after each honest client has received more responses. The sidecar may close the connections
// earlier.
func (v *victim) attackMany(secure bool, m *memoryAttack) {
	const more = 20
	input := m.input()
	for range attackers {
		c, err := net.Dial("tcp", v.addr())
		if secure {
			protocol := map[int]string{1: "http/1.1", 2: "h2"}[m.http]
			c, err = tls.Dial("tcp", v.tlsAddr(), unverified(func(c *tls.Config) { c.NextProtos = []string{protocol} }))
		}
		if err != nil {
			v.t.Errorf("%s: %v", m.name, err)
			continue
		}
		defer c.Close()
		go func() {
			_, _ = c.Write(input)
			if !m.notReading {
				_, _ = io.Copy(io.Discard, c)
			}
		}()
	}
	for _, h := range v.honest {
		n := h.count()
		poll(v.t, m.name+": clients are served", func() error {
			if got := h.count() - n; got < more {
				return fmt.Errorf("%s: got %d responses, want %d", h.protocol, got, more)
			}
			return nil
		})
	}
}

func (h *honest) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answered
}

var memoryMetric = regexp.MustCompile(`(?m)^queue_proxy_request_memory_bytes (\S+)$`)

// requestMemory returns the number of bytes that requests hold.
func (v *victim) requestMemory() (int, error) {
	c := dial(v.t, local(v.port.metrics))
	defer c.Close()
	m := memoryMetric.FindStringSubmatch(c.ask("/metrics", "Connection: close").Body)
	if m == nil {
		return 0, errNotYet
	}
	n, err := strconv.ParseFloat(m[1], 64)
	return int(n), err
}

// awaitMemoryRelease waits until requests hold only the memory that the honest clients need.
func (v *victim) awaitMemoryRelease(name string) {
	v.t.Helper()
	poll(v.t, name+": memory is released", func() error {
		if n, err := v.requestMemory(); err != nil || n > 256<<10 {
			return fmt.Errorf("requests use %d bytes of memory, %v", n, err)
		}
		return nil
	})
}

func TestMemoryAttacksLeaveOtherClientsServed(t *testing.T) {
	for app, secure := range map[string]bool{"h1": false, "both": true} {
		t.Run(fmt.Sprintf("TLS %t", secure), func(t *testing.T) {
			v := newVictim(t, 0, app, "GOMEMLIMIT="+strconv.Itoa(smallRuntime))
			for i := range memoryAttacks {
				m := &memoryAttacks[i]
				name := fmt.Sprintf("HTTP/%d, %s", m.http, m.name)
				v.runAttack(name, maxHeldMemory, false, func() { v.attackMany(secure, m) })
				v.awaitMemoryRelease(name)
			}
		})
	}
}

// The sidecar closes connections because of the memory budget while other connections continue to
// send. The sum of all bodies is seven times the budget.
func TestBodiesOnManyConnectionsFitSmallPod(t *testing.T) {
	const connections, streams, more = 800, 4, 20
	// The limit allows for closed connections, which release their memory with a delay on a busy machine.
	const maxUsed = smallPod / 2
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %t", secure), func(t *testing.T) {
			v := newVictim(t, 0, "h2", "GOMEMLIMIT="+strconv.Itoa(smallRuntime))
			attack := memoryAttack{http: 2, make: func(a *attacker) { a.bodies(streams) }}
			input, addr := attack.input(), v.addr()
			if secure {
				addr = v.tlsAddr()
			}
			var all connectionGroup
			defer func() { all.close() }()
			for range connections {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, c.(*net.TCPConn))
				go sendRequest(c, secure, "h2", input)
			}
			most := 0
			for _, h := range v.honest {
				n := h.count()
				v.poll("clients are served", func() error {
					if used, err := v.requestMemory(); err == nil {
						most = max(most, used)
					}
					if got := h.count() - n; got < more {
						return fmt.Errorf("%s: got %d responses, want %d", h.protocol, got, more)
					}
					if v.hasMetric(`queue_proxy_bounds_total{bound="memory"} 0`) == nil {
						return errors.New("no connection was closed")
					}
					return nil
				})
			}
			if t.Logf("requests use up to %d KB of memory", most>>10); most > maxUsed {
				t.Errorf("requests use up to %d KB of memory, want at most %d", most>>10, maxUsed>>10)
			}
			v.honestAnswers("attack", false)
			all.close()
			v.awaitMemoryRelease("attack")
		})
	}
}

// A gate blocks requests until a given number of requests has arrived.
type gate struct {
	most    int64
	waiting atomic.Int64
	open    chan struct{}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if g.waiting.Add(1) == g.most {
		close(g.open)
	}
	<-g.open
	io.WriteString(w, "ok")
}

// 1000 concurrent requests are the highest legitimate load of a small pod.
func TestManyWaitingRequestsAreServed(t *testing.T) {
	const clients, streams = 4, 250
	p := newProxy(t)
	p.appSpeaking(&gate{most: clients * streams, open: make(chan struct{})}, "h1")
	p.start(inSmallPod("REQUEST_LOG=false")...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for range clients {
		c := httpClient(t, "h2c")
		c.Transport.(*http.Transport).MaxConnsPerHost = 1
		for range streams {
			all.Go(func() {
				r, _ := http.NewRequestWithContext(ctx, "GET", p.url("/"), nil)
				answer, err := c.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				defer answer.Body.Close()
				if answer.StatusCode != 200 {
					t.Errorf("got %s, want 200", answer.Status)
				}
			})
		}
	}
	all.Wait()
}
