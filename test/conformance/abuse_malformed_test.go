package conformance

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// This file contains malformed HTTP/1.1 requests (docs/bounds.md, "Requests").

const (
	// smallPod is the memory limit of a small container in bytes.
	smallPod = 64 << 20
	// smallRuntime is the Go runtime's memory limit, in bytes, that the sidecar sets in such a
	// container.
	smallRuntime = 42 << 20
)

// inSmallPod returns the settings of a sidecar in a small container, with the default metric names and
// the request log enabled.
func inSmallPod(more ...string) []string {
	return append([]string{
		"GOMEMLIMIT=" + strconv.Itoa(smallRuntime), "METRICS_NAMES=default", "REQUEST_LOG=true",
	}, more...)
}

// A footprint counts the resources of a process other than memory.
type footprint struct{ goroutines, files int }

var goroutineCount = regexp.MustCompile(`(?m)^queue_proxy_go_goroutines (\d+)$`)

func (p *proxy) footprint() footprint {
	p.t.Helper()
	c := dial(p.t, local(p.port.metrics)) // use a new connection, because an idle connection would be counted the next time
	defer c.Close()
	m := c.ask("/metrics", "Connection: close")
	n := goroutineCount.FindStringSubmatch(m.Body)
	if n == nil {
		p.t.Fatalf("got %q %.300q, want a number of goroutines", m.Start, m.Body)
	}
	goroutines, _ := strconv.Atoi(n[1])
	return footprint{goroutines, p.files()}
}

// files returns the number of open files of the process.
func (p *process) files() int {
	p.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(all)
}

// awaitReleased waits until the numbers of goroutines and open files are at most the numbers in before
// plus extra.
func (p *proxy) awaitReleased(what string, before footprint, extra int) {
	p.t.Helper()
	p.poll(what+": goroutines and files are released", func() error {
		if now := p.footprint(); now.goroutines > before.goroutines+extra || now.files > before.files+extra {
			return fmt.Errorf("got %+v, want %+v", now, before)
		}
		return nil
	})
}

// few is the maximum number of additional goroutines and files. It includes the connections to
// the application, the connection of the test, and about five goroutines of the Go runtime,
// which start with the first garbage collection.
const few = 10

// checkResources checks that the number of goroutines and files has increased by at most few, that
// the peak memory is less than the memory of a small pod, and that all log lines are JSON.
func (p *proxy) checkResources(before footprint) {
	p.t.Helper()
	p.audit(before, few)
	peak := p.memory("VmHWM")
	p.t.Logf("peak memory: %d MB", peak>>20)
	if peak > smallPod && os.Getenv("QUEUE_PROXY_RACE") == "" {
		p.t.Errorf("peak memory is %d MB, want at most %d", peak>>20, smallPod>>20)
	}
	p.logIsJSON()
}

// maxLine is the length at which container runtimes split log lines.
const maxLine = 16 << 10

// logIsJSON fails the test unless each log line is a JSON object of at most maxLine bytes
// without terminal control characters. It returns the objects.
func (p *proxy) logIsJSON() []map[string]any { return p.logIs(maxLine, unprintable) }

func (p *proxy) logIs(most int, bad func(rune) bool) (all []map[string]any) {
	p.t.Helper()
	text := p.out.String()
	if i := strings.LastIndexByte(text, '\n'); i < len(text)-1 {
		text = text[:i+1] // ignore the last line, which is incomplete
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			p.t.Errorf("got log line %.300q, want a JSON object: %v", line, err)
		}
		if len(line) > most {
			p.t.Errorf("got log line of %d bytes, want at most %d: %.300q", len(line), most, line)
		}
		if i := strings.IndexFunc(line, bad); i >= 0 {
			p.t.Errorf("got %q in log line %.300q, want printable characters", line[i:i+1], line)
		}
		all = append(all, object)
	}
	return all
}

// unprintable reports whether log viewers may interpret r as a command or as the end of a line.
// This applies to control characters of ASCII and of Latin-1, and to U+2028 and U+2029.
func unprintable(r rune) bool {
	return r < ' ' || 0x7f <= r && r < 0xa0 || r == '\u2028' || r == '\u2029'
}

// wellFormed are valid requests.
var wellFormed = []string{
	"GET /a?b=c HTTP/1.1\r\nHost: a.test\r\nUser-Agent: x/1\r\nAccept: */*\r\nCookie: a=b; c=d\r\n\r\n",
	"POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Type: text/plain\r\nContent-Length: 11\r\n\r\nhello world",
	"PUT /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5;a=\"b\"\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
	"GET http://a.test:80/a;b HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 1.2.3.4, [::1]:80\r\nForwarded: for=\"[::1]\"\r\n\r\n",
	"OPTIONS * HTTP/1.1\r\nHost: [::1]:8080\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\n",
	"POST /a HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
	"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
	"GET /a HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a.test\r\nK-Network-Probe: queue\r\nK-Network-Hash: 1\r\n\r\n",
	"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\nDELETE /b HTTP/1.1\r\nHost: a.test\r\n\r\n",
	"GET /metrics?format=json HTTP/1.1\r\nHost: a.test\r\nAccept: text/plain;q=0.5, application/json\r\n\r\n",
}

// nasties are texts that cause errors in parsers.
var nasties = []string{
	"\x00", "\r", "\n", "\r\n", "\r\n\r\n", "\n\n", "\t", "\x0b", "\x7f", "\x80", "\xff\xfe", " ", "  ", ":", "::", ";", ",", ",,", "=", "\"", "\\", "%", "%zz", "%00",
	"/../..", "//", "\r\n ", "\r\n\t", "\r\n:", "HTTP/9.9", "HTTP/1.10", "HTTP/01.1", "http/1.1", "PRI * HTTP/2.0\r\n\r\n", "18446744073709551616", "-1", "+1", "0x10", "1e9", "999999999999",
	"FFFFFFFFFFFFFFFF", "Content-Length: 5\r\n", "Content-Length: 5, 5\r\n", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding : chunked\r\n", "Transfer-Encoding:\x0bchunked\r\n",
	"Host: b.test\r\n", "Connection: close\r\n", "Connection: Content-Length\r\n", "Upgrade: h2c\r\n", "0\r\n\r\n", "5;\r\n", "\u2028", "é", "GET", "CONNECT", "TRACE", "{}[]<>", "\x1b[2J",
	strings.Repeat("a", 5000), strings.Repeat("\r\n", 100), strings.Repeat("a:b\r\n", 1200), strings.Repeat(",", 3000),
}

var (
	numbers = regexp.MustCompile(`\d+`)
	lineEnd = regexp.MustCompile(`\r\n`)
)

// mutate changes a request in one to four positions.
func mutate(r *rand.Rand, text string) string {
	for range 1 + r.IntN(4) {
		at := r.IntN(len(text) + 1)
		nasty := nasties[r.IntN(len(nasties))]
		switch r.IntN(10) {
		case 0, 1, 2: // insert a text
			text = text[:at] + nasty + text[at:]
		case 3: // overwrite a part with a text
			text = text[:at] + nasty + text[min(len(text), at+len(nasty)):]
		case 4: // replace a byte
			if at < len(text) {
				text = text[:at] + string([]byte{byte(r.IntN(256))}) + text[at+1:]
			}
		case 5: // remove a part
			text = text[:at] + text[min(len(text), at+1+r.IntN(8)):]
		case 6: // truncate the request
			if r.IntN(4) == 0 {
				text = text[:at]
			}
		case 7: // replace a number
			text = replaceOne(r, numbers, text, nasty)
		case 8: // replace a line end
			text = replaceOne(r, lineEnd, text, []string{"\n", "\r", "\r\r\n", " \r\n", "\r\n ", "\n\r"}[r.IntN(6)])
		case 9: // duplicate a line
			lines := strings.SplitAfter(text, "\r\n")
			i := r.IntN(len(lines))
			text = strings.Join(slices.Insert(lines, r.IntN(len(lines)), lines[i]), "")
		}
	}
	return text
}

// replaceOne replaces a randomly selected match.
func replaceOne(r *rand.Rand, what *regexp.Regexp, text, by string) string {
	all := what.FindAllStringIndex(text, -1)
	if len(all) == 0 {
		return text
	}
	at := all[r.IntN(len(all))]
	return text[:at[0]] + by + text[at[1]:]
}

// A verdict is the result of sending bytes on a new connection.
type verdict struct {
	answers []*message
	closed  bool
	left    bool  // the client closed its side of the connection first
	err     error // a response could not be parsed
}

// try sends text and reads until the connection ends or no data arrives for the given time. If
// there is no response after this time, try closes the write side and continues to read, so
// that a server that waits for more input can respond.
func try(c net.Conn, text string, while time.Duration) (v verdict) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		io.WriteString(c, text) // ignore the error, because the server may close the connection before it has read all of the text
	}()
	defer func() { c.Close(); <-sent }()
	r := bufio.NewReader(c)
	method, _, _ := strings.Cut(text, " ")
	for {
		c.SetReadDeadline(time.Now().Add(while))
		if _, err := r.Peek(1); isTimeout(err) && len(v.answers) == 0 && !v.left {
			c.(interface{ CloseWrite() error }).CloseWrite()
			v.left, while = true, patience
			continue
		} else if err != nil {
			v.closed = !isTimeout(err)
			return v
		}
		c.SetReadDeadline(time.Now().Add(patience))
		m, err := readResponse(r, method)
		if err != nil {
			if !ended(err) {
				v.err = err
			}
			v.closed = true
			return v
		}
		if v.answers = append(v.answers, m); len(v.answers) > 50 {
			return v
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// A way is a port of the sidecar and a function that connects to it.
type way struct {
	name string
	dial func() (net.Conn, error)
}

// ways returns all ports except the status port, which accepts only local clients.
func (p *proxy) ways() []way {
	plain := func(port int) func() (net.Conn, error) {
		return func() (net.Conn, error) { return net.DialTimeout("tcp", local(port), patience) }
	}
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	return []way{
		{"serving", plain(p.port.serving)},
		{"TLS", func() (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", p.tlsAddr(), config)
		}},
		{"admin", plain(p.port.admin)},
		{"autoscaler", plain(p.port.autoscaler)},
		{"metrics", plain(p.port.metrics)},
	}
}

// verdicts counts the results of malformed requests.
type verdicts struct{ byApp, refused, ours, silent atomic.Int64 }

// count records the responses to a text. oursAlone means that only the sidecar serves the port, so
// its responses can have status 200.
func (n *verdicts) count(t *testing.T, port string, oursAlone bool, text string, v verdict) {
	t.Helper()
	if v.err != nil {
		t.Errorf("%s: %.300q: invalid response: %v", port, text, v.err)
	}
	if len(v.answers) == 0 {
		n.silent.Add(1)
		if !v.closed {
			t.Errorf("%s: %.300q: got no response on an open connection, want a response or a closed connection", port, text)
		}
	}
	for _, m := range v.answers {
		switch s := m.status(); {
		case m.get("X-From") == "app":
			n.byApp.Add(1)
		case 400 <= s && s < 500, s == 501, s == 505, port == "metrics" && s == 307: // the text contains an unsupported coding, version or path
			n.refused.Add(1)
		case oursAlone && s == 200, word(m.get("Proxy-Status")) == "no reason" && s == 200: // the request is still a valid probe
			n.ours.Add(1)
		default:
			t.Errorf("%s: %.300q: got %q with %q, want 4xx", port, text, m.Start, m.Fields)
		}
	}
}

// The sidecar rejects each malformed request or closes its connection. Mutations that are still
// valid requests are answered by the app, and no other request reaches the app. No resources
// leak.
func TestMalformedRequestsAreRejected(t *testing.T) {
	const atOnce, seed = 40, 20
	p := newProxy(t)
	writeCertificate(t, p.dir)
	app := p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 200 OK\r\nX-From: app\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
		return false
	})
	p.start(inSmallPod()...)
	before := p.footprint()
	for i, w := range p.ways() {
		each := 2000
		if w.name == "TLS" {
			each = 1000
		}
		var got verdicts
		var all sync.WaitGroup
		texts := make(chan string)
		for range atOnce {
			all.Go(func() {
				for text := range texts {
					c, err := w.dial()
					if err != nil {
						t.Errorf("%s: %v", w.name, err)
						continue
					}
					got.count(t, w.name, i > 1, text, try(c, text, 100*time.Millisecond))
				}
			})
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range each {
			texts <- mutate(r, wellFormed[r.IntN(len(wellFormed))])
		}
		close(texts)
		all.Wait()
		t.Logf("%s: %d rejected, %d closed without a response, %d answered by the app, %d answered by the sidecar", w.name, got.refused.Load(), got.silent.Load(), got.byApp.Load(), got.ours.Load())
		if got.refused.Load() < int64(each/4) {
			t.Errorf("%s: %d of %d were rejected, want at least a quarter", w.name, got.refused.Load(), each)
		}
		c, err := w.dial()
		if err != nil {
			t.Fatalf("%s: connect after the malformed requests: %v", w.name, err)
		}
		after := newClient(t, c)
		if m := after.ask("/metrics"); m.status() != 200 && (w.name != "admin" || m.status() != 404) {
			t.Errorf("%s: after the malformed requests: got %q, want the normal response", w.name, m.Start)
		}
		after.Close()
		heard, broken := app.requests()
		if len(broken) > 0 {
			t.Errorf("%s: the app received invalid requests: %q", w.name, broken)
		}
		if i < 2 && len(heard) == 0 {
			t.Errorf("%s: the app received no valid mutation", w.name)
		}
	}
	p.checkResources(before)
}

// The generator is deterministic, and most of its requests differ from the original.
func TestMutationIsDeterministic(t *testing.T) {
	sound := 0
	a, b := rand.New(rand.NewPCG(1, 1)), rand.New(rand.NewPCG(1, 1))
	for i := range 1000 {
		text := wellFormed[i%len(wellFormed)]
		one, two := mutate(a, text), mutate(b, text)
		if one != two {
			t.Fatalf("got %q and %q with the same seed, want equal requests", one, two)
		}
		if bytes.Equal([]byte(one), []byte(text)) {
			sound++
		}
	}
	if sound > 100 {
		t.Errorf("%d of 1000 mutations had no effect, want at most 100", sound)
	}
}
