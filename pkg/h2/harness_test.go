package h2_test

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

	"github.com/queue-proxy/queue-proxy/pkg/h2"
	"github.com/queue-proxy/queue-proxy/pkg/link"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Sizes of the connections under test, small so that their bounds are met soon.
const (
	window     = 1000
	connWindow = 100_000
	maxHead    = 8 << 10
)

// A peer is the other end of a connection under test. It writes bytes, and reads frames
// by golang.org/x/net's Framer.
type peer struct {
	testing.TB
	*harness.Frames
	us   *h2.Conn
	host *host
	ran  chan error // what Run has returned
}

// A host is the Handler of a connection under test. It accepts all streams.
type host struct {
	us      *h2.Conn
	streams chan *owner // that were accepted
	leaving chan struct{}
	quiet   bool // owners drop their events
}

func (h *host) Request(id uint32, head *h2.Head, end bool) {
	o := newOwner(h.quiet)
	o.id, o.began = id, asText(head)+fmt.Sprint(" end=", end)
	o.Stream = h.us.Accept(id, o, end)
	select {
	case h.streams <- o:
	default: // nobody looks
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

// asText is a head as tests compare it.
func asText(h *h2.Head) string {
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

// An owner notes what comes on a stream, each as a line.
type owner struct {
	*h2.Stream
	id    uint32
	began string // the head that has opened it
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

func (o *owner) Head(_ *h2.Conn, h *h2.Head, end bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note("head %s end=%v", asText(h), end)
}

func (o *owner) Data(_ *h2.Conn, p []byte, n int, end bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.content = append(o.content, p...)
	o.note("data %d of %d end=%v", len(p), n, end)
}

func (o *owner) Failed(_ *h2.Conn, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	o.note("failed %v", err)
}

func (o *owner) Drained(*h2.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note("drained")
}

// await returns the lines when there are n, and makes the owner new.
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

// serverConfig is that of a connection that serves.
func serverConfig() h2.Config {
	return h2.Config{Window: window, ConnWindow: connWindow, MaxStreams: 100, MaxHeadBytes: maxHead, Connect: true}
}

// clientConfig is that of a connection that sends requests.
func clientConfig() h2.Config {
	return h2.Config{Client: true, Window: window, ConnWindow: connWindow, MaxHeadBytes: maxHead}
}

// connect makes a pair of connections: ours, which is run, and the peer's.
func connect(t testing.TB, config h2.Config) *peer {
	t.Helper()
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // after the cleanup of dial, which closes the connection of the peer
	p := dial(t, config)
	running.Go(func() { p.ran <- p.us.Run(nil) })
	return p
}

// dial is connect without running it.
func dial(t testing.TB, config h2.Config) *peer {
	t.Helper()
	h := &host{streams: make(chan *owner, 1000), leaving: make(chan struct{}, 1)}
	p := dialWith(t, config, h)
	h.us, p.host = p.us, h
	return p
}

// dialWith is dial with another Handler.
func dialWith(t testing.TB, config h2.Config, h h2.Handler) *peer {
	t.Helper()
	there, here := harness.Pair(t)
	l, err := link.New(here)
	harness.NoError(t, err)
	config.Buffers = h2.NewBuffers()
	p := &peer{TB: t, Frames: harness.NewFrames(there), ran: make(chan error, 1)}
	p.us = h2.New(l, config, h)
	there.SetDeadline(time.Now().Add(harness.Patience))
	p.AllowIllegalReads, p.ReadMetaHeaders = true, nil
	t.Cleanup(func() {
		there.Close()
		p.us.Close(errors.New("the test is over"))
	})
	return p
}

// greet sends what opens a connection and reads what the other side sends then, its
// acknowledgement included.
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

// get is the block of a request, with more fields.
func (p *peer) get(more ...string) []byte {
	return p.Block(append([]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "app"}, more...)...)
}

// request opens a stream and returns its owner.
func (p *peer) request(id uint32, end bool, more ...string) *owner {
	p.Helper()
	harness.NoError(p, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.get(more...), EndHeaders: true, EndStream: end}))
	return p.accepted()
}

// accepted returns the owner of the next stream that was accepted.
func (p *peer) accepted() *owner {
	p.Helper()
	return harness.Receive(p, p.host.streams, "stream")
}

// next is the next frame as text.
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

// expect reads frames; "..." before one reads on until it comes.
func (p *peer) expect(want ...string) {
	p.Helper()
	for i, w := range want {
		if got := p.next(); got != w {
			p.Fatalf("frame %d: got %q, want %q", i, got, w)
		}
	}
}

// alive checks that the connection still answers.
func (p *peer) alive() {
	p.Helper()
	harness.NoError(p, p.WritePing(false, [8]byte{1}))
	p.expect("PING ack=true 0100000000000000")
}

// ended returns what Run has returned.
func (p *peer) ended() error {
	p.Helper()
	return harness.Receive(p, p.ran, "end of the connection")
}

// frame makes a frame, a wrong one too.
func frame(kind http2.FrameType, flags byte, id uint32, payload ...byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(kind), flags, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}, payload...)
}

// head makes a final response's head with so many more bytes.
func head(more int) *h2.Block {
	var k h2.Block
	k.Status(200)
	if more > 0 {
		k.Field("x", string(bytes.Repeat([]byte("y"), more)))
	}
	return &k
}

// creditOf returns how many bytes a line of Data says to credit.
func creditOf(line string) (n int) {
	var got int
	_, _ = fmt.Sscanf(line, "data %d of %d", &got, &n)
	return n
}
