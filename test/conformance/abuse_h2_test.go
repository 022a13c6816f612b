package conformance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// This file contains attacks by HTTP/2 clients (docs/bounds.md, "HTTP/2"). During each
// attack, the tests check that other clients receive responses, that the number of
// requests in the user container is at most CONTAINER_CONCURRENCY, and that the memory is
// limited. After the attack, all counts must return to their initial values.

// An attacker is the HTTP/2 connection of a malicious client. It does not validate the frames
// that it sends, and ignores the frames that it receives.
type attacker struct {
	net.Conn
	out     *bufio.Writer
	framer  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32        // ID of the last opened stream
	drained chan struct{} // closed when all input was read; nil if the attacker does not read
}

// attacker connects by h2c or TLS h2. If notReading is true, the attacker does not read from
// the connection.
func (p *proxy) attacker(protocol string, notReading bool, settings ...http2.Setting) (*attacker, error) {
	p.t.Helper()
	var c net.Conn
	var err error
	if protocol == "h2c" {
		c, err = net.Dial("tcp", p.addr())
	} else {
		c, err = tls.Dial("tcp", p.tlsAddr(), unverified(func(c *tls.Config) { c.NextProtos = []string{"h2"} }))
	}
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	a := &attacker{Conn: c, out: bufio.NewWriterSize(c, 64<<10)}
	a.framer = http2.NewFramer(a.out, nil)
	a.framer.AllowIllegalWrites = true
	a.encoder = hpack.NewEncoder(&a.block)
	if !notReading {
		a.drained = make(chan struct{})
		go func() {
			defer close(a.drained)
			io.Copy(io.Discard, c) // Copy returns when the connection ends
		}()
	}
	io.WriteString(a.out, http2.ClientPreface)
	a.framer.WriteSettings(settings...)
	return a, nil
}

// open sends a request header section in one HEADERS frame.
func (a *attacker) open(end bool, fields ...string) error {
	if a.stream == 0 {
		a.stream = 1
	} else {
		a.stream += 2
	}
	a.encode(fields...)
	return a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: a.block.Bytes(), EndStream: end, EndHeaders: true})
}

// encode writes a header section to block.
func (a *attacker) encode(fields ...string) {
	a.block.Reset()
	for _, f := range fields {
		name, value, _ := strings.Cut(f[1:], ": ")
		a.encoder.WriteField(hpack.HeaderField{Name: f[:1] + name, Value: value})
	}
}

// asks returns the fields of a request header section.
func asks(method, path string, fields ...string) []string {
	return append([]string{":method: " + method, ":scheme: http", ":authority: a.test", ":path: " + path}, fields...)
}

// A victim is an attacked pod. Its user container counts requests, and honest clients send
// requests all the time.
type victim struct {
	*proxy
	limit  int // CONTAINER_CONCURRENCY
	app    *countingApp
	honest []*honest
}

// countingApp responds to most requests immediately. It responds to GET /hold after 10 ms or when
// the client closes the connection, to /wait when the client closes the connection, to
// /informational after 99 long informational responses, and to POST after the complete body. It
// records the number of concurrent requests if there is a limit.
type countingApp struct {
	limit int
	came  atomic.Int64 // number of requests except for /now

	mu       sync.Mutex
	last     int
	running  map[int]bool // arrival numbers of the current requests
	most     int          // maximum number of concurrent requests; a request is not counted if it ended within a second after a later request arrived
	never    int          // number of requests for /never
	arrivals int
}

func (a *countingApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/now" {
		a.came.Add(1)
	}
	if a.limit > 0 {
		defer a.leave(a.enter(r.Context()))
	}
	switch {
	case r.URL.Path == "/never":
		a.mu.Lock()
		a.never++
		a.mu.Unlock()
	case r.URL.Path == "/hold":
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	case r.URL.Path == "/wait":
		<-r.Context().Done()
	case r.URL.Path == "/informational":
		w.Header().Set("Link", strings.Repeat("x", 27000))
		for range 99 {
			w.WriteHeader(http.StatusEarlyHints)
		}
		panic(http.ErrAbortHandler) // close the connection, so that it is not reused
	case strings.HasPrefix(r.URL.Path, "/stream/"):
		n, _ := strconv.Atoi(r.URL.Path[len("/stream/"):])
		io.CopyN(w, zero{}, int64(n))
		return
	case r.Method == "POST":
		io.Copy(io.Discard, r.Body)
	}
	io.WriteString(w, "ok")
}

// enter counts a request. If the limit is exceeded, enter waits up to one second for earlier
// requests to end, because a request ends shortly after its client closes the connection. The
// end of a request is visible when its context is canceled.
func (a *countingApp) enter(ctx context.Context) (me int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	a.arrivals++
	me = a.last
	a.running[me] = true
	end := time.Now().Add(time.Second)
	for a.before(me) >= a.limit && time.Now().Before(end) {
		a.mu.Unlock()
		select { // wait until fewer requests are running
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
		a.mu.Lock()
		if ctx.Err() != nil {
			return me
		}
	}
	a.most = max(a.most, a.before(me)+1)
	return me
}

// await waits until n requests have arrived.
func (a *countingApp) await(t *testing.T, n int) {
	t.Helper()
	poll(t, fmt.Sprintf("the app received %d requests", n), func() error {
		if got := a.came.Load(); got < int64(n) {
			return fmt.Errorf("got %d", got)
		}
		return nil
	})
}

func (a *countingApp) before(me int) (n int) {
	for other := range a.running {
		if other < me {
			n++
		}
	}
	return n
}

func (a *countingApp) leave(me int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, me)
}

// newVictim starts a pod and one honest client for each protocol.
func newVictim(t *testing.T, limit int, app string, env ...string) *victim {
	t.Helper()
	p := newProxy(t)
	writeCertificate(t, p.dir)
	v := &victim{proxy: p, limit: limit, app: &countingApp{limit: limit, running: map[int]bool{}}}
	p.appSpeaking(v.app, app)
	p.start(append([]string{"METRICS_NAMES=default", "CONTAINER_CONCURRENCY=" + strconv.Itoa(limit)}, env...)...)
	v.auditAtEnd()
	for _, protocol := range []string{"h1", "h2c", "tls-h2"} {
		v.honest = append(v.honest, newHonest(t, p, protocol))
	}
	return v
}

// An honest client sends a request at intervals of a few milliseconds.
type honest struct {
	protocol string
	mu       sync.Mutex
	answered int           // number of responses with status 200
	turned   int           // number of responses with status 503 and reason queue-full
	longest  time.Duration // maximum latency
	wrong    error
}

func newHonest(t *testing.T, p *proxy, protocol string) *honest {
	h := &honest{protocol: protocol}
	client := httpClient(t, protocol)
	client.Timeout = patience
	url := p.url("/now")
	if protocol == "tls-h2" {
		url = "https://" + p.tlsAddr() + "/now"
	}
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for {
			began := time.Now()
			answer, err := client.Get(url)
			status, why := 0, ""
			if err == nil {
				io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				status, why = answer.StatusCode, word(answer.Header.Get("Proxy-Status"))
			}
			h.mu.Lock()
			switch {
			case status == 200:
				h.answered++
			case status == 503 && why == "queue-full":
				h.turned++
			case !p.ended():
				h.wrong = fmt.Errorf("status %d, word %q, %v", status, why, err)
			}
			h.longest = max(h.longest, time.Since(began))
			h.mu.Unlock()
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
			}
		}
	}()
	return h
}

// take returns the results since the last call and resets them.
func (h *honest) take() (answered, turned int, longest time.Duration, wrong error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answered, turned, longest, wrong = h.answered, h.turned, h.longest, h.wrong
	h.answered, h.turned, h.longest, h.wrong = 0, 0, 0, nil
	return answered, turned, longest, wrong
}

// resetPeakMemory resets VmHWM to the current resident size.
func (p *proxy) resetPeakMemory() {
	p.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0); err != nil {
		p.t.Fatal(err)
	}
}

// honestAnswers returns the results of the honest clients during an attack. The test fails if a
// request takes longer than patience. Status 503 is allowed only if the attacker competes for
// slots.
func (v *victim) honestAnswers(name string, contends bool) (answered, turned int, longest time.Duration) {
	for _, h := range v.honest {
		a, n, l, wrong := h.take()
		answered, turned, longest = answered+a, turned+n, max(longest, l)
		if wrong != nil {
			v.t.Errorf("%s: honest client over %s: %v", name, h.protocol, wrong)
		}
		if n > 0 && !contends {
			v.t.Errorf("%s: honest client over %s: got %d responses with status 503, want 0", name, h.protocol, n)
		}
		if l > patience {
			v.t.Errorf("%s: honest client over %s: response after %v, want at most %v", name, h.protocol, l, patience)
		}
	}
	return answered, turned, longest
}

// runAttack runs an attack and checks the limits of the sidecar. contends means that the attack
// fills the queue, so that honest clients may get status 503.
func (v *victim) runAttack(name string, memory int64, contends bool, attack func()) {
	t := v.t
	t.Helper()
	for _, h := range v.honest {
		h.take()
	}
	const some = 30 // number of goroutines and of files that the honest clients and the connections to the user container may use
	held := v.footprint()
	v.app.came.Store(0)
	v.resetPeakMemory()
	before, began := v.memory("VmRSS"), time.Now()
	attack()
	took := time.Since(began)
	grown := v.memory("VmHWM") - before
	if grown > memory {
		t.Errorf("%s: memory grew by %d KB, want at most %d", name, grown>>10, memory>>10)
	}
	v.awaitReleased(name, held, some)
	poll(t, name+": slots are released", func() error {
		if v.limit == 0 {
			return nil
		}
		v.app.mu.Lock()
		defer v.app.mu.Unlock()
		if n := len(v.app.running); n > len(v.honest) {
			return fmt.Errorf("the app is processing %d requests", n)
		}
		return nil
	})
	after := v.honest
	poll(t, name+": honest clients receive responses", func() error { // honest clients must receive status 200 again, even if they received status 503 before
		for _, h := range after {
			h.mu.Lock()
			n := h.answered
			h.mu.Unlock()
			if n == 0 {
				return fmt.Errorf("no response over %s", h.protocol)
			}
		}
		return nil
	})
	answered, turned, longest := v.honestAnswers(name, contends)
	v.app.mu.Lock()
	defer v.app.mu.Unlock()
	if v.app.most > v.limit && v.limit > 0 {
		t.Errorf("%s: the app had %d concurrent requests, want at most %d", name, v.app.most, v.limit)
	}
	if v.app.never > 0 {
		t.Errorf("%s: the app received %d invalid requests, want 0", name, v.app.never)
	}
	t.Logf("%-40s %5d ms, +%6d KB, honest clients: %d answered, %d rejected, maximum latency %d ms; app: %d requests, %d concurrent",
		name, took.Milliseconds(), grown>>10, answered, turned, longest.Milliseconds(), v.app.arrivals, v.app.most)
	v.app.most, v.app.arrivals = 0, 0
}

// flood calls the function do the given number of times. It opens a new connection when the
// sidecar closes the current one.
func (v *victim) flood(protocol string, notReading bool, times int, settings []http2.Setting, do func(a *attacker, i int) error) {
	v.t.Helper()
	var a *attacker
	for i := 0; i < times; i++ {
		if a == nil {
			var err error
			if a, err = v.attacker(protocol, notReading, settings...); err != nil {
				v.t.Fatalf("%s: %v", protocol, err)
			}
		}
		if err := do(a, i); err != nil {
			a.Close()
			a = nil
		}
	}
	if a != nil {
		a.finish()
	}
}

// finish closes the write side and returns when the sidecar has read all input or has closed
// the connection.
func (a *attacker) finish() {
	a.out.Flush()
	if w, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
	if a.drained == nil {
		io.Copy(io.Discard, a.Conn)
	} else {
		<-a.drained
	}
	a.Close()
}

// An h2Flood is a large number of frames of the same type.
type h2Flood struct {
	name       string
	times      int
	contends   bool // the requests of the flood compete for slots
	notReading bool // the attacker does not read
	settings   []http2.Setting
	do         func(a *attacker, i int) error
}

var errNext = errors.New("continue with a new connection")

// raw writes a frame without validation.
func (a *attacker) raw(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) error {
	return a.framer.WriteRawFrame(kind, flags, stream, payload)
}

// literal returns a field whose value has size bytes, as a literal without indexing and without
// Huffman coding (RFC 7541 section 6.2.2).
func literal(name string, size int) []byte {
	b := append([]byte{0, byte(len(name))}, name...)
	b = append(b, 127) // a length of 127 or more continues in groups of seven bits
	for n := size - 127; ; n >>= 7 {
		if n < 128 {
			b = append(b, byte(n))
			break
		}
		b = append(b, byte(n)|128)
	}
	return append(b, bytes.Repeat([]byte("v"), size)...)
}

func word32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// h2Floods lists the floods. The best-known attacks are first.
var h2Floods = []h2Flood{
	{"rapid reset (CVE-2023-44487)", 20000, true, false, nil, func(a *attacker, _ int) error {
		return errors.Join(a.open(true, asks("GET", "/hold")...), a.framer.WriteRSTStream(a.stream, http2.ErrCodeCancel))
	}},
	{"made you reset (CVE-2025-8671)", 10000, true, false, nil, func(a *attacker, i int) error {
		if err := a.open(true, asks("GET", "/hold")...); err != nil {
			return err
		}
		switch i % 4 { // each case makes the server reset a stream that is in progress
		case 0:
			return a.raw(http2.FrameWindowUpdate, 0, a.stream, word32(0))
		case 1:
			return errors.Join(a.raw(http2.FrameWindowUpdate, 0, a.stream, word32(1<<31-1)), a.raw(http2.FrameWindowUpdate, 0, a.stream, word32(1<<31-1)))
		case 2:
			return a.raw(http2.FrameData, 0, a.stream, []byte("x"))
		}
		return a.raw(http2.FramePriority, 0, a.stream, append(word32(a.stream), 0))
	}},
	{"endless CONTINUATION", 300, false, false, nil, func(a *attacker, i int) error {
		if a.stream == 0 {
			a.stream = 1
			a.encode(asks("GET", "/never")...)
			a.raw(http2.FrameHeaders, http2.FlagHeadersEndStream, 1, a.block.Bytes())
		}
		return a.raw(http2.FrameContinuation, 0, 1, literal("x-long", 12000))
	}},
	{"endless empty CONTINUATION", 20000, false, false, nil, func(a *attacker, i int) error {
		if a.stream == 0 {
			a.stream = 1
			a.encode(asks("GET", "/never")...)
			a.raw(http2.FrameHeaders, http2.FlagHeadersEndStream, 1, a.block.Bytes())
		}
		return a.raw(http2.FrameContinuation, 0, 1, nil)
	}},
	{"SETTINGS", 20000, false, false, nil, func(a *attacker, _ int) error { return a.framer.WriteSettings() }},
	{"SETTINGS without reading acknowledgements", 20000, false, true, nil, func(a *attacker, _ int) error { return a.framer.WriteSettings() }},
	{"SETTINGS that change 200 windows", 20000, true, false, nil, func(a *attacker, i int) error {
		for a.stream < 400 {
			if err := a.open(false, asks("POST", "/")...); err != nil {
				return err
			}
		}
		return a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i % 2 * 1000)})
	}},
	{"PING", 20000, false, false, nil, func(a *attacker, _ int) error { return a.framer.WritePing(false, [8]byte{}) }},
	{"PING without reading responses", 20000, false, true, nil, func(a *attacker, _ int) error { return a.framer.WritePing(false, [8]byte{}) }},
	{"PRIORITY of idle streams", 20000, false, false, nil, func(a *attacker, i int) error {
		return a.framer.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: uint32(2*i + 3), Weight: 15})
	}},
	{"WINDOW_UPDATE", 20000, false, false, nil, func(a *attacker, _ int) error { return a.framer.WriteWindowUpdate(0, 1) }},
	{"RST_STREAM of closed streams", 20000, false, false, nil, func(a *attacker, _ int) error {
		if a.stream == 0 {
			if err := a.open(true, asks("GET", "/now")...); err != nil {
				return err
			}
		}
		return a.framer.WriteRSTStream(1, http2.ErrCodeCancel)
	}},
	{"empty DATA", 20000, false, false, nil, func(a *attacker, _ int) error {
		if a.stream == 0 {
			if err := a.open(false, asks("POST", "/")...); err != nil {
				return err
			}
		}
		return a.framer.WriteData(1, false, nil)
	}},
	{"DATA that contains only padding", 20000, false, false, nil, func(a *attacker, _ int) error {
		if a.stream == 0 {
			if err := a.open(false, asks("POST", "/")...); err != nil {
				return err
			}
		}
		return a.raw(http2.FrameData, http2.FlagDataPadded, 1, append([]byte{255}, make([]byte, 255)...))
	}},
	{"more streams than the limit", 5000, true, false, nil, func(a *attacker, _ int) error { return a.open(true, asks("GET", "/hold")...) }},
	{"GOAWAY", 20000, false, false, nil, func(a *attacker, _ int) error { return a.framer.WriteGoAway(0, http2.ErrCodeNo, nil) }},
	{"a header section of 10 KB that decodes to 40 MB", 20, false, false, nil, func(a *attacker, _ int) error {
		a.encode(append(asks("GET", "/never"), "x: "+strings.Repeat("v", 4000))...)
		block := append(a.block.Bytes(), bytes.Repeat([]byte{0xbe}, 10000)...) // index 62 is the newest entry of the dynamic table
		a.raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 1, block)
		a.out.Flush()
		return errNext
	}},
	{"a header section of 4 MB", 2, false, false, nil, func(a *attacker, i int) error {
		a.encode(asks("GET", "/never")...)
		a.raw(http2.FrameHeaders, 0, 1, a.block.Next(16000))
		a.block.Write(literal("x-long", 4<<20))
		for a.block.Len() > 0 {
			if err := a.raw(http2.FrameContinuation, 0, 1, a.block.Next(16000)); err != nil {
				return err
			}
		}
		return errNext
	}},
	{"a dynamic table that grows and shrinks", 20000, false, false, nil, func(a *attacker, _ int) error {
		a.encode(asks("GET", "/now")...)
		if a.stream == 0 {
			a.stream = 1
		} else {
			a.stream += 2
		}
		block := append([]byte{0x20, 0x3f, 0xe1, 0x1f}, a.block.Bytes()...) // resize the dynamic table to 0 and then to 4096 bytes
		return errors.Join(a.raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, a.stream, block),
			a.framer.WriteRSTStream(a.stream, http2.ErrCodeCancel))
	}},
	{"malformed header sections", 2000, true, false, nil, func(a *attacker, i int) error {
		heads := [][]string{
			{":method: GET", ":scheme: http", ":authority: a.test"},
			{":method: GET", ":path: /never", ":authority: a.test"},
			{":scheme: http", ":path: /never", ":authority: a.test"},
			asks("GET", "/never", ":method: GET"),
			asks("GET", "/never", ":status: 200"),
			asks("GET", "/never", ":x: y"),
			{":method: GET", ":scheme: http", "x: y", ":path: /never", ":authority: a.test"},
			asks("GET", "/never", "X-Upper: y"),
			asks("GET", "/never", "connection: close"),
			asks("GET", "/never", "transfer-encoding: chunked"),
			asks("GET", "/never", "x: a\r\nb: c"),
			asks("GET", "/never", "x: a\x00b"),
			asks("GET", "/never", "x y: z"),
			asks("GET", "", "x: y"),
			asks("G ET", "/never"),
			asks("GET", "never"),
			asks("GET", "/never", "te: gzip"),
			asks("GET", "/never", "content-length: 5"), // the request has no body
			asks("GET", "/never", "content-length: 0", "content-length: 6"),
			asks("CONNECT", "/never"),
		}
		return a.open(true, heads[i%len(heads)]...)
	}},
	{"frames on invalid streams", 320, false, false, nil, func(a *attacker, i int) error {
		frames := []func() error{
			func() error { return a.raw(http2.FrameData, 0, 0, []byte("x")) },
			func() error { return a.raw(http2.FrameHeaders, 4, 0, nil) },
			func() error { return a.raw(http2.FrameHeaders, 4, 2, nil) },
			func() error { return a.raw(http2.FrameSettings, 0, 1, nil) },
			func() error { return a.raw(http2.FrameSettings, 0, 0, []byte("12345")) },
			func() error { return a.raw(http2.FrameSettings, 1, 0, []byte("123456")) },
			func() error { return a.raw(http2.FramePing, 0, 1, make([]byte, 8)) },
			func() error { return a.raw(http2.FramePing, 0, 0, make([]byte, 7)) },
			func() error { return a.raw(http2.FrameGoAway, 0, 1, make([]byte, 8)) },
			func() error { return a.raw(http2.FrameWindowUpdate, 0, 0, word32(0)) },
			func() error { return a.raw(http2.FrameContinuation, 4, 1, nil) },
			func() error { return a.raw(http2.FramePushPromise, 4, 1, make([]byte, 8)) },
			func() error { return a.raw(http2.FrameRSTStream, 0, 0, word32(0)) },
			func() error { return a.raw(http2.FrameRSTStream, 0, 1, word32(0)) },
			func() error { return a.raw(http2.FrameType(200), 255, 1, make([]byte, 16000)) },
			func() error { a.out.WriteString("\xff\xff\xff\x00\x00\x00\x00\x00\x01"); return nil },
		}
		if err := errors.Join(frames[i%len(frames)](), a.out.Flush()); err != nil {
			return err
		}
		return errNext
	}},
}

// maxFloodMemory is the maximum growth of memory, in bytes, during a flood.
const maxFloodMemory = 48 << 20

func TestHTTP2FloodsStayWithinLimits(t *testing.T) {
	for protocol, share := range map[string]int{"h2c": 1, "TLS h2": 4} { // share divides the number of repetitions, because TLS costs more CPU and does not change the frames
		t.Run(protocol, func(t *testing.T) {
			v := newVictim(t, 4, "both", "BODY_TIMEOUT=50ms")
			for _, f := range h2Floods {
				v.runAttack(f.name, maxFloodMemory, f.contends, func() {
					v.flood(protocol, f.notReading, max(f.times/share, min(f.times, 320)), f.settings, f.do)
				})
			}
		})
	}
}

// h2Bombs are attacks that use a large amount of memory with a small amount of input. The
// settings of this test disable all other limits.
var h2Bombs = []struct {
	name       string
	notReading bool
	do         func(a *attacker)
}{
	// Each header section has 300 bytes.
	{"30 header sections that decode to 900 KB each", false, func(a *attacker) {
		a.encode(append(asks("POST", "/"), "x: "+strings.Repeat("v", 4000))...)
		block := append(a.block.Bytes(), bytes.Repeat([]byte{0xbe}, 220)...)
		for i := range 30 {
			a.raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, uint32(2*i+1), block)
			a.encode(append(asks("POST", "/"), "x: "+strings.Repeat("v", 4000))...)
			block = append(a.block.Bytes(), bytes.Repeat([]byte{0xbe}, 220)...)
		}
	}},
	{"250 large responses with a window of 0", false, func(a *attacker) {
		a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for range 250 {
			a.open(true, asks("GET", "/stream/10000000")...)
		}
	}},
	{"250 large responses with windows of 1 byte", false, func(a *attacker) {
		a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		for range 250 {
			a.open(true, asks("GET", "/stream/10000000")...)
		}
		for range 40 {
			for i := range 250 {
				a.framer.WriteWindowUpdate(uint32(2*i+1), 1)
			}
		}
	}},
	{"250 large responses for an attacker that does not read", true, func(a *attacker) {
		a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		a.framer.WriteWindowUpdate(0, 1<<31-1-65535)
		for range 250 {
			a.open(true, asks("GET", "/stream/10000000")...)
		}
	}},
	{"250 bodies that are never complete", false, func(a *attacker) {
		for range 250 {
			a.open(false, asks("POST", "/")...)
			for range 4 {
				a.framer.WriteData(a.stream, false, make([]byte, 16000))
			}
		}
	}},
}

// maxBombMemory is the maximum growth of memory, in bytes, during a bomb in a container with a
// memory limit of 64 MiB.
const maxBombMemory = 50 << 20

// awaitStableMemory waits until the memory no longer increases, or exceeds the limit most in
// bytes.
func (v *victim) awaitStableMemory(most int64) {
	for last := int64(0); ; {
		now := v.memory("VmHWM")
		if now-last < 256<<10 || now > most {
			return
		}
		last = now
		time.Sleep(300 * time.Millisecond) // allow time for the memory to grow
	}
}

func TestHTTP2BombsStayWithinMemoryLimit(t *testing.T) {
	for protocol, app := range map[string]string{"h2c": "h1", "TLS h2": "both"} {
		t.Run(protocol+" in front of "+app, func(t *testing.T) {
			v := newVictim(t, 0, app, "GOMEMLIMIT=51MiB") // with a memory limit of 64 MiB, the sidecar sets this limit by default
			calm := v.memory("VmRSS")
			for _, b := range h2Bombs {
				v.runAttack(b.name, maxBombMemory, false, func() {
					a, err := v.attacker(protocol, b.notReading)
					if err != nil {
						t.Fatal(err)
					}
					b.do(a)
					a.out.Flush()
					v.app.await(t, 20) // the memory budget rejects some of the other requests
					v.awaitStableMemory(calm + maxBombMemory)
					if grown := v.memory("VmHWM") - calm; grown > maxBombMemory {
						t.Errorf("%s: memory grew by %d KB after the first attack, want at most %d", b.name, grown>>10, maxBombMemory>>10)
					}
					a.Close()
				})
			}
		})
	}
}

// The receiver allocates a buffer of the length in the frame header. Therefore, frames that are
// larger than 16 KB are rejected when the frame header arrives.
func TestHTTP2FrameOverMaximumSizeIsRejected(t *testing.T) {
	p := newProxy(t)
	p.sample()
	p.start("METRICS_NAMES=default")
	p.auditAtEnd()
	for length, want := range map[string]http2.ErrCode{"\x00\x40\x00": http2.ErrCodeNo, "\x01\x00\x01": http2.ErrCodeFrameSize, "\xff\xff\xff": http2.ErrCodeFrameSize} {
		h := dialH2(t, p.addr())
		h.open(1, false, "POST", "/sink")
		io.WriteString(h, length+"\x00\x00\x00\x00\x00\x01")
		if want == http2.ErrCodeNo {
			io.WriteString(h, strings.Repeat("x", 16<<10))
			h.data(1, true, "")
			if a := h.answer(1); a.status != 200 || !strings.Contains(a.body, "16384") {
				t.Errorf("frame of 16 KB: got %+v, want status 200", a)
			}
		} else if got := h.goAway(); got.code != want {
			t.Errorf("frame of %q bytes: got %v, want %v", length, got, want)
		}
	}
}
