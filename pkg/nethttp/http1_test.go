package nethttp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestPipelinedRequestsAreAnsweredInOrderOnOneConnection(t *testing.T) {
	proxy := startHandler(t, &targets{}, nil)
	c := proxy.Dial()
	c.Send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" +
		"GET /d HTTP/1.1\r\nHost: a\r\n\r\n")
	for _, want := range []string{"/a", "/b", "/c", "/d"} {
		if m := c.Receive("GET"); m.Body != want {
			t.Errorf("got %q, want %q", m.Body, want)
		}
	}
}

func TestAHeadSentByteByByteIsServed(t *testing.T) {
	proxy := startHandler(t, &targets{}, nil)
	c := proxy.Dial()
	for range 2 { // the second while net/http waits for a hang-up
		for _, b := range []byte("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab") {
			c.Send(string(b))
		}
		if m := c.Receive("POST"); m.Body != "/slow" {
			t.Errorf("got %q, want %q", m.Body, "/slow")
		}
	}
}

func TestTargetsArriveByteForByte(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	harness.NoError(t, err)
	lines := make(chan string, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			line, _ := r.ReadString('\n')
			lines <- strings.TrimRight(line, "\r\n")
			io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			for line != "\r\n" && line != "" {
				line, _ = r.ReadString('\n')
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close() })
	proxy := start(t, ln.Addr().(*net.TCPAddr).Port, nil)
	for _, target := range []string{
		"/", "//", "/a//b", "/a/../b", "/%2f%2F", "/a?x=1;y=2&z=%zz", "/p\"q|r", "/\xc3\xa9/%2f", "/?", "/a?b?c", "/a;b=c", "/*", "/\\",
	} {
		c := proxy.Dial()
		c.Send("GET " + target + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		if m := c.Receive("GET"); m.Status() != 204 {
			t.Errorf("%q: got %d %q, want 204", target, m.Status(), m.Body)
			continue
		}
		harness.Equal(t, <-lines, "GET "+target+" HTTP/1.1", "the app")
	}
}

func TestAHeadOverTheLimitIsAnswered431(t *testing.T) {
	proxy := startHandler(t, &targets{}, func(_ *queue.Proxy, s *proxytest.Options) { s.MaxHeaderBytes = 8 << 10 })
	for _, size := range []int{13 << 10, 100 << 10} { // net/http takes 4 KiB more than MaxHeaderBytes
		c := proxy.Dial()
		c.Send("GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", size) + "\r\n\r\n")
		if m := c.Receive("GET"); m.Status() != 431 {
			t.Errorf("%d bytes: got %d, want 431", size, m.Status())
		}
		c.WantEnd()
	}
}

func TestAnAnswerToAFinishedPostKeepsTheConnection(t *testing.T) {
	proxy := startHandler(t, &targets{}, nil)
	for _, body := range []string{
		"Content-Length: 5\r\n\r\nhello",
		"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	} {
		c := proxy.Dial()
		for range 50 {
			c.Send("POST /x HTTP/1.1\r\nHost: a\r\n" + body)
			if m := c.Receive("POST"); m.Status() != 200 || m.Closes() {
				t.Fatalf("got %d, close %v, want 200, close false", m.Status(), m.Closes())
			}
		}
	}
}

func TestAnEarlyAnswerReachesAClientThatStillSends(t *testing.T) {
	proxy := startHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(w, "too large")
	}), nil)
	for i := range 20 {
		c := proxy.Dial()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 20<<20)
			io.CopyN(c, harness.Zeros{}, 20<<20)
		}()
		if m := c.Receive("POST"); m.Status() != 413 || m.Body != "too large" {
			t.Errorf("%d: got %d %q, want 413", i, m.Status(), m.Body)
		}
		c.Close()
		<-sent
	}
}

func TestAnAnswerOfOurOwnDoesNotWaitForABody(t *testing.T) {
	proxy := startHandler(t, &targets{}, nil)
	c := proxy.Dial()
	c.Send("POST /x HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\nContent-Length: 500\r\n\r\nhello")
	if m := c.Receive("POST"); m.Status() != 200 || m.Body != "queue" || !m.Closes() {
		t.Errorf("got %d %q, close %v, want 200 queue, close true", m.Status(), m.Body, m.Closes())
	}
	c.WantEnd()
}

func TestAnAnswerToAnOddRequestDoesNotWaitForItsBody(t *testing.T) {
	proxy := startHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // or the app waits
		io.WriteString(w, "done")
	}), nil)
	for field, want := range map[string]string{"K-Network-Probe: queue": "queue", "X: y": "done"} {
		c := proxy.Dial()
		c.Send("POST /x HTTP/1.1\nHost: a\n" + field + "\nContent-Length: 5\n\n")
		if m := c.Receive("POST"); m.Status() != 200 || m.Body != want || !m.Closes() {
			t.Errorf("got %d %q, close %v, want 200 %q, close true", m.Status(), m.Body, m.Closes(), want)
		}
		c.WantEnd()
	}
}

func TestAResponseCutShortToAnHTTP10ClientEndsInAReset(t *testing.T) {
	proxy := startHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), nil)
	c := proxy.Dial()
	c.Send("GET / HTTP/1.0\r\n\r\n")
	_, err := io.ReadAll(c.In)
	if err == nil || harness.IsTimeout(err) {
		t.Errorf("got %v at the end, want a reset: a clean end says that the response is whole", err)
	}
}

func TestABodyOverTheLimitIsAnswered413(t *testing.T) {
	proxy := startHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }),
		func(_ *queue.Proxy, s *proxytest.Options) { s.MaxBodyBytes = 1000 })
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for name, body := range map[string]io.Reader{
			"announced": bytes.NewReader(make([]byte, 1001)),
			"chunked":   io.MultiReader(bytes.NewReader(make([]byte, 1001))),
		} {
			r, err := proxy.Client(protocol).Post("http://"+proxy.Address+"/", "", body)
			harness.NoError(t, err, protocol, name)
			r.Body.Close()
			harness.Equal(t, r.StatusCode, 413, protocol, name)
		}
	}
}
