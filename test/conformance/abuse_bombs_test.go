package conformance

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A bomb is a request without an end.
type bomb struct {
	name   string
	begin  string
	again  string // text that is sent repeatedly
	status []int  // allowed status codes of the response; if empty, the connection may end without a response
	small  bool   // the bomb is also sent to the internal ports
}

var bombs = []bomb{
	{"an endless request line", "GET /", strings.Repeat("a", 1<<16), []int{431, 414, 400}, true},
	{"an endless method", "", strings.Repeat("G", 1<<16), []int{431, 400}, true},
	{"endless empty lines", "", strings.Repeat("\r\n", 1<<15), []int{431, 400}, true},
	{"an endless field value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: ", strings.Repeat("a", 1<<16), []int{431}, true},
	{"an endless field name", "GET / HTTP/1.1\r\nHost: a.test\r\n", strings.Repeat("a", 1<<16), []int{431, 400}, true},
	{"endless fields", "GET / HTTP/1.1\r\nHost: a.test\r\n", strings.Repeat("a: b\r\n", 10_000), []int{431}, true},
	{"an endless folded field", "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\n", strings.Repeat(" b\r\n", 10_000), []int{431, 400}, true},
	{"an endless chunk size", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("0", 1<<16), []int{400}, false},
	{"an endless chunk extension", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n1;", strings.Repeat("a", 1<<16), []int{400}, false},
	{"chunk extensions longer than their data", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1;"+strings.Repeat("a", 100)+"\r\nx\r\n", 500), []int{400}, false},
	{"an endless trailer", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", strings.Repeat("a", 1<<16), []int{400}, false},
	{"endless trailers", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", strings.Repeat("a: b\r\n", 10_000), []int{400}, false},
	{"a body that exceeds the limit", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000000\r\n\r\n", strings.Repeat("a", 1<<16), []int{413}, false},
	{"chunks that exceed the limit", "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1000\r\n"+strings.Repeat("a", 0x1000)+"\r\n", 16), []int{413}, false},
	{"a body that is not read", "POST /metrics HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000000000\r\n\r\n", strings.Repeat("a", 1<<16), []int{200, 404, 405, 413}, true},
}

// The sidecar rejects unbounded requests within seconds and after a bounded number of bytes,
// and the response states the reason. Several such requests at the same time fit into the
// memory of a small pod.
func TestUnboundedRequestsAreRejected(t *testing.T) {
	const (
		atOnce = 2
		// maxBytes includes the maximum size of a header section, the input that the sidecar
		// discards so that the client can read the response, and the socket buffers on both
		// sides.
		maxBytes = 24 << 20
		maxTime  = 5 * time.Second // including one second for reading the response
	)
	p := newProxy(t)
	writeCertificate(t, p.dir)
	p.sample()
	p.start(inSmallPod("MAX_BODY_BYTES=1000000")...)
	before := p.footprint()
	var ports sync.WaitGroup
	for i, w := range p.ways() {
		ports.Go(func() {
			var all sync.WaitGroup
			for _, b := range bombs {
				if i > 1 && !b.small { // skip the metrics port, which behaves like the other internal ports
					continue
				}
				for n := range atOnce {
					all.Go(func() {
						c, err := w.dial()
						if err != nil {
							t.Errorf("%s: %v", w.name, err)
							return
						}
						began := time.Now()
						answer, sent, err := sendBomb(c, b, maxBytes)
						took := time.Since(began)
						switch {
						case sent >= maxBytes:
							t.Errorf("%s, %s: accepted %d bytes, want fewer", w.name, b.name, sent)
						case err != nil:
							t.Errorf("%s, %s: after %d bytes: %v", w.name, b.name, sent, err)
						case i > 1 && answer.status() == 400: // the internal ports accept a limited number of lines
						case !slices.Contains(b.status, answer.status()):
							t.Errorf("%s, %s: got %q after %d bytes, want %d", w.name, b.name, answer.Start, sent, b.status)
						case took > maxTime+slack:
							t.Errorf("%s, %s: rejected after %v, want at most %v", w.name, b.name, took, maxTime)
						case n == 0:
							t.Logf("%s, %s: %q after %d KB and %v", w.name, b.name, answer.Start, sent>>10, took.Round(time.Millisecond))
						}
					})
				}
				all.Wait() // test one kind at a time
			}
		})
	}
	ports.Wait()
	p.checkResources(before)
}

// The internal ports parse requests into strings, so they limit the length of a header section.
func TestInternalPortsLimitHeaderSize(t *testing.T) {
	p := newProxy(t)
	p.start(inSmallPod()...)
	before := p.footprint()
	for _, w := range p.ways()[2:] {
		for _, row := range []struct {
			size   int
			status []int
		}{{15 << 10, []int{200, 404}}, {21 << 10, []int{431}}, {900 << 10, []int{431}}} {
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					c, err := w.dial()
					if err != nil {
						t.Error(err)
						return
					}
					v := try(c, request("GET", "/metrics", "Connection: close", "Accept: "+strings.Repeat("a/b;q=0.1,", row.size/10)+"text/plain"), patience)
					if len(v.answers) != 1 || !slices.Contains(row.status, v.answers[0].status()) {
						t.Errorf("%s, header section of %d KB: got %v, %v, want %d", w.name, row.size>>10, v.answers, v.err, row.status)
					}
				})
			}
			all.Wait()
		}
	}
	p.checkResources(before)
}

// sendBomb sends a bomb until the sidecar closes the connection. It returns the response and the
// number of bytes that were sent.
func sendBomb(c net.Conn, b bomb, most int64) (answer *message, sent int64, err error) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	type result struct {
		m   *message
		err error
	}
	got := make(chan result, 1)
	go func() {
		m, err := readResponse(bufio.NewReader(c), "POST")
		got <- result{m, err}
	}()
	n, err := io.WriteString(c, b.begin)
	for sent = int64(n); err == nil && sent < most; sent += int64(n) {
		n, err = io.WriteString(c, b.again)
	}
	r := <-got
	return r.m, sent, r.err
}

// A body that consists of many small chunks is valid and is not changed.
func TestManySmallChunksAreForwarded(t *testing.T) {
	const chunks = 100_000
	body := strings.Repeat("x", chunks)
	want := fmt.Sprintf(`"sha256": "%x"`, sha256.Sum256([]byte(body)))
	p := newProxy(t)
	p.sample()
	p.start(inSmallPod()...)
	before := p.footprint()
	c := dial(t, p.addr())
	c.send("POST /sink HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
	c.send(strings.Repeat("1\r\nx\r\n", chunks) + "0\r\n\r\n")
	if m := c.receive("POST"); m.status() != 200 || !strings.Contains(m.Body, want) {
		t.Errorf("got %q with %q, want 200 with %s", m.Start, m.Body, want)
	}
	p.checkResources(before)
}
