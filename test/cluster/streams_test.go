//go:build cluster && clusterfull

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A stream is a stream to a pod that is deleted. Its client continues to send data until the
// stream ends.
type stream struct {
	kind   string
	opened chan error

	mu      sync.Mutex // protects the following fields
	deleted time.Time  // time at which the pod was deleted
	goaway  string     // time from the deletion to GOAWAY; empty if there was no GOAWAY
	own     bool       // the app ended the stream, and the client received this end
	end     string     // description of the end; empty while the stream is open
	done    chan struct{}
}

// openStream opens a stream directly to a pod. kind is WebSocket, SSE or gRPC.
func openStream(ctx context.Context, kind, address string) *stream {
	s := &stream{kind: kind, opened: make(chan error, 1), done: make(chan struct{})}
	follow := map[string]func(context.Context, string) error{"WebSocket": s.webSocket, "SSE": s.events, "gRPC": s.grpc}[kind]
	go func() {
		defer close(s.done)
		err := follow(ctx, address)
		select {
		case s.opened <- err: // the stream failed before it was open
		default:
		}
		if err != nil {
			s.ended(false, "connection error: "+err.Error())
		}
	}()
	return s
}

// since returns the time since the pod was deleted.
func (s *stream) since() string {
	if s.deleted.IsZero() {
		return "before the deletion"
	}
	return fmt.Sprintf("%.1f s", time.Since(s.deleted).Seconds())
}

func (s *stream) ended(own bool, how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == "" {
		s.own, s.end = own, how+" after "+s.since()
	}
}

func (s *stream) delete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = time.Now()
}

// result waits until the stream ends.
func (s *stream) result() (own bool, how string) {
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.goaway != "" {
		return s.own, s.end + "; GOAWAY after " + s.goaway
	}
	return s.own, s.end
}

// webSocket sends one message per 500 ms, and wsserver echoes the messages.
func (s *stream) webSocket(ctx context.Context, address string) error {
	ws, _, err := websocket.Dial(ctx, "ws://"+address+"/", nil)
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	for {
		if err = ws.Write(ctx, websocket.MessageText, []byte("hello")); err == nil {
			_, _, err = ws.Read(ctx)
		}
		var closed websocket.CloseError
		switch {
		case errors.As(err, &closed):
			s.ended(closed.Code == websocket.StatusNormalClosure, fmt.Sprintf("close frame %d", closed.Code))
			return nil
		case err != nil:
			return plain(err)
		}
		s.open()
		time.Sleep(500 * time.Millisecond) // limit the rate of messages
	}
}

// open records that the stream is open.
func (s *stream) open() {
	select {
	case s.opened <- nil:
	default:
	}
}

// events reads an event every 500 ms.
func (s *stream) events(ctx context.Context, address string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/sse?n=1000&ms=500", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	a, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	last := ""
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "data: ") || line == "request timeout" {
			s.open()
			last = line
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return plain(err)
	case last == "data: end":
		s.ended(true, "last event of the application")
	default:
		s.ended(false, fmt.Sprintf("normal end, last event %q,", strings.TrimPrefix(last, "data: ")))
	}
	return nil
}

// grpc sends one message per 500 ms on a stream. It reads the frames itself, because client
// libraries do not expose GOAWAY.
func (s *stream) grpc(ctx context.Context, address string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var writes sync.Mutex
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc/stream"}, {":authority", "example"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	if err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})); err != nil {
		return err
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			writes.Lock()
			_ = framer.WriteData(1, false, []byte("\x00\x00\x00\x00\x05hello"))
			writes.Unlock()
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	}()
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return plain(err)
		}
		writes.Lock()
		ended := s.frame(framer, f)
		writes.Unlock()
		if ended {
			return nil
		}
	}
}

// frame records a frame and reports whether the stream has ended.
func (s *stream) frame(framer *http2.Framer, f http2.Frame) bool {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = framer.WritePing(true, f.Data)
		}
	case *http2.DataFrame:
		s.open()
	case *http2.GoAwayFrame:
		s.mu.Lock()
		if s.goaway == "" {
			s.goaway = s.since()
		}
		s.mu.Unlock()
	case *http2.MetaHeadersFrame:
		if !f.StreamEnded() {
			return false
		}
		status := ""
		for _, h := range f.Fields {
			if h.Name == "grpc-status" {
				status = h.Value
			}
		}
		s.ended(status == "14", "grpc-status "+status)
		return true
	case *http2.RSTStreamFrame:
		s.ended(false, "RST_STREAM "+f.ErrCode.String())
		return true
	}
	return false
}

// plain returns an error without addresses, which are different in each run.
func plain(err error) error {
	for _, known := range []string{"connection reset by peer", "unexpected EOF", "EOF", "broken pipe"} {
		if strings.Contains(err.Error(), known) {
			return errors.New(known)
		}
	}
	return err
}
