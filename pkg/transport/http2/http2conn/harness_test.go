package http2conn_test

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Settings of the connections under test. They are small, so that tests reach the bounds quickly.
const (
	window     = 1000
	connWindow = 100_000
	maxHead    = 8 << 10
)

// A peer is the remote side of a connection under test. It writes bytes and reads frames with the Framer of
// golang.org/x/net.
type peer struct {
	testing.TB
	*harness.Frames
	us   *http2conn.Conn
	host *host
	ran  chan error // receives the result of Run
}

// A host is the Handler of a connection under test. It accepts all streams.
type host struct {
	us      *http2conn.Conn
	streams chan *owner // receives the owners of accepted streams
	leaving chan struct{}
	quiet   bool // owners drop their events
}

func (h *host) Request(id uint32, head *http2conn.Head, end bool) {
	o := newOwner(h.quiet)
	o.id, o.began = id, asText(head)+fmt.Sprint(" end=", end)
	o.Stream = h.us.Accept(id, o, end)
	select {
	case h.streams <- o:
	default: // the test does not receive the owners
	}
}

func (h *host) Received(bool) {}
func (h *host) Full() bool    { return false }
func (h *host) Waiting()      {}
func (h *host) GoingAway() {
	select {
	case h.leaving <- struct{}{}:
	default:
	}
}

// asText returns a header block as a string for comparisons.
func asText(h *http2conn.Head) string {
	switch {
	case h.TooLarge:
		return "too large"
	case h.Malformed:
		return "malformed"
	}
	s := h.Method
	if h.Status != 0 {
		s = strconv.Itoa(h.Status)
	}
	for _, part := range []string{h.Scheme, h.Authority, h.Path, h.Protocol} {
		if part != "" {
			s += " " + part
		}
	}
	for _, f := range h.Fields {
		s += fmt.Sprintf(" %s=%s", f.Name, f.Value)
	}
	return s
}

// An owner records each event of a stream as a line.
type owner struct {
	*http2conn.Stream
	id    uint32
	began string // header block that opened the stream
	quiet bool

	mu      sync.Mutex
	changed chan struct{}
	lines   []string
	content []byte
	err     error
}

func newOwner(quiet bool) *owner { return &owner{quiet: quiet, changed: make(chan struct{}, 1)} }

func (o *owner) note(format string, args ...any) {
	if o.quiet {
		return
	}
	o.lines = append(o.lines, fmt.Sprintf(format, args...))
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

func (o *owner) Head(_ *http2conn.Conn, h *http2conn.Head, end bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note("head %s end=%v", asText(h), end)
}

func (o *owner) Data(_ *http2conn.Conn, p []byte, n int, end bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.content = append(o.content, p...)
	o.note("data %d of %d end=%v", len(p), n, end)
}

func (o *owner) Failed(_ *http2conn.Conn, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	o.note("failed %v", err)
}

func (o *owner) Drained(*http2conn.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note("drained")
}

// await waits for at least n lines, returns them and clears the recorded lines.
func (o *owner) await(t testing.TB, n int) []string {
	t.Helper()
	late := time.After(harness.Patience)
	for {
		o.mu.Lock()
		if lines := o.lines; len(lines) >= n {
			o.lines = nil
			o.mu.Unlock()
			return lines
		}
		o.mu.Unlock()
		select {
		case <-o.changed:
		case <-late:
			t.Fatalf("got %q, want %d events", o.lines, n)
		}
	}
}

// serverConfig returns the configuration of a server connection.
func serverConfig() http2conn.Config {
	return http2conn.Config{Window: window, ConnWindow: connWindow, MaxStreams: 100, MaxHeadBytes: maxHead, Connect: true}
}

// clientConfig returns the configuration of a client connection.
func clientConfig() http2conn.Config {
	return http2conn.Config{Client: true, Window: window, ConnWindow: connWindow, MaxHeadBytes: maxHead}
}

// connect opens a connection, calls Run on it and returns its peer.
func connect(t testing.TB, config http2conn.Config) *peer {
	t.Helper()
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // runs after the cleanup of dial, which closes the connection of the peer
	p := dial(t, config)
	running.Go(func() { p.ran <- p.us.Run(nil) })
	return p
}

// dial is like connect, but does not call Run.
func dial(t testing.TB, config http2conn.Config) *peer {
	t.Helper()
	h := &host{streams: make(chan *owner, 1000), leaving: make(chan struct{}, 1)}
	p := dialWith(t, config, h)
	h.us, p.host = p.us, h
	return p
}

// dialWith is like dial, but uses the given Handler.
func dialWith(t testing.TB, config http2conn.Config, h http2conn.Handler) *peer {
	t.Helper()
	there, here := harness.Pair(t)
	l, err := netconn.New(here)
	harness.NoError(t, err)
	config.Buffers = http2conn.NewBuffers()
	p := &peer{TB: t, Frames: harness.NewFrames(there), ran: make(chan error, 1)}
	p.us = http2conn.New(l, config, h)
	there.SetDeadline(time.Now().Add(harness.Patience))
	p.AllowIllegalReads, p.ReadMetaHeaders = true, nil
	t.Cleanup(func() {
		there.Close()
		p.us.Close(errors.New("the test is over"))
	})
	return p
}

// greet sends the preface and SETTINGS, reads the first frames of the other side, and acknowledges its
// SETTINGS.
func (p *peer) greet(settings ...http2.Setting) {
	p.Helper()
	p.send([]byte(wire.Preface))
	harness.NoError(p, p.WriteSettings(settings...))
	p.expect("SETTINGS", "WINDOW_UPDATE 0 34465", "SETTINGS ack")
	harness.NoError(p, p.WriteSettingsAck())
}

func (p *peer) send(b ...[]byte) {
	p.Helper()
	_, err := p.Write(bytes.Join(b, nil))
	harness.NoError(p, err)
}

// get returns the header block of a GET request with additional fields.
func (p *peer) get(more ...string) []byte {
	return p.Block(append([]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "app"}, more...)...)
}

// request opens a stream and returns its owner.
func (p *peer) request(id uint32, end bool, more ...string) *owner {
	p.Helper()
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.get(more...), EndHeaders: true, EndStream: end}))
	return p.accepted()
}

// accepted returns the owner of the next accepted stream.
func (p *peer) accepted() *owner {
	p.Helper()
	return harness.Receive(p, p.host.streams, "stream")
}

// next reads a frame and returns it as a string, or "end" after a read error.
func (p *peer) next() string {
	f, err := p.ReadFrame()
	if err != nil {
		return "end"
	}
	end := ""
	if f.Header().Type == http2.FrameData || f.Header().Type == http2.FrameHeaders {
		if f.Header().Flags.Has(http2.FlagDataEndStream) {
			end = " end"
		}
	}
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return "SETTINGS ack"
		}
		return "SETTINGS"
	case *http2.WindowUpdateFrame:
		return fmt.Sprintf("WINDOW_UPDATE %d %d", id, f.Increment)
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("RST_STREAM %d %v", id, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %d %v", f.LastStreamID, f.ErrCode)
	case *http2.PingFrame:
		return fmt.Sprintf("PING ack=%v %x", f.IsAck(), f.Data)
	case *http2.DataFrame:
		return fmt.Sprintf("DATA %d %d%s", id, len(f.Data()), end)
	}
	return fmt.Sprintf("%v %d%s", f.Header().Type, id, end)
}

// expect reads frames and compares them with want.
func (p *peer) expect(want ...string) {
	p.Helper()
	for i, w := range want {
		if got := p.next(); got != w {
			p.Fatalf("frame %d: got %q, want %q", i, got, w)
		}
	}
}

// alive checks that the connection replies to PING.
func (p *peer) alive() {
	p.Helper()
	harness.NoError(p, p.WritePing(false, [8]byte{1}))
	p.expect("PING ack=true 0100000000000000")
}

// ended waits until Run returns, and returns its error.
func (p *peer) ended() error {
	p.Helper()
	return harness.Receive(p, p.ran, "end of the connection")
}

// frame returns a frame, which may be invalid.
func frame(kind http2.FrameType, flags byte, id uint32, payload ...byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(kind), flags, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}, payload...)
}

// head returns the header block of a final response with a field of the given length in bytes.
func head(more int) *http2conn.Block {
	var k http2conn.Block
	k.Status(200)
	if more > 0 {
		k.Field("x", string(bytes.Repeat([]byte("y"), more)))
	}
	return &k
}

// creditOf returns the number of bytes to credit from a line that records Data.
func creditOf(line string) (n int) {
	var got int
	_, _ = fmt.Sscanf(line, "data %d of %d", &got, &n)
	return n
}
