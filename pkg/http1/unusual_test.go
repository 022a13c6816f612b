package http1_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

const (
	curlUpload = "PUT /upload HTTP/1.1\r\nHost: a\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
	goUpload   = "POST /go HTTP/1.1\r\nHost: a\r\nUser-Agent: Go-http-client/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nAccept-Encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n"
	javaOffer  = "GET /java HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 0\r\nHost: a\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\nUser-Agent: Java-http-client/21\r\n\r\n"
)

func TestAnUnusualRequestKeepsItsConnection(t *testing.T) {
	for name, text := range map[string]string{
		"HTTP/1.0 kept alive":    "GET /p HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"an unusual Host":        "GET /p HTTP/1.1\r\nHost: a!b\r\n\r\n",
		"Expect and chunks":      "POST /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"Expect and no body":     "GET /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
		"a probe with Expect":    "GET /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nK-Network-Probe: queue\r\n\r\n",
		"an answer of our own":   "GET /p HTTP/1.0\r\nConnection: keep-alive\r\nK-Network-Probe: other\r\n\r\n",
		"an absolute odd target": "GET http://user@a/p HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, newApp(t, echo), nil)
			c := h.dial()
			c.get("/before")
			for range 3 {
				c.send(text)
				if m := c.receive("GET"); m.status() != 200 && m.status() != 400 || m.get("connection") == "close" {
					t.Errorf("got %s, Connection: %s, want an answer that keeps the connection", m.start, m.get("connection"))
				}
				c.get("/between")
			}
			h.wantCounts(7, 0)
		})
	}
}

// Each answer in the first bytes decides what follows: 100 or the final status.
func TestAnUploadThatAsksFirstIsHeard(t *testing.T) {
	h := build(t, newApp(t, func(p *peer) {
		for m := p.head(); m != nil; m = p.head() {
			if strings.HasPrefix(m.target(), "/no") {
				p.say("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			if m.get("expect") != "" {
				p.say("HTTP/1.1 100 Continue\r\n\r\n")
			}
			if m.readBody(p.in) != nil {
				return
			}
			p.say(ok(m.body))
		}
	}), nil)
	c := h.dial()
	for range 3 {
		c.send(curlUpload)
		if m, err := readHead(c.r); err != nil || m.status() != 100 {
			t.Fatalf("got %v, %v, want 100", m, err)
		}
		c.send("hello")
		c.wantBody("hello")
	}
	h.wantCounts(3, 0)
	c.send(strings.Replace(curlUpload, "/upload", "/no", 1))
	if m := c.receive("PUT"); m.status() != 417 {
		t.Errorf("got %s, want 417", m.start)
	}
}

func TestOneOddRequestInAHundredCostsTheOthersNothing(t *testing.T) {
	for name, v := range map[string]struct {
		odd string
	}{
		"curl asks first":          {curlUpload + "hello"},
		"HTTP/1.0":                 {"GET /old HTTP/1.0\r\nConnection: keep-alive\r\nHost: a\r\n\r\n"},
		"Java offers HTTP/2":       {javaOffer},
		"chunks and trailers":      {goUpload},
		"a nominated field":        {"GET /n HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\n"},
		"a head of 30 KB":          {"GET /long HTTP/1.1\r\nHost: a\r\nCookie: " + strings.Repeat("x", 30<<10) + "\r\n\r\n"},
		"a target that is no URI":  {"GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n"},
		"a target in another form": {"GET http://a/p HTTP/1.1\r\nHost: a\r\n\r\n"},
		"a probe":                  {"GET / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t, newApp(t, echo), nil)
			c := h.dial()
			for i := range 300 {
				if i%100 == 42 {
					c.send(v.odd)
					if m := c.receive("GET"); m.status() != 200 {
						t.Fatalf("got %s, want 200", m.start)
					}
					continue
				}
				c.get("/p")
			}
			h.wantCounts(300, 0)
		})
	}
}

func TestAnAppThatIsNotKnownIsServed(t *testing.T) {
	h := build(t, newApp(t, echo), func(_ *queue.Proxy, s *settings) { s.unknown = true })
	c := h.dial()
	c.send("GET / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n")
	c.wantBody("queue")
	h.wantCounts(1, 0) // which is no affair of the app's
	for range 3 {
		c.get("/p")
	}
	h.wantCounts(4, 0)
}

func TestAnAppThatSpeaksOnlyHTTP2IsServed(t *testing.T) {
	server := http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.Path)
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	a := newApp(t, echo)
	a.ln.Close()
	h := build(t, a, func(_ *queue.Proxy, s *settings) { s.unknown = true })
	ln := listenAgain(t, a)
	go server.Serve(ln)
	t.Cleanup(func() { server.Close() })
	c := h.dial()
	for range 3 {
		c.get("/p")
	}
	h.wantCounts(3, 0)
}

func TestRequestsBehindUnusualOnesAreIntact(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c := h.dial()
	c.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /2 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"GET /4 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" +
		"GET /5 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" +
		"POST /6 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab")
	for i := range 5 {
		c.wantBody(fmt.Sprintf("/%d", i+1))
	}
	h.inFlight(1)
	c.send("c\r\n0\r\n\r\n")
	c.wantBody("/6")
	h.wantCounts(6, 0)
	// A head of which a part came while another request was served.
	app := newBlocking()
	h = build(t, newApp(t, app.play), nil)
	c = h.dial()
	c.send("GET /lent HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /be")
	h.inFlight(1)
	c.send("hind HTTP/1.1\r\nHo")
	close(app.free)
	c.wantBody("/lent")
	c.send("st: a\r\n\r\n")
	c.wantBody("/behind")
	h.wantCounts(2, 0)
}

func TestAClientOfHTTP10ThatLeavesIsNoticed(t *testing.T) {
	for name, leave := range map[string]func(*client){
		"FIN":   func(c *client) { c.Close() },
		"reset": func(c *client) { c.SetLinger(0); c.Close() },
		"behind a request": func(c *client) {
			c.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
			c.Close()
		},
	} {
		for _, times := range []int{1, 2} { // the second request of a connection is like the first
			t.Run(fmt.Sprint(name, ", request ", times), func(t *testing.T) {
				app := newBlocking()
				h := build(t, newApp(t, app.play), nil)
				defer close(app.free)
				c := h.dial()
				for range times - 1 {
					c.send("GET /p HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
					c.wantBody("/p")
				}
				c.send("GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
				h.poll("running request", func() bool { return app.running.Load() == 1 })
				leave(c)
				o := h.observed(times)[times-1]
				if o.Why != queue.ClientGone || o.Status != 499 {
					t.Errorf("got %v, %d, want %v, 499", o.Why, o.Status, queue.ClientGone)
				}
				h.poll("cancelled request at the app", func() bool { return app.gone.Load() == 1 })
			})
		}
	}
}

func TestAClockLeavesAConnectionOfHTTP10(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, app.play), func(p *queue.Proxy, _ *settings) { p.Clocks.Request = 30 * time.Millisecond })
	defer close(app.free)
	c := h.dial()
	for range 2 {
		c.send("GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
		if m := c.receive("GET"); m.status() != 504 || m.body != "request timeout" {
			t.Errorf("got %s %q, want 504", m.start, m.body)
		}
		for range 3 {
			time.Sleep(15 * time.Millisecond)
			c.get("/p")
		}
	}
	h.wantCounts(8, 0)
}

func TestARequestOfHTTP10IsServedDuringShutdown(t *testing.T) {
	app := newBlocking()
	h := build(t, newApp(t, app.play), nil)
	c := h.dial()
	c.send("GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
	h.poll("running request", func() bool { return app.running.Load() == 1 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.shutdown()
	}()
	h.poll("end of accepting", func() bool {
		c, err := net.Dial("tcp", h.address)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	close(app.free)
	c.wantBody("/wait")
	c.ended()
	<-done
}

const settingsFrame = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func TestHTTP2IsHandedOverWhereverItsPrefaceIsSplit(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	text := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settingsFrame
	for split := 1; split < len(text); split++ {
		c := h.dial()
		c.SetNoDelay(true)
		c.send(text[:split])
		if split%4 == 0 {
			time.Sleep(time.Millisecond)
		}
		c.send(text[split:])
		head := make([]byte, 9)
		if _, err := io.ReadFull(c.r, head); err != nil || head[3] != 4 {
			t.Errorf("split at %d: got %q, %v, want SETTINGS", split, head, err)
		}
		c.Close()
	}
	h.wantCounts(0, uint64(len(text)-1))

	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://" + h.address + "/h2")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.ProtoMajor != 2 || string(body) != "/h2" {
		t.Errorf("got %s %q, want HTTP/2 /h2", r.Proto, body)
	}
}

func TestAPrefaceThatIsNoneIsARequest(t *testing.T) {
	h := build(t, newApp(t, echo), nil)
	c := h.dial()
	c.SetNoDelay(true)
	for _, text := range []string{"P", "POST", "PRI"} {
		c.send(text[:1])
		time.Sleep(time.Millisecond)
		c.send(text[1:] + strings.Repeat("X", 4-len(text)) + " /p HTTP/1.1\r\nHost: a\r\n\r\n")
		c.wantBody("/p")
	}
	h.wantCounts(3, 0)
}

func TestAnUpgradeBecomesATunnel(t *testing.T) {
	h := build(t, newApp(t, func(p *peer) {
		if m := p.head(); m == nil || m.get("upgrade") != "websocket" {
			p.say("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		p.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello ")
		io.Copy(p, p.in)
	}), nil)
	c := h.dial()
	c.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nright behind ")
	m, err := readHead(c.r)
	if err != nil || m.status() != 101 {
		t.Fatalf("got %v, %v, want 101", m, err)
	}
	c.send("later")
	want := "hello right behind later"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c.r, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	c.CloseWrite()
	c.ended()
	h.wantCounts(1, 0)
}

func TestAnAttackIsRefusedAndNothingBehindItIsServed(t *testing.T) {
	a := newApp(t, echo)
	h := build(t, a, nil)
	const behind = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	attacks := []string{
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX\x00: b\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01",
	}
	for _, attack := range attacks {
		c := h.dial()
		c.get("/first")
		c.send(attack + behind)
		m := c.receive("POST")
		if m.status() != 400 || m.get("connection") != "close" || !strings.Contains(m.get("proxy-status"), "bad-request") {
			t.Errorf("%q: got %+v, want 400, close, bad-request", attack, m)
		}
		c.ended()
	}
	h.wantCounts(uint64(len(attacks)), 0)
	if got := strings.Join(a.lines(), "|"); strings.ReplaceAll(got+"|", "GET /first HTTP/1.1|", "") != "" {
		t.Errorf("the app got %s, want /first alone", got)
	}
}

// Heads that RFC 9112 lets a server refuse are, and nothing behind them is served.
func TestAHeadInDoubtIsRefused(t *testing.T) {
	a := newApp(t, echo)
	h := build(t, a, nil)
	for _, text := range []string{
		"GET /odd HTTP/1.1\r\nHost: a\r\nX-Fold: a\r\n b\r\n\r\n",
		"GET /odd HTTP/1.1\nHost: a\n\n",
		"\r\nGET /odd HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /odd HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
	} {
		c := h.dial()
		c.get("/first")
		c.send(text + "GET /behind HTTP/1.1\r\nHost: a\r\n\r\n")
		if m := c.receive("GET"); m.status() != 400 || m.get("connection") != "close" {
			t.Errorf("%q: got %s, Connection: %q, want 400 and the end", text, m.start, m.get("connection"))
		}
		c.ended()
	}
	h.wantCounts(4, 0)
	if got := strings.Join(a.lines(), "|"); strings.Contains(got, "/behind") || strings.Contains(got, "/odd") {
		t.Errorf("the app got %s, want nothing from behind", got)
	}
}
