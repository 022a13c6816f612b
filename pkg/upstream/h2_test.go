package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/forward"
)

// settings is the frame that a server's side of an HTTP/2 connection opens with:
// one setting, SETTINGS_MAX_CONCURRENT_STREAMS 100.
const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"

func TestAUserContainerThatSpeaksHTTP2AloneIsFoundOutBeforeItsBodyIsTouched(t *testing.T) {
	for name, play := range map[string]func(p *peer){
		"at once": func(p *peer) { p.say(settings); p.hang() },
		"after reading the head": func(p *peer) {
			p.head()
			p.say(settings + "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01")
		},
		"in two pieces": func(p *peer) { p.say(settings[:4]); p.head(); p.say(settings[4:]); p.hang() },
	} {
		for _, expects := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				a := stranger(t, serve(t, "127.0.0.1:0", play).port)
				k := ask("POST", "/")
				k.Expect100 = expects
				k.with(readerFunc(func([]byte) (int, error) {
					t.Error("got asked for the body, want not")
					return 0, io.EOF
				}), 5)
				got := k.do(a)
				if fault(got.err) != forward.Garbage || !errors.Is(got.err, errSpeaksH2) || !a.OnlyH2() || !k.BodyUntouched() {
					t.Errorf("got %v, only HTTP/2 %v, body untouched %v, want %v, true, true", got.err, a.OnlyH2(), k.BodyUntouched(), errSpeaksH2)
				}
				if speaks, err := a.SpeaksH2(t.Context()); !speaks || err != nil {
					t.Errorf("got %v, %v, want HTTP/2 without asking", speaks, err)
				}
			})
		}
	}
}

func TestGarbageThatIsNoSettingsFrameTeachesNothing(t *testing.T) {
	for _, say := range []string{
		"\x00",
		"\x00\x00\x06\x04\x00\x00\x00\x00",
		"\x00\x00\x06\x04\x01\x00\x00\x00\x00",     // an acknowledgement
		"\x00\x00\x06\x04\x00\x00\x00\x00\x01",     // of a stream
		"\x00\x00\x06\x05\x00\x00\x00\x00\x00",     // another type
		"\x15\x03\x01\x00\x02\x02\x46\x00\x00\x00", // a TLS alert
	} {
		a := stranger(t, serve(t, "127.0.0.1:0", func(p *peer) { p.head(); p.say(say) }).port)
		got := ask("GET", "/").do(a)
		if h1, h2 := a.speech.heard(); fault(got.err) != forward.Garbage || h1 != unknown || h2 != unknown {
			t.Errorf("got %v, %d, %d behind %q, want garbage, nothing learnt", got.err, h1, h2, say)
		}
	}
}

func TestAFreshConnectionThatClosesWithoutAWordMayBeHTTP2(t *testing.T) {
	for _, known := range []bool{false, true} {
		a := stranger(t, serve(t, "127.0.0.1:0", func(p *peer) { p.head() }).port)
		if known {
			a.speech.learnH1(true)
		}
		var e *forward.Error
		if err := ask("GET", "/").do(a).err; !errors.As(err, &e) || e.Fault != forward.Reset || e.Silent == known {
			t.Errorf("got %+v, want a reset, silent %v", e, !known)
		}
	}
}

func TestWhetherItSpeaksHTTP2IsAskedOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		play   func(p *peer)
		speaks bool
	}{
		{"HTTP/2", func(p *peer) { p.say(settings); p.hang() }, true},
		{"HTTP/2 in pieces", func(p *peer) { io.Copy(p, iotest.OneByteReader(strings.NewReader(settings))); p.hang() }, true},
		{"400", func(p *peer) { p.head(); p.say("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") }, false},
		{"505, still open", func(p *peer) { p.head(); p.say("HTTP/1.1 505 No\r\nContent-Length: 0\r\n\r\n"); p.hang() }, false},
		{"closes", func(p *peer) {}, false},
		{"resets", func(p *peer) { p.head(); p.rst() }, false},
		{"one byte", func(p *peer) { p.head(); p.say("\x00") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "127.0.0.1:0", c.play)
			a := stranger(t, s.port)
			for range 2 {
				if speaks, err := a.SpeaksH2(t.Context()); speaks != c.speaks || err != nil {
					t.Errorf("got %v, %v, want %v", speaks, err, c.speaks)
				}
			}
			if n := s.connections(); n != 1 {
				t.Errorf("got %d connections, want 1", n)
			}
			if a.OnlyH2() {
				t.Error("got only HTTP/2, want not known")
			}
		})
	}
}

func TestOnlyOneThatAnswersInHTTP2AloneSpeaksNothingElse(t *testing.T) {
	answers := func(h1, h2 func(p *peer)) func(p *peer) {
		return func(p *peer) {
			if r := p.head(); r != nil && r.Method == "PRI" {
				h2(p)
			} else {
				h1(p)
			}
		}
	}
	yesH1 := func(p *peer) { p.say("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") }
	yesH2 := func(p *peer) {
		p.say(settings + "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x01\x00\x00") // and a WINDOW_UPDATE
		io.CopyN(io.Discard, p.in, int64(len("SM\r\n\r\n")+9+17))
		p.say("\x00\x00\x08\x06\x01\x00\x00\x00\x00alive???")
		p.hang()
	}
	dyingH2 := func(p *peer) { // a little later than its connections in HTTP/1.1
		p.say(settings)
		time.Sleep(10 * time.Millisecond)
	}
	closes := func(p *peer) {}
	for name, c := range map[string]struct {
		play        func(p *peer)
		only        bool
		h1          answer
		connections int
	}{
		"HTTP/2 alone, which closes":      {answers(closes, yesH2), true, no, 4},
		"HTTP/2 alone, which resets":      {answers((*peer).rst, yesH2), true, no, 4},
		"HTTP/2 alone, which says so":     {answers(yesH2, yesH2), true, no, 4},
		"both":                            {answers(yesH1, yesH2), false, yes, 3},
		"one that is dying":               {answers(closes, dyingH2), false, unknown, 7},
		"HTTP/1.1":                        {answers(yesH1, yesH1), false, unknown, 1},
		"neither":                         {closes, false, unknown, 1},
		"HTTP/2, and too busy for a word": {answers((*peer).hang, yesH2), false, unknown, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "127.0.0.1:0", c.play)
			a := stranger(t, s.port)
			for range 2 {
				only, err := a.SpeaksOnlyH2(t.Context())
				if h1, _ := a.speech.heard(); only != c.only || err != nil || h1 != c.h1 {
					t.Errorf("got %v, %v, HTTP/1.1 %d, want %v, HTTP/1.1 %d", only, err, h1, c.only, c.h1)
				}
			}
			if n := s.connections(); n != c.connections {
				t.Errorf("got %d connections, want %d", n, c.connections)
			}
		})
	}
}

// Its connections in HTTP/2 may live on while it takes no more.
func TestOneThatHasShutItsDoorIsNotTakenForOneThatSpeaksHTTP2Alone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, ln, func(p *peer) {
		if r := p.head(); r == nil || r.Method != "PRI" {
			ln.Close()
			return
		}
		p.say(settings)
		io.CopyN(io.Discard, p.in, int64(len("SM\r\n\r\n")+9+17))
		p.say("\x00\x00\x08\x06\x01\x00\x00\x00\x00alive???")
		p.hang()
	})
	a := stranger(t, s.port)
	if only, err := a.SpeaksOnlyH2(t.Context()); only || err != nil {
		t.Errorf("got %v, %v, want false: it may speak HTTP/1.1 as well", only, err)
	}
	if h1, _ := a.speech.heard(); h1 != unknown {
		t.Errorf("got HTTP/1.1 %d, want it unknown", h1)
	}
}

// A user container that is busy starting says nothing either.
func TestSilenceIsAnAnswerOnlyOfOneThatSpeaksHTTP1(t *testing.T) {
	for _, c := range []struct {
		name     string
		h1       bool
		remember bool
	}{
		{"HTTP/1.1 heard", true, true},
		{"nothing heard", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "127.0.0.1:0", func(p *peer) {
				if p.turn > 0 {
					p.say(settings)
				}
				p.hang()
			})
			a := stranger(t, s.port)
			if c.h1 {
				a.speech.learnH1(true)
			}
			if speaks, err := a.SpeaksH2(t.Context()); speaks || err != nil {
				t.Errorf("got %v, %v, want not HTTP/2", speaks, err)
			}
			if speaks, err := a.SpeaksH2(t.Context()); speaks == c.remember || err != nil {
				t.Errorf("got %v, %v, want it remembered %v", speaks, err, c.remember)
			}
		})
	}
}

func TestWhatWasLearntIsForgottenWhenADialFails(t *testing.T) {
	s := serve(t, "127.0.0.1:0", func(p *peer) { p.say(settings); p.hang() })
	a := stranger(t, s.port)
	a.SpeaksH2(t.Context())
	a.speech.learnH1(false)
	s.ln.Close()
	if got := ask("GET", "/").do(a); fault(got.err) != forward.Unreachable {
		t.Fatalf("got %v, want unreachable", got.err)
	}
	if a.OnlyH2() {
		t.Error("got only HTTP/2, want it forgotten")
	}
	if _, err := a.SpeaksH2(t.Context()); fault(err) != forward.Unreachable {
		t.Errorf("got %v, want unreachable", err)
	}
}

func TestTheQuestionForHTTP2EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("the client has gone")
	a := stranger(t, serve(t, "127.0.0.1:0", func(p *peer) { p.head(); cancel(left); p.hang() }).port)
	speaks, err := a.SpeaksH2(ctx)
	if speaks || !errors.Is(err, left) {
		t.Errorf("got %v, %v, want %v", speaks, err, left)
	}
	if _, h2 := a.speech.heard(); h2 != unknown {
		t.Error("got an answer remembered, want none: nobody gave one")
	}
}

// h2c is a real server that speaks HTTP/2 by prior knowledge.
func h2c(t *testing.T, handler http.HandlerFunc) (port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { s.Close(); <-done })
	return ln.Addr().(*net.TCPAddr).Port
}

func requestH2(ctx context.Context, host string, body io.Reader) *http.Request {
	r := &http.Request{
		Method: "POST",
		URL:    &url.URL{Scheme: "http", Host: host, Opaque: "http://" + host + "/a%2f;b//"},
		Host:   host,
		Header: http.Header{},
	}
	if body != nil {
		r.Body, r.ContentLength = io.NopCloser(body), -1
	}
	return r.WithContext(ctx)
}

func TestHTTP2RequestsOfAllHostsShareAConnection(t *testing.T) {
	var clients sync.Map
	port := h2c(t, func(w http.ResponseWriter, r *http.Request) {
		clients.Store(r.RemoteAddr, true)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "T")
		io.WriteString(w, r.Host+" "+r.RequestURI+" "+string(body))
		w.Header().Set("T", "end")
	})
	a := stranger(t, port)
	if speaks, err := a.SpeaksH2(t.Context()); !speaks || err != nil {
		t.Fatalf("got %v, %v, want HTTP/2", speaks, err)
	}
	for _, host := range []string{"a.example", "b.example", "c.example:8080"} {
		r, err := a.RoundTripH2(requestH2(t.Context(), host, strings.NewReader("hello")))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if want := host + " /a%2f;b// hello"; string(body) != want || err != nil || r.Trailer.Get("T") != "end" {
			t.Errorf("got %q, %v, trailer %q, want %q, trailer end", body, err, r.Trailer.Get("T"), want)
		}
	}
	n := 0
	clients.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("got %d connections, want 1", n)
	}
}

func TestAnHTTP2ResponseMayComeBeforeTheEndOfTheRequest(t *testing.T) {
	port := h2c(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "a")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	a := stranger(t, port)
	a.speech.learnH1(false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var infos []int
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(status int, _ textproto.MIMEHeader) error { infos = append(infos, status); return nil },
	})
	r, err := a.RoundTripH2(requestH2(ctx, "app", endless{}))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != 413 || len(infos) != 1 || infos[0] != 103 {
		t.Errorf("got %v and %d, want [103] and 413", infos, r.StatusCode)
	}
}

func TestAnHTTP2RequestThatReachesNobodySaysSo(t *testing.T) {
	port, _ := nobody(t)
	a := stranger(t, port)
	a.speech.learnH1(false)
	if _, err := a.RoundTripH2(requestH2(t.Context(), "app", nil)); fault(err) != forward.Unreachable {
		t.Errorf("got %v, want unreachable", err)
	}
	if a.OnlyH2() {
		t.Error("got only HTTP/2, want it forgotten")
	}
}

func TestAClientThatLeavesDoesNotMakeUsForgetWhatIsSpoken(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	port := h2c(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	a := stranger(t, port)
	a.speech.learnH1(false)
	if _, err := a.RoundTripH2(requestH2(ctx, "app", nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if !a.OnlyH2() {
		t.Error("got nothing known, want only HTTP/2")
	}

	port, _ = nobody(t)
	waiting := New(Settings{Port: port, ConnectRetry: time.Hour})
	defer waiting.Close()
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	waiting.speech.learnH1(false)
	if _, err := waiting.dial(ctx); err == nil {
		t.Error("got a connection, want none")
	}
	if !waiting.OnlyH2() {
		t.Error("got nothing known behind a dial that was given up, want only HTTP/2")
	}
}

// framer is the server's side of an HTTP/2 connection by hand: it answers each
// HEADERS frame with what play says, given the stream and how many came before.
func framer(play func(p *peer, stream [4]byte, turn int)) func(p *peer) {
	return func(p *peer) {
		p.say("\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		io.CopyN(io.Discard, p.in, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
		var head [9]byte
		for turn := 0; ; {
			if _, err := io.ReadFull(p.in, head[:]); err != nil {
				return
			}
			io.CopyN(io.Discard, p.in, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
			switch head[3] {
			case 1: // HEADERS
				play(p, [4]byte(head[5:]), turn)
				turn++
			case 4: // SETTINGS
				if head[4] == 0 {
					p.say("\x00\x00\x00\x04\x01\x00\x00\x00\x00")
				}
			}
		}
	}
}

// Go's transport sends them again and again, for a minute and more.
func TestAnHTTP2RequestWhoseStreamIsResetIsReplayedByTheRule(t *testing.T) {
	const protocolError, refusedStream = "\x01", "\x07"
	for _, code := range []string{protocolError, refusedStream} {
		for _, c := range []struct {
			method string
			before int // requests that the connection has served
			sends  int32
		}{{"GET", 0, 1}, {"POST", 0, 1}, {"GET", 1, 2}, {"POST", 1, 1}} {
			var seen atomic.Int32
			s := serve(t, "127.0.0.1:0", framer(func(p *peer, stream [4]byte, turn int) {
				if p.turn == 0 && turn < c.before {
					p.say("\x00\x00\x01\x01\x05" + string(stream[:]) + "\x88") // :status 200
					return
				}
				seen.Add(1)
				p.say("\x00\x00\x04\x03\x00" + string(stream[:]) + "\x00\x00\x00" + code) // RST_STREAM
			}))
			a := stranger(t, s.port)
			a.speech.learnH1(false)
			for range c.before {
				r, err := a.RoundTripH2(requestH2(t.Context(), "app", nil))
				if err != nil {
					t.Fatal(err)
				}
				r.Body.Close()
			}
			r := requestH2(t.Context(), "app", nil)
			r.Method = c.method
			_, err := a.RoundTripH2(r)
			if fault(err) != forward.Reset || seen.Load() != c.sends {
				t.Errorf("got %v, %s sent %d times behind %d others, want a reset, %d times", err, c.method, seen.Load(), c.before, c.sends)
			}
			if !a.OnlyH2() {
				t.Error("got it forgotten, want only HTTP/2: a stream that is reset is HTTP/2")
			}
		}
	}
}

func TestAnHTTP2RequestWhoseConnectionBreaksIsReplayedByTheRule(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		before int    // requests that the connection has served
		says   string // before it breaks, on the stream
		body   io.Reader
		sends  int32
	}{
		"GET":                           {method: "GET", before: 1, sends: 2},
		"GET on a fresh connection":     {method: "GET", before: 0, sends: 1},
		"POST":                          {method: "POST", before: 1, sends: 1},
		"PUT whose body has gone":       {method: "PUT", before: 1, sends: 1, body: strings.NewReader("hi")},
		"GET that has heard of a start": {method: "GET", before: 1, sends: 1, says: "\x08\x03103"}, // :status 103
	} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int32
			s := serve(t, "127.0.0.1:0", framer(func(p *peer, stream [4]byte, turn int) {
				if p.turn > 0 || turn < c.before {
					if p.turn > 0 {
						seen.Add(1)
					}
					p.say("\x00\x00\x01\x01\x05" + string(stream[:]) + "\x88") // :status 200
					return
				}
				seen.Add(1)
				if c.says != "" {
					p.say("\x00\x00" + string(rune(len(c.says))) + "\x01\x04" + string(stream[:]) + c.says)
				}
				p.CloseWrite()
			}))
			a := stranger(t, s.port)
			a.speech.learnH1(false)
			for range c.before {
				r, err := a.RoundTripH2(requestH2(t.Context(), "app", nil))
				if err != nil {
					t.Fatal(err)
				}
				r.Body.Close()
			}
			r := requestH2(t.Context(), "app", c.body)
			r.Method = c.method
			res, err := a.RoundTripH2(r)
			if answered := err == nil; answered != (c.sends == 2) || seen.Load() != c.sends {
				t.Errorf("got an answer %v (%v), sent %d times, want %v, %d times", answered, err, seen.Load(), c.sends == 2, c.sends)
			}
			if err == nil {
				res.Body.Close()
			}
		})
	}
}

// Another user container may have taken the port.
func TestAnAnswerThatIsNotHTTP2MakesUsForgetWhatIsSpoken(t *testing.T) {
	a := stranger(t, serve(t, "127.0.0.1:0", func(p *peer) { p.head(); p.say("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") }).port)
	a.speech.learnH1(false)
	if r, err := a.RoundTripH2(requestH2(t.Context(), "app", nil)); err == nil {
		t.Errorf("got status %d, want an error", r.StatusCode)
	}
	if a.OnlyH2() {
		t.Error("got only HTTP/2, want it forgotten")
	}
}

func TestHTTP2BuffersAreSmallWhateverTheUserContainerWouldBear(t *testing.T) {
	var window, longest, sum atomic.Int64
	s := serve(t, "127.0.0.1:0", func(p *peer) {
		for _, b := range []byte("\x00\x00\x12\x04\x00\x00\x00\x00\x00" + // SETTINGS
			"\x00\x03\x00\x00\x00\x64" + // MAX_CONCURRENT_STREAMS 100
			"\x00\x04\x00\x10\x00\x00" + // INITIAL_WINDOW_SIZE 1 MB
			"\x00\x05\x00\x10\x00\x00" + // MAX_FRAME_SIZE 1 MB
			"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x10\x00\x00") { // WINDOW_UPDATE 1 MB
			p.say(string(b))
		}
		io.CopyN(io.Discard, p.in, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
		for {
			var head [9]byte
			if _, err := io.ReadFull(p.in, head[:]); err != nil {
				return
			}
			payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
			if _, err := io.ReadFull(p.in, payload); err != nil {
				return
			}
			switch kind, flags := head[3], head[4]; {
			case kind == 4 && flags == 0:
				for ; len(payload) >= 6; payload = payload[6:] {
					if binary.BigEndian.Uint16(payload) == 4 {
						window.Store(int64(binary.BigEndian.Uint32(payload[2:])))
					}
				}
				p.say("\x00\x00\x00\x04\x01\x00\x00\x00\x00")
			case kind == 0:
				longest.Store(max(longest.Load(), int64(len(payload))))
				sum.Add(int64(len(payload)))
				if flags&1 != 0 {
					p.say("\x00\x00\x01\x01\x05" + string(head[5:]) + "\x88") // :status 200
				}
			}
		}
	})
	a := stranger(t, s.port)
	a.speech.learnH1(false)
	r, err := a.RoundTripH2(requestH2(t.Context(), "app", io.LimitReader(zeros{}, 1<<19)))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if sum.Load() != 1<<19 || longest.Load() > pieceSize {
		t.Errorf("got %d bytes in frames of up to %d, want %d in frames of %d", sum.Load(), longest.Load(), 1<<19, pieceSize)
	}
	if window.Load() != bufferSize {
		t.Errorf("got a window of %d for a response, want %d", window.Load(), bufferSize)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestAnHTTP2HeadIsAsLongAsOneInHTTP11MayBe(t *testing.T) {
	for length, want := range map[int]bool{maxHead / 2: true, 2 * maxHead: false} {
		port := h2c(t, func(w http.ResponseWriter, r *http.Request) {
			for range length >> 10 {
				w.Header().Add("X", strings.Repeat("v", 1<<10))
			}
		})
		a := stranger(t, port)
		a.speech.learnH1(false)
		r, err := a.RoundTripH2(requestH2(t.Context(), "app", nil))
		if err == nil {
			r.Body.Close()
		}
		if (err == nil) != want {
			t.Errorf("%d bytes: got error %v, want none %t", length, err, want)
		}
	}
}
