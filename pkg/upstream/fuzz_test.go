package upstream

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"

	"golang.org/x/net/http2"
)

// blankName is a blank between a field's name and its colon.
var blankName = regexp.MustCompile(`(?m)^[^\r\n:]+[ \t]:`)

// FuzzResponse has a user container answer with anything. A call ends, whatever
// comes, and its connection is kept only where net/http, too, finds one whole
// response in the bytes and nothing behind it.
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
	f.Fuzz(func(t *testing.T, say []byte, head, upgrade bool, split int) {
		if split < 0 || split > len(say) {
			split = len(say)
		}
		a.speech.learnH1(true)
		k := ask(methods[head], "/")
		k.request.Upgrade = upgrade
		if !head && !upgrade {
			k.with(bytes.NewReader(make([]byte, 10)), -1)
		}
		near, far := link()
		heard := make(chan struct{})
		go func() { // takes all that comes
			defer close(heard)
			io.Copy(io.Discard, far)
		}()
		said := make(chan struct{})
		go func() {
			defer close(said)
			far.Write(say[:split])
			far.Write(say[split:])
			far.CloseWrite()
		}()
		got := within(t, "the end", func() outcome { return k.doOn(a, newConn(near, &a.buffers)) })
		kept := idle(a)
		for _, c := range a.idle {
			c.close()
		}
		a.idle = nil
		near.Close()
		<-said
		<-heard
		far.Close()

		if got.err != nil && fault(got.err) == 0 {
			t.Errorf("got %v, want a fault", got.err)
		}
		if kept == 0 {
			return
		}
		r := bufio.NewReader(bytes.NewReader(say))
		for {
			response, err := http.ReadResponse(r, &http.Request{Method: k.request.Method})
			if err != nil && blankName.Match(say) {
				return // which a proxy must bear (RFC 9112 5.1), and net/http does not
			}
			if err != nil {
				t.Fatalf("got the connection kept behind %q, net/http says %v", say, err)
			}
			body, err := io.ReadAll(response.Body)
			if response.StatusCode < 200 && response.StatusCode != 101 {
				continue
			}
			if err != nil || string(body) != got.body {
				t.Fatalf("got %q kept behind %q, net/http says %q, %v", got.body, say, body, err)
			}
			break
		}
		if split == len(say) && r.Buffered() > 0 {
			t.Fatalf("got the connection kept with %d bytes behind the response, want it closed", r.Buffered())
		}
	})
}

// FuzzSettings holds what we take for the beginning of HTTP/2 to another reading of
// the first frame, and to what that library writes.
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
				t.Errorf("%x: got SETTINGS, want it too short", b[:n])
			}
			if is && !couldBeSettings(b[:n]) {
				t.Errorf("%x: got no SETTINGS, want to wait for more: %x", b[:n], b)
			}
		}
		if couldBeSettings(b) && (len(b) >= 9 || !isSettings(append(bytes.Clone(b), make([]byte, 9)...)) && len(b) > 3) {
			t.Errorf("%x: got it to be waited for, want it judged", b)
		}

		var written bytes.Buffer
		if err := http2.NewFramer(&written, nil).WriteSettings(http2.Setting{ID: http2.SettingID(id), Val: value}); err != nil {
			t.Fatal(err)
		}
		if !isSettings(written.Bytes()) {
			t.Errorf("%x: got no SETTINGS, want them", written.Bytes())
		}
	})
}
