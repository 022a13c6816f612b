package http1_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestUnknownAppProtocolReturns200(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *proxy.Proxy, s *proxytest.Options) { s.UnknownApp = true })
	c := server.Dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\n\r\n")
	c.WantBody("queue")
	server.WantCounts(1, 0) // independent of the app's protocol
	for range 3 {
		c.Get("/p")
	}
	server.WantCounts(4, 0)
}

func TestHTTP2OnlyAppReturns200(t *testing.T) {
	server := http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.Path)
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	a := harness.NewApp(t, harness.Echo)
	a.Listener.Close()
	front := proxytest.Start(t, a, func(_ *proxy.Proxy, s *proxytest.Options) { s.UnknownApp = true })
	ln := harness.ListenOn(t, a.Address())
	go server.Serve(ln)
	t.Cleanup(func() { server.Close() })
	c := front.Dial()
	for range 3 {
		c.Get("/p")
	}
	front.WantCounts(3, 0)
}

const settingsFrame = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func TestSplitPrefaceStartsHTTP2(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	text := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settingsFrame
	for split := 1; split < len(text); split++ {
		c := server.Dial()
		c.SetNoDelay(true)
		c.Send(text[:split])
		if split%4 == 0 {
			time.Sleep(time.Millisecond) // the test cannot detect that the first part has been read
		}
		c.Send(text[split:])
		head := make([]byte, 9)
		if _, err := io.ReadFull(c.In, head); err != nil || head[3] != 4 {
			t.Errorf("split at %d: got %q, %v, want SETTINGS", split, head, err)
		}
		c.Close()
	}
	server.WantCounts(0, uint64(len(text)-1))

	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr, Timeout: harness.Patience}).Get("http://" + server.Address + "/h2")
	harness.NoError(t, err)
	body, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.ProtoMajor != 2 || string(body) != "/h2" {
		t.Errorf("got %s %q, want HTTP/2 /h2", r.Proto, body)
	}
}

func TestInvalidPrefaceIsParsedAsRequest(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	c.SetNoDelay(true)
	for _, text := range []string{"P", "POST", "PRI"} {
		c.Send(text[:1])
		time.Sleep(time.Millisecond) // the test cannot detect that the first part has been read
		c.Send(text[1:] + strings.Repeat("X", 4-len(text)) + " /p HTTP/1.1\r\nHost: a\r\n\r\n")
		c.WantBody("/p")
	}
	server.WantCounts(3, 0)
}

func TestUpgradeStartsTunnel(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		if m := conn.Head(); m == nil || m.Get("upgrade") != "websocket" {
			conn.Send("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		conn.Send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello ")
		io.Copy(conn, conn.In)
	}), nil)
	c := server.Dial()
	c.Send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nright behind ")
	m, err := harness.ReadHead(c.In)
	if err != nil || m.Status() != 101 {
		t.Fatalf("got %v, %v, want 101", m, err)
	}
	c.Send("later")
	want := "hello right behind later"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c.In, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	c.CloseWrite()
	c.WantEnd()
	server.WantCounts(1, 0)
}

func TestIgnoredUpgradeKeepsConnection(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	c.Send("GET /java HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n")
	c.WantBody("/java")
	c.Send("POST /body HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi")
	c.WantBody("/body")
	server.WantCounts(2, 0)
	// The client offers another protocol in addition to h2c.
	c.Send("GET /two HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n")
	c.WantBody("/two")
	server.WantCounts(3, 0)
}
