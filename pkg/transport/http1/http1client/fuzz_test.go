package http1client

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"golang.org/x/net/http2"
)

// blankName matches a field name that is followed by whitespace.
var blankName = regexp.MustCompile(`(?m)^[^\r\n:]+[ \t]:`)

// FuzzResponse sends arbitrary responses from a user container. Each call must end. Its connection may
// be reused only if net/http also reads exactly one complete response.
func FuzzResponse(f *testing.F) {
	for _, c := range framings {
		f.Add([]byte(c.say), c.method == "HEAD", false, 7)
	}
	f.Add([]byte(settings), false, false, 3)
	f.Add([]byte(switching+"behind"), false, true, 0)
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n"), false, true, 30)
	methods := map[bool]string{false: "POST", true: "HEAD"}
	a := New(Settings{Port: 1})
	f.Cleanup(a.Close)
	f.Fuzz(func(t *testing.T, sent []byte, head, upgrade bool, split int) {
		if split < 0 || split > len(sent) {
			split = len(sent)
		}
		k := newCall(methods[head], "/")
		k.request.Upgrade = upgrade
		if !head && !upgrade {
			k.with(bytes.NewReader(make([]byte, 10)), -1)
		}
		got, kept := answerWith(t, a, k, sent[:split], sent[split:])
		if got.err != nil && transport.FaultOf(got.err) == 0 {
			t.Errorf("got %v, want a fault", got.err)
		}
		if kept {
			wantWhole(t, sent, k.request.Method, got.body, split == len(sent))
		}
	})
}

// answerWith runs a call whose response is sent in two parts. It reports whether the connection can
// be reused.
func answerWith(t *testing.T, a *App, k *testCall, first, rest []byte) (got outcome, kept bool) {
	a.versions.setH1(true)
	near, far := pipes()
	read, written := make(chan struct{}), make(chan struct{})
	go func() { // discard the input
		defer close(read)
		io.Copy(io.Discard, far)
	}()
	go func() {
		defer close(written)
		far.Write(first)
		far.Write(rest)
		far.CloseWrite()
	}()
	got = harness.Within(t, "the end", func() outcome { return k.doOn(a, newClientConn(near, a.buffers)) })
	kept = idle(a) > 0
	for _, c := range a.idle {
		c.close()
	}
	a.idle = nil
	near.Close()
	<-written
	<-read
	far.Close()
	return got, kept
}

// wantWhole reports an error unless net/http reads one response with the same body. If the response
// was sent with one write, no bytes may follow it.
func wantWhole(t *testing.T, sent []byte, method, wantBody string, atOnce bool) {
	r := bufio.NewReader(bytes.NewReader(sent))
	for {
		response, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil && blankName.Match(sent) {
			return // a proxy must accept the whitespace (RFC 9112 section 5.1), but net/http does not
		}
		if err != nil {
			t.Fatalf("got the connection kept after %q, net/http says %v", sent, err)
		}
		body, err := io.ReadAll(response.Body)
		if response.StatusCode < 200 && response.StatusCode != 101 {
			continue
		}
		if err != nil || string(body) != wantBody {
			t.Fatalf("got %q and the connection kept after %q, net/http says %q, %v", wantBody, sent, body, err)
		}
		break
	}
	if atOnce && r.Buffered() > 0 {
		t.Fatalf("got the connection kept with %d bytes after the response, want it closed", r.Buffered())
	}
}

// FuzzSettings compares isSettings with another HTTP/2 implementation.
func FuzzSettings(f *testing.F) {
	f.Add([]byte(settings), uint16(3), uint32(100))
	f.Add([]byte("\x00\x00\x00\x04\x01\x00\x00\x00\x00"), uint16(0), uint32(0))
	f.Add([]byte("HTTP/1.1 "), uint16(5), uint32(1<<31))
	f.Fuzz(func(t *testing.T, b []byte, id uint16, value uint32) {
		is := isSettings(b)
		if is {
			h, err := http2.ReadFrameHeader(bytes.NewReader(b))
			if err != nil || h.Type != http2.FrameSettings || h.Flags.Has(http2.FlagSettingsAck) || h.StreamID != 0 {
				t.Errorf("%x: got SETTINGS, want %v, %v", b, h, err)
			}
		}
		for n := range min(len(b), 9) {
			if isSettings(b[:n]) {
				t.Errorf("%x: got SETTINGS, want an incomplete header", b[:n])
			}
			if is && !couldBeSettings(b[:n]) {
				t.Errorf("%x: got no SETTINGS, want an incomplete header of %x", b[:n], b)
			}
		}
		if couldBeSettings(b) && (len(b) >= 9 || !isSettings(append(bytes.Clone(b), make([]byte, 9)...)) && len(b) > 3) {
			t.Errorf("%x: got an incomplete header, want it classified", b)
		}

		var written bytes.Buffer
		harness.NoError(t, http2.NewFramer(&written, nil).WriteSettings(http2.Setting{ID: http2.SettingID(id), Val: value}))
		if !isSettings(written.Bytes()) {
			t.Errorf("%x: got no SETTINGS, want SETTINGS", written.Bytes())
		}
	})
}
