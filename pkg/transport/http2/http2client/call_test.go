package http2client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2client"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestEarlyResponseIsReturned(t *testing.T) {
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "a")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	c, o := newUpload("POST", harness.Zeros{})
	status, body, err := get(newClient(t, a), c)
	if status != 413 || body != "" || err != nil || !slices.Equal(o.infos, []int{103}) {
		t.Errorf("got %v, %d, %q, %v, want [103] and 413", o.infos, status, body, err)
	}
}

// The user container closes the connection after its response, while a part of the request is unread. The client
// then receives a TCP reset.
func TestEarlyResponseIsReturnedAfterConnectionReset(t *testing.T) {
	for range 20 {
		a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
			p.WriteWindowUpdate(0, 1<<30)
			p.WriteWindowUpdate(f.StreamID, 1<<30)
			io.ReadFull(p, make([]byte, 1<<20))
			p.WriteHead(f.StreamID, false, ":status", "413", "content-length", "5")
			p.WriteData(f.StreamID, true, []byte("large"))
			p.Close()
		}})
		client := newClient(t, a)
		c, _ := newUpload("POST", harness.Zeros{})
		status, body, err := get(client, c)
		if status != 413 || body != "large" || err != nil {
			t.Fatalf("got %d, %q, %v, want 413, large", status, body, err)
		}
		client.Close()
	}
}

// asking returns an app that calls answer after it has checked that no content was sent before.
func asking(t *testing.T, answer func(p *peer, id uint32)) *app {
	early := false
	return newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			if got := harness.FieldOf(f, "expect"); got != "100-continue" {
				t.Errorf("got expect: %q, want 100-continue", got)
			}
			p.WritePing(false, [8]byte{1}) // content that was sent before the acknowledgment would arrive first
		},
		data: func(*peer, *http2.DataFrame) { early = true },
		other: func(p *peer, f http2.Frame) {
			if f, ok := f.(*http2.PingFrame); ok && f.IsAck() {
				if early {
					t.Error("the app received content before it sent 100")
				}
				answer(p, 1)
			}
		},
	})
}

func TestBodyWaitsForContinue(t *testing.T) {
	a := asking(t, func(p *peer, id uint32) {
		p.WriteHead(id, false, ":status", "100")
		p.ok(id, "done")
	})
	c, o := newUpload("POST", strings.NewReader("body"))
	c.Expect100 = true
	status, body, err := get(newClient(t, a), c)
	if status != 200 || body != "done" || err != nil || !slices.Equal(o.infos, []int{100}) {
		t.Errorf("got %v, %d, %q, %v, want [100], 200, done", o.infos, status, body, err)
	}
}

func TestRejectedBodyIsNotRead(t *testing.T) {
	a := asking(t, func(p *peer, id uint32) {
		p.WriteHead(id, true, ":status", "417")
	})
	body := strings.NewReader("body")
	c, _ := newUpload("POST", body)
	c.Expect100 = true
	status, _, err := get(newClient(t, a), c)
	if status != 417 || err != nil || body.Len() != len("body") {
		t.Errorf("got status %d, error %v, %d unread bytes, want 417 and the complete body", status, err, body.Len())
	}
}

func TestUnannouncedTrailersInBothDirections(t *testing.T) {
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		if f.StreamEnded() { // the trailer section
			p.WriteHead(f.StreamID, false, ":status", "200")
			p.WriteData(f.StreamID, false, []byte("body"))
			p.WriteHead(f.StreamID, true, "x-back", harness.FieldOf(f, "x-there"))
		}
	}})
	c, _ := newUpload("POST", strings.NewReader("body"))
	c.Trailer = func() []wire.Field { return []wire.Field{{Name: []byte("X-There"), Value: []byte("42")}} }
	r, err := c.Do(newClient(t, a))
	harness.NoError(t, err)
	defer r.Close()
	body, err := content(r)
	trailer := r.Trailer()
	if body != "body" || err != nil || len(trailer) != 1 || string(trailer[0].Name) != "x-back" || string(trailer[0].Value) != "42" {
		t.Errorf("got %q, %v, trailer %q, want body, x-back: 42", body, err, trailer)
	}
}

// readSizes is a body that records the maximum number of bytes that a read requests.
type readSizes struct {
	io.Reader
	most int
}

func (r *readSizes) Read(p []byte) (int, error) {
	r.most = max(r.most, len(p))
	return r.Reader.Read(p)
}

func TestUploadUsesReservedBuffer(t *testing.T) {
	const budget = 64 << 20
	for used, want := range map[int]int{0: 32 << 10, budget/2 + 1: 4 << 10} {
		a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) { p.ok(f.StreamID, "") }})
		body := &readSizes{Reader: strings.NewReader("body")}
		c, _ := newUpload("POST", body)
		b := netconn.NewBudget(budget, nil)
		b.Open("", nil).Add(used)
		c.Memory.Account = b.Open("", nil)
		harness.Equal(t, c.ReserveBody(), true, "memory is reserved")
		_, _, err := get(newClient(t, a), c)
		harness.NoError(t, err)
		harness.Equal(t, body.most, want, "buffer size in bytes if", used, "bytes are used")
	}
}

func TestInformationalResponsesAreLimited(t *testing.T) {
	for n, want := range map[int]transport.Fault{100: 0, 101: transport.FaultGarbage} {
		a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
			for range n {
				p.WriteHead(f.StreamID, false, ":status", "103", "link", "a")
			}
			p.ok(f.StreamID, "")
		}})
		c, o := newCall("GET")
		_, _, err := get(newClient(t, a), c)
		if transport.FaultOf(err) != want || want == 0 && len(o.infos) != n || len(o.infos) > 100 {
			t.Errorf("got error %v and %d of %d informational responses, want fault %d", err, len(o.infos), n, want)
		}
	}
}

func TestBodyLengthMatchesContentLength(t *testing.T) {
	for name, c := range map[string]struct {
		method, status, length, body string
		want                         string
		fault                        transport.Fault
	}{
		"equal":                {"GET", "200", "5", "hello", "hello", 0},
		"no Content-Length":    {"GET", "200", "", "hello", "hello", 0},
		"too long":             {"GET", "200", "3", "hello", "", transport.FaultGarbage},
		"too short":            {"GET", "200", "9", "hello", "hello", transport.FaultGarbage},
		"no content":           {"GET", "200", "9", "", "", transport.FaultGarbage},
		"no content, length 0": {"GET", "200", "0", "", "", 0},
		"HEAD":                 {"HEAD", "200", "9", "", "", 0},
		"HEAD with a body":     {"HEAD", "200", "5", "hello", "", 0},
		"304":                  {"GET", "304", "9", "", "", 0},
		"304 with a body":      {"GET", "304", "5", "hello", "", 0},
		"204 with a body":      {"GET", "204", "", "hello", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
				fields := []string{":status", c.status}
				if c.length != "" {
					fields = append(fields, "content-length", c.length)
				}
				p.WriteHead(f.StreamID, false, fields...)
				p.WriteData(f.StreamID, false, []byte(c.body))
				p.WriteData(f.StreamID, true, nil)
			}})
			call, _ := newCall(c.method)
			_, body, err := get(newClient(t, a), call)
			if transport.FaultOf(err) != c.fault || !strings.HasPrefix(c.want, body) || err == nil && body != c.want {
				t.Errorf("got %q, %v, want %q, fault %d", body, err, c.want, c.fault)
			}
		})
	}
}

// An HTTP/1.1 client would interpret the excess content as the next response.
func TestContentBeyondLengthIsRejected(t *testing.T) {
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
		p.WriteHead(f.StreamID, false, ":status", "200", "content-length", "3")
		p.WriteData(f.StreamID, false, []byte("he"))
		p.WriteData(f.StreamID, false, []byte("llo"))
	}})
	c, _ := newCall("GET")
	_, body, err := get(newClient(t, a), c)
	if !strings.HasPrefix("hel", body) || transport.FaultOf(err) != transport.FaultGarbage {
		t.Errorf("got %q, %v, want at most hel and garbage", body, err)
	}
}

func TestEmptyResponseMatchesContentLength(t *testing.T) {
	for name, c := range map[string]struct {
		method, length string
		fault          transport.Fault
	}{"no Content-Length": {"GET", "", 0}, "zero": {"GET", "0", 0}, "more": {"GET", "5", transport.FaultGarbage}, "HEAD": {"HEAD", "5", 0}} {
		a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
			fields := []string{":status", "200"}
			if c.length != "" {
				fields = append(fields, "content-length", c.length)
			}
			p.WriteHead(f.StreamID, true, fields...)
		}})
		call, _ := newCall(c.method)
		r, err := call.Do(newClient(t, a))
		harness.Equal(t, transport.FaultOf(err), c.fault, name, err)
		if err == nil {
			harness.Equal(t, r.Length(), 0, name, "length")
			r.Close()
		}
	}
}

func TestMalformedResponseHeaderIsGarbage(t *testing.T) {
	for name, play := range map[string]func(p *peer, id uint32){
		"no status":                   func(p *peer, id uint32) { p.WriteHead(id, true, "x", "y") },
		"two statuses":                func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "200", ":status", "200") },
		"not three digits":            func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "20") },
		"no digits":                   func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "2x0") },
		"status below 100":            func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "099") },
		"status with a sign":          func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "+20") },
		"101":                         func(p *peer, id uint32) { p.WriteHead(id, false, ":status", "101"); p.ok(id, "") },
		"END_STREAM with 103":         func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "103") },
		"upper case":                  func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "200", "X-Y", "z") },
		"a line break":                func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "200", "x", "y\r\nz: 1") },
		"status after a field":        func(p *peer, id uint32) { p.WriteHead(id, true, "x", "y", ":status", "200") },
		"request pseudo-header field": func(p *peer, id uint32) { p.WriteHead(id, true, ":status", "200", ":path", "/") },
		"too large":                   tooLarge,
		"body before the header":      func(p *peer, id uint32) { p.WriteData(id, true, []byte("body")) },
		"body after 103":              func(p *peer, id uint32) { p.WriteHead(id, false, ":status", "103"); p.WriteData(id, true, nil) },
		"trailer with status": func(p *peer, id uint32) {
			p.WriteHead(id, false, ":status", "200")
			p.WriteHead(id, true, ":status", "200")
		},
		"trailer without END_STREAM": func(p *peer, id uint32) { p.WriteHead(id, false, ":status", "200"); p.WriteHead(id, false, "x", "y") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
				if p.turn == 0 {
					play(p, f.StreamID)
				} else {
					p.ok(f.StreamID, "well")
				}
			}})
			client := newClient(t, a)
			c, _ := newCall("GET")
			if _, _, err := get(client, c); transport.FaultOf(err) != transport.FaultGarbage {
				t.Errorf("got %v, want garbage", err)
			}
			if body := mustGet(t, client); body != "well" || a.connections() != 1 {
				t.Errorf("got %q on %d connections, want well on 1 connection", body, a.connections())
			}
		})
	}
}

// tooLarge sends a header section that slightly exceeds the limit.
func tooLarge(p *peer, id uint32) {
	fields := []string{":status", "200"}
	for range 70 {
		fields = append(fields, "x", strings.Repeat("v", 15<<10))
	}
	p.WriteLongHead(id, true, fields...)
}

func TestLongResponseHeaderIsAccepted(t *testing.T) {
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		for range 900 {
			w.Header().Add("X", strings.Repeat("v", 1<<10))
		}
	})
	mustGet(t, newClient(t, a))
}

// noise returns n pseudorandom bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	for i, seed := 0, uint32(1); i < n; i++ {
		seed = seed*1664525 + 1013904223
		b[i] = byte(seed >> 24)
	}
	return b
}

const large = 10 << 20 // exceeds all windows and buffers

func TestLargeBodyInBothDirections(t *testing.T) {
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		io.Copy(w, r.Body)
	})
	client := newClient(t, a)
	sent := noise(large)
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() {
			c, _ := newUpload("POST", bytes.NewReader(sent))
			r, err := c.Do(client)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			sum := sha256.New()
			for {
				p, err := r.Next()
				sum.Write(p)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
				for range 10 { // read slowly
					runtime.Gosched()
				}
			}
			if want := sha256.Sum256(sent); !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Error("got a different body, want the body that was sent")
			}
		})
	}
	running.Wait()
}

func TestUnreadResponseDoesNotBlockOtherRequests(t *testing.T) {
	body := noise(1 << 20)
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) { w.Write(body) })
	client := newClient(t, a)
	var unread []*http2client.Response
	for range 20 {
		c, _ := newCall("GET")
		r, err := c.Do(client)
		harness.NoError(t, err)
		unread = append(unread, r)
	}
	if got := mustGet(t, client); got != string(body) {
		t.Errorf("got %d bytes, want %d", len(got), len(body))
	}
	for _, r := range unread {
		if got, err := content(r); got != string(body) || err != nil {
			t.Errorf("got %d bytes, %v, want %d", len(got), err, len(body))
		}
		r.Close()
	}
	harness.Equal(t, a.connections(), 1, "connections")
}

// A sender sends content within the window of its stream.
type sender struct {
	id           uint32
	window, left int
	pad          []byte
}

func (s *sender) send(p *peer) {
	for s.left > 0 {
		n := min(s.left, 100)
		if s.window < n+len(s.pad)+1 {
			return
		}
		s.window -= n + len(s.pad) + 1
		s.left -= n
		p.WriteDataPadded(s.id, s.left == 0, make([]byte, n), s.pad)
	}
}

func TestPaddingIsCredited(t *testing.T) {
	var s sender
	window := 0
	a := newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			s = sender{id: f.StreamID, window: window, left: 200 << 10, pad: make([]byte, 255)}
			p.WriteHead(f.StreamID, false, ":status", "200")
			s.send(p)
		},
		other: func(p *peer, f http2.Frame) {
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
					window = int(v)
				}
			case *http2.WindowUpdateFrame:
				if f.StreamID == s.id && s.id != 0 {
					s.window += int(f.Increment)
					s.send(p)
				}
			}
		},
	})
	if body := mustGet(t, newClient(t, a)); len(body) != 200<<10 {
		t.Errorf("got %d bytes, want %d", len(body), 200<<10)
	}
}

func TestUploadRespectsWindowsOfApp(t *testing.T) {
	const total = 1 << 19
	stream, conn, longest, sum := 1000, 65535, 0, 0
	a := newPeers(t, script{
		settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1000}, {ID: http2.SettingMaxFrameSize, Val: 1 << 20}},
		headers:  func(p *peer, f *http2.MetaHeadersFrame) {},
		data: func(p *peer, f *http2.DataFrame) {
			n := len(f.Data())
			stream, conn, sum, longest = stream-n, conn-n, sum+n, max(longest, n)
			if stream < 0 || conn < 0 {
				t.Errorf("got windows of %d and %d bytes, want at least 0", stream, conn)
			}
			if f.StreamEnded() {
				p.ok(f.StreamID, "")
				return
			}
			switch { // increase the windows separately
			case stream == 0 && sum == 1000:
				p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 50_000})
				stream += 49_000
			case stream == 0:
				p.WriteWindowUpdate(f.StreamID, 40_000)
				stream += 40_000
			}
			if conn == 0 {
				p.WriteWindowUpdate(0, 70_000)
				conn += 70_000
			}
		},
	})
	c, _ := newUpload("POST", io.LimitReader(harness.Zeros{}, total))
	status, _, err := get(newClient(t, a), c)
	if status != 200 || err != nil || sum != total || longest > 16<<10 {
		t.Errorf("got %d, %v, %d bytes in frames of up to %d, want 200, %d in %d", status, err, sum, longest, total, 16<<10)
	}
}

// An empty DATA frame with END_STREAM can be sent even if the window is exhausted. The app may wait for this frame
// before it reads content.
func TestEndOfRequestNeedsNoWindow(t *testing.T) {
	full := make(chan struct{})
	first, seen := uint32(0), 0
	a := newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			if first == 0 {
				first = f.StreamID
				p.WriteWindowUpdate(first, 1<<20) // the window of the connection stays at 65535
			}
		},
		data: func(p *peer, f *http2.DataFrame) {
			if f.StreamID == first {
				if seen += len(f.Data()); seen == 65535 {
					close(full)
				}
				return
			}
			p.ok(f.StreamID, "")
			p.ok(first, "")
		},
	})
	client := newFullClient(t, a, 1)
	var running sync.WaitGroup
	running.Go(func() {
		c, _ := newUpload("POST", bytes.NewReader(make([]byte, 200<<10)))
		if status, _, err := get(client, c); status != 200 || err != nil {
			t.Errorf("got %d, %v, want 200", status, err)
		}
	})
	harness.Receive(t, full, "full window")
	c, _ := newUpload("POST", strings.NewReader(""))
	if status, _, err := get(client, c); status != 200 || err != nil {
		t.Errorf("got %d, %v, want 200", status, err)
	}
	running.Wait()
}

// wanted is an app that reports the error codes of streams that were reset.
type wanted struct {
	*app
	began chan uint32
	reset chan http2.ErrCode
}

func newWanted(t *testing.T, headers func(p *peer, f *http2.MetaHeadersFrame)) *wanted {
	w := &wanted{began: make(chan uint32, 10), reset: make(chan http2.ErrCode, 10)}
	w.app = newPeers(t, script{
		headers: func(p *peer, f *http2.MetaHeadersFrame) {
			headers(p, f)
			w.began <- f.StreamID
		},
		other: func(p *peer, f http2.Frame) {
			if f, ok := f.(*http2.RSTStreamFrame); ok {
				w.reset <- f.ErrCode
			}
		},
	})
	return w
}

func (w *wanted) mustReset(t *testing.T) {
	t.Helper()
	harness.Equal(t, harness.Receive(t, w.reset, "RST_STREAM"), http2.ErrCodeCancel, "RST_STREAM with")
}

func mustAbort(t *testing.T, from <-chan error) {
	t.Helper()
	if err := harness.Receive(t, from, "error"); transport.FaultOf(err) != transport.FaultAborted {
		t.Errorf("got %v, want aborted", err)
	}
}

// run makes a call in another goroutine.
func run(client *http2client.Client, c *http2client.Call) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, _, err := get(client, c)
		done <- err
	}()
	return done
}

func TestAbortBeforeResponseHeader(t *testing.T) {
	w := newWanted(t, func(*peer, *http2.MetaHeadersFrame) {})
	client := newClient(t, w.app)
	c, _ := newCall("GET")
	done := run(client, c)
	harness.Receive(t, w.began, "request")
	c.Abort()
	mustAbort(t, done)
	w.mustReset(t)
}

func TestAbortBeforeCall(t *testing.T) {
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	c, o := newCall("GET")
	c.Abort()
	mustAbort(t, run(client, c))
	harness.Equal(t, o.sends, 0, "number of times the request was sent")
}

func TestAbortDuringDial(t *testing.T) {
	dialling := make(chan struct{})
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		close(dialling)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	c, _ := newCall("GET")
	done := run(client, c)
	harness.Receive(t, dialling, "dial")
	c.Abort()
	mustAbort(t, done)
}

// Requests that wait for the same dial must not fail.
func TestAbortDuringDialKeepsOtherRequests(t *testing.T) {
	a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) { p.ok(f.StreamID, "") }})
	dialling, release := make(chan struct{}), make(chan struct{})
	client := newClientOf(t, http2client.Settings{Unsettled: func() {}, Dial: func(ctx context.Context) (net.Conn, error) {
		close(dialling)
		<-release
		return dialer(a)(ctx)
	}})
	c, _ := newCall("GET")
	first := run(client, c)
	harness.Receive(t, dialling, "dial")
	other, _ := newCall("GET")
	second := run(client, other)
	c.Abort()
	mustAbort(t, first)
	close(release)
	harness.Equal(t, harness.Receive(t, second, "response"), nil)
}

func TestAbortDuringResponseBody(t *testing.T) {
	w := newWanted(t, func(p *peer, f *http2.MetaHeadersFrame) {
		p.WriteHead(f.StreamID, false, ":status", "200")
		p.WriteData(f.StreamID, false, []byte("begun"))
	})
	client := newClient(t, w.app)
	c, o := newCall("GET")
	waiting := make(chan struct{}, 10)
	o.waiting = func() { waiting <- struct{}{} }
	r, err := c.Do(client)
	harness.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := content(r)
		r.Close()
		done <- err
	}()
	harness.Receive(t, waiting, "wait for the body")
	c.Abort()
	mustAbort(t, done)
	w.mustReset(t)
}

func TestAbortDuringUpload(t *testing.T) {
	for name, body := range map[string]io.Reader{"that waits for its body": harness.NewBlockedBody("some"), "that waits for the window": harness.Zeros{}} {
		t.Run(name, func(t *testing.T) {
			w := newWanted(t, func(*peer, *http2.MetaHeadersFrame) {})
			client := newClient(t, w.app)
			c, _ := newUpload("POST", body)
			done := run(client, c)
			if b, ok := body.(*harness.BlockedBody); ok {
				harness.Receive(t, b.Waiting, "wait for the body")
			}
			harness.Receive(t, w.began, "request")
			c.Abort()
			mustAbort(t, done)
			w.mustReset(t)
		})
	}
}

// An abort must not block, and the call can be reused afterwards.
func TestAbortAtAnyTime(t *testing.T) {
	a := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		io.Copy(w, r.Body)
	})
	client := newClient(t, a)
	c, _ := newCall("POST")
	for i := range 300 {
		c.Begin()
		c.Body, c.Request.Chunked = bytes.NewReader(make([]byte, 100<<10)), true
		var running sync.WaitGroup
		running.Go(func() {
			for range i * 5 {
				runtime.Gosched()
			}
			c.Abort()
		})
		_, body, err := get(client, c)
		if f := transport.FaultOf(err); f != transport.FaultAborted && (err != nil || len(body) != 100<<10) {
			t.Errorf("got %d bytes, error %v, want the complete body or an abort", len(body), err)
		}
		running.Wait()
	}
	if _, body, err := func() (int, string, error) { c.Begin(); c.Body = strings.NewReader("well"); return get(client, c) }(); body != "well" || err != nil {
		t.Errorf("got %q, %v, want well", body, err)
	}
}

func TestBodyReadErrorEndsCall(t *testing.T) {
	w := newWanted(t, func(*peer, *http2.MetaHeadersFrame) {})
	lost := errors.New("lost")
	c, _ := newUpload("PUT", io.MultiReader(strings.NewReader("begun"), failing{lost}))
	_, _, err := get(newClient(t, w.app), c)
	if transport.FaultOf(err) != transport.FaultClientGone || !errors.Is(err, lost) {
		t.Errorf("got %v, want the error of the body %v", err, lost)
	}
	w.mustReset(t)
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

func TestTruncatedResponseFailsAfterReceivedContent(t *testing.T) {
	for name, cut := range map[string]func(p *peer, id uint32){
		"the stream":        func(p *peer, id uint32) { p.WriteRSTStream(id, http2.ErrCodeInternal) },
		"without a message": func(p *peer, id uint32) { p.WriteRSTStream(id, http2.ErrCodeNo) },
		"the connection":    func(p *peer, id uint32) { p.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) {
				p.WriteHead(f.StreamID, false, ":status", "200", "content-length", "10")
				p.WriteData(f.StreamID, false, []byte("begun"))
				cut(p, f.StreamID)
			}})
			client := newClient(t, a)
			c, o := newCall("GET")
			status, body, err := get(client, c)
			if status != 200 || body != "begun" || transport.FaultOf(err) != transport.FaultReset || o.sends != 1 {
				t.Errorf("got %d, %q, %v, sent %d times, want 200, begun, a reset, once", status, body, err, o.sends)
			}
		})
	}
}
