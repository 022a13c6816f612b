package http2_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// A rawApp is a user container that speaks HTTP/2 by frames. serve is called for each
// request, from the goroutine that reads its connection.
type rawApp struct {
	*world
	mu   sync.Mutex
	seen []queue.Observation
	came chan struct{}
}

// appStream is a stream as the user container has it.
type appStream struct {
	*xhttp2.Framer
	f  *xhttp2.MetaHeadersFrame
	id uint32
}

func (s *appStream) respond(end bool, fields ...string) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = s.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: s.id, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: end})
}

func newRawApp(t testing.TB, serve func(s *appStream)) *rawApp {
	t.Helper()
	a := &rawApp{came: make(chan struct{}, 1)}
	ln := listen(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer nc.Close()
				preface := make([]byte, len(xhttp2.ClientPreface))
				if _, err := io.ReadFull(nc, preface); err != nil || string(preface) != xhttp2.ClientPreface {
					return
				}
				fr := xhttp2.NewFramer(nc, nc)
				fr.AllowIllegalWrites = true
				fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
				_ = fr.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 20})
				for {
					f, err := fr.ReadFrame()
					if err != nil {
						return
					}
					switch f := f.(type) {
					case *xhttp2.SettingsFrame:
						if !f.IsAck() {
							_ = fr.WriteSettingsAck()
						}
					case *xhttp2.MetaHeadersFrame:
						if f.PseudoValue("path") == "*" { // the question what it speaks
							(&appStream{fr, f, f.StreamID}).respond(true, ":status", "204")
						} else if f.PseudoValue("method") != "" {
							serve(&appStream{fr, f, f.StreamID})
						}
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close() })
	a.world = &world{address: newEngine(t, ln.Addr().(*net.TCPAddr).Port, false, func(p *queue.Proxy) {
		p.Observe = func(o *queue.Observation) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.seen = append(a.seen, *o)
			select {
			case a.came <- struct{}{}:
			default:
			}
		}
	})}
	return a
}

// observed returns the next observation.
func (a *rawApp) observed() queue.Observation {
	for {
		a.mu.Lock()
		if len(a.seen) > 0 {
			o := a.seen[0]
			a.seen = a.seen[1:]
			a.mu.Unlock()
			return o
		}
		a.mu.Unlock()
		<-a.came
	}
}

func request(method, path string, more ...[2]string) *script {
	return &script{fields: append([][2]string{{":method", method}, {":scheme", "http"}, {":authority", "a"}, {":path", path}}, more...)}
}

// What a user container may not send does not reach the client.
func TestWhatAnAppSendsWrongly(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		serve  func(s *appStream)
		want   string
	}{
		"a length, and the end with the head": {"GET", func(s *appStream) { s.respond(true, ":status", "200", "content-length", "5") }, "502 "},
		"a shorter body": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200", "content-length", "5")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "200 []\nbody \"\" reset"},
		"a longer body": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200", "content-length", "2")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "200 []\nbody \"\" reset"},
		"content behind HEAD": {"HEAD", func(s *appStream) {
			s.respond(false, ":status", "200", "content-length", "3")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "200 []\nbody \"\""},
		"content of a 304": {"GET", func(s *appStream) {
			s.respond(false, ":status", "304")
			_ = s.WriteData(s.id, true, []byte("abc"))
		}, "304 []\nbody \"\""},
		"content before the head": {"GET", func(s *appStream) { _ = s.WriteData(s.id, true, []byte("abc")) }, "502 "},
		"101":                     {"GET", func(s *appStream) { s.respond(false, ":status", "101") }, "502 "},
		"no status":               {"GET", func(s *appStream) { s.respond(true, "a", "b") }, "502 "},
		"a status of letters":     {"GET", func(s *appStream) { s.respond(true, ":status", "abc") }, "502 "},
		"a malformed field":       {"GET", func(s *appStream) { s.respond(true, ":status", "200", "A", "b") }, "502 "},
		"a trailer section with a pseudo field": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200")
			s.respond(true, ":path", "200")
		}, "200 []\nbody \"\" reset"},
		"a reset": {"GET", func(s *appStream) {
			s.respond(false, ":status", "200")
			_ = s.WriteRSTStream(s.id, xhttp2.ErrCodeEnhanceYourCalm)
		}, "200 []\nbody \"\" reset ENHANCE_YOUR_CALM"},
		"many informational responses": {"GET", func(s *appStream) {
			for range 200 {
				s.respond(false, ":status", "103")
			}
		}, "103 []"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newRawApp(t, c.serve)
			cl := a.connect(t)
			if got := cl.answer(cl.ask(request(c.method, "/"))); !strings.HasPrefix(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := cl.answer(cl.ask(request("OPTIONS", "/"))); got == "" || strings.Contains(got, "the connection ended") {
				t.Errorf("got %q, want that the client's connection lives on", got)
			}
		})
	}
}

func TestExpectReachesTheApp(t *testing.T) {
	a := newRawApp(t, func(s *appStream) {
		if hasField(s.f, "expect", "100-continue") {
			s.respond(false, ":status", "100")
		}
		s.respond(true, ":status", "200")
	})
	c := a.connect(t)
	id := c.id
	c.must(c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, EndHeaders: true, BlockFragment: c.encode(request("POST", "/", [2]string{"expect", "100-continue"}).fields)}))
	for {
		f, err := c.ReadFrame()
		c.must(err)
		if m, ok := f.(*xhttp2.MetaHeadersFrame); ok {
			if m.PseudoValue("status") != "100" {
				t.Errorf("got %v, want 100 first", m)
			}
			return
		}
	}
}

func hasField(f *xhttp2.MetaHeadersFrame, name, value string) bool {
	for _, h := range f.RegularFields() {
		if h.Name == name && h.Value == value {
			return true
		}
	}
	return false
}

// A client that resets its stream while the response is on its way has gone.
func TestAClientThatResetsItsStreamHasGone(t *testing.T) {
	for name, end := range map[string]bool{"the response has ended": true, "the response goes on": false} {
		t.Run(name, func(t *testing.T) {
			a := newRawApp(t, func(s *appStream) {
				s.respond(false, ":status", "200")
				_ = s.WriteData(s.id, false, make([]byte, 10_000))
				_ = s.WriteData(s.id, end, make([]byte, 10_000))
			})
			for range 20 {
				c := a.connect(t)
				c.must(c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 15_000}))
				id := c.ask(request("GET", "/"))
				for got := 0; got < 15_000; {
					f, err := c.ReadFrame()
					c.must(err)
					if d, ok := f.(*xhttp2.DataFrame); ok {
						got += len(d.Data())
					}
				}
				c.must(c.WriteRSTStream(id, xhttp2.ErrCodeCancel))
				if o := a.observed(); o.Why != queue.ClientGone {
					t.Fatalf("got %v, want that the client has gone", o.Why)
				}
				c.Close()
			}
		})
	}
}

// Both directions of a stream are held back at the same time, and by both sides.
func TestBothDirectionsAreHeldBack(t *testing.T) {
	w := newWorld(t, false, true, nil)
	const all = 3 << 20
	var clients sync.WaitGroup
	for range 4 {
		c := w.connect(t)
		clients.Go(func() { echo(c, all) })
	}
	clients.Wait()
}

// echo sends content and reads it as it comes back, with small windows.
func echo(c *client, all int) {
	c.must(c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 3000}))
	id := c.id
	var mu sync.Mutex
	window, changed := 65535, make(chan struct{}, 1)
	c.must(c.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, EndHeaders: true, BlockFragment: c.encode(request("POST", "/echo").fields)}))
	go func() {
		for sent := 0; sent < all; {
			mu.Lock()
			n := min(window, 10_000, all-sent)
			if n > 0 {
				window -= n
				sent += n
				_ = c.WriteData(id, sent == all, make([]byte, n))
			}
			mu.Unlock()
			if n <= 0 {
				<-changed
			}
		}
	}()
	for got := 0; got < all; {
		f, err := c.ReadFrame()
		c.must(err)
		mu.Lock()
		switch f := f.(type) {
		case *xhttp2.WindowUpdateFrame:
			if f.StreamID == id {
				window += int(f.Increment)
			}
		case *xhttp2.DataFrame:
			n := len(f.Data())
			if got += n; n > 0 {
				_ = c.WriteWindowUpdate(id, uint32(n))
				_ = c.WriteWindowUpdate(0, uint32(n))
			}
		case *xhttp2.RSTStreamFrame:
			c.Error(fmt.Sprint("got a reset: ", f.ErrCode))
			got = all
		}
		mu.Unlock()
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
