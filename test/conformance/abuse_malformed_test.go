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

// Malformed HTTP/1.1 requests: docs/bounds.md, "Requests".

// smallPod is the memory of a small container, in bytes. Where a test speaks of
// it, the sidecar is told four fifths of it as its own limit in Go, as it would
// find out by itself there.
const smallPod = 64 << 20

// inSmallPod are the settings of a sidecar that is to be abused, and that says all
// that it can say.
func inSmallPod(more ...string) []string {
	return append([]string{
		"GOMEMLIMIT=" + strconv.Itoa(smallPod/5*4), "METRICS_NAMES=default", "REQUEST_LOG=true",
	}, more...)
}

// A footprint is what a process holds beside memory.
type footprint struct{ goroutines, files int }

var goroutineCount = regexp.MustCompile(`(?m)^queue_proxy_go_goroutines (\d+)$`)

func (p *proxy) footprint() footprint {
	p.t.Helper()
	c := dial(p.t, local(p.port.metrics)) // its own, and closed: another would be counted next time
	defer c.Close()
	m := c.ask("/metrics", "Connection: close")
	n := goroutineCount.FindStringSubmatch(m.Body)
	if n == nil {
		p.t.Fatalf("no number of goroutines in %q %.300q", m.Start, m.Body)
	}
	goroutines, _ := strconv.Atoi(n[1])
	return footprint{goroutines, p.files()}
}

// files is how many the process has open.
func (p *process) files() int {
	p.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(all)
}

// givenBack returns when the sidecar holds no more goroutines and files than
// before, within so many of each.
func (p *proxy) givenBack(what string, before footprint, some int) {
	p.t.Helper()
	p.poll(what+": goroutines and files are given back", func() error {
		if now := p.footprint(); now.goroutines > before.goroutines+some || now.files > before.files+some {
			return fmt.Errorf("got %+v, want %+v", now, before)
		}
		return nil
	})
}

// few goroutines and files may remain: of connections to the app, and of the one
// that asks; and those that Go itself starts with its first collection of garbage,
// five of them or so, which the metric counts.
const few = 10

// unharmed fails the test unless the sidecar holds no more goroutines and files
// than before, within a few, has not held more than the small pod's memory, and has
// said nothing but lines of JSON.
func (p *proxy) unharmed(before footprint) {
	p.t.Helper()
	p.audit(before, few)
	peak := p.memory("VmHWM")
	p.t.Logf("memory: at most %d MB", peak>>20)
	if peak > smallPod && os.Getenv("QUEUE_PROXY_RACE") == "" {
		p.t.Errorf("the sidecar took up to %d MB, want at most %d", peak>>20, smallPod>>20)
	}
	p.logIsJSON()
}

// maxLine is where container runtimes cut lines of a log.
const maxLine = 16 << 10

// logIsJSON fails the test unless all that the sidecar has said is one JSON object
// a line, none of them long, and nothing in it moves a terminal's cursor. It returns
// the objects.
func (p *proxy) logIsJSON() []map[string]any { return p.logIs(maxLine, unprintable) }

func (p *proxy) logIs(most int, bad func(rune) bool) (all []map[string]any) {
	p.t.Helper()
	said := p.out.String()
	if i := strings.LastIndexByte(said, '\n'); i < len(said)-1 {
		said = said[:i+1] // a line is being written
	}
	for line := range strings.Lines(said) {
		line = strings.TrimSuffix(line, "\n")
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			p.t.Errorf("the log has the line %.300q, want a JSON object: %v", line, err)
		}
		if len(line) > most {
			p.t.Errorf("the log has a line of %d bytes, want at most %d: %.300q", len(line), most, line)
		}
		if i := strings.IndexFunc(line, bad); i >= 0 {
			p.t.Errorf("the log has %q in the line %.300q", line[i:i+1], line)
		}
		all = append(all, object)
	}
	return all
}

// unprintable reports whether some reader of a log takes r for a command or for the
// end of a line: control characters of ASCII and of Latin-1, and U+2028 and U+2029.
func unprintable(r rune) bool {
	return r < ' ' || 0x7f <= r && r < 0xa0 || r == '\u2028' || r == '\u2029'
}

// wellFormed are requests that everybody understands.
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

// nasties are what parsers trip over.
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

// mutate spoils a request in one to four places.
func mutate(r *rand.Rand, text string) string {
	for range 1 + r.IntN(4) {
		at := r.IntN(len(text) + 1)
		nasty := nasties[r.IntN(len(nasties))]
		switch r.IntN(10) {
		case 0, 1, 2: // something stands where nothing should
			text = text[:at] + nasty + text[at:]
		case 3: // something else stands there
			text = text[:at] + nasty + text[min(len(text), at+len(nasty)):]
		case 4: // a byte is any other one
			if at < len(text) {
				text = text[:at] + string([]byte{byte(r.IntN(256))}) + text[at+1:]
			}
		case 5: // a part is missing
			text = text[:at] + text[min(len(text), at+1+r.IntN(8)):]
		case 6: // the end is missing
			if r.IntN(4) == 0 {
				text = text[:at]
			}
		case 7: // a number is another one
			text = replaceOne(r, numbers, text, nasty)
		case 8: // a line ends otherwise
			text = replaceOne(r, lineEnd, text, []string{"\n", "\r", "\r\r\n", " \r\n", "\r\n ", "\n\r"}[r.IntN(6)])
		case 9: // a line is said twice
			lines := strings.SplitAfter(text, "\r\n")
			i := r.IntN(len(lines))
			text = strings.Join(slices.Insert(lines, r.IntN(len(lines)), lines[i]), "")
		}
	}
	return text
}

// replaceOne replaces one of the matches.
func replaceOne(r *rand.Rand, what *regexp.Regexp, text, by string) string {
	all := what.FindAllStringIndex(text, -1)
	if len(all) == 0 {
		return text
	}
	at := all[r.IntN(len(all))]
	return text[:at[0]] + by + text[at[1]:]
}

// A verdict is what became of bytes that were sent on a connection of their own.
type verdict struct {
	answers []*message
	closed  bool
	left    bool  // we had to say that this was all
	err     error // what came was no answer
}

// try sends bytes and reads until the connection ends, or nothing more comes. When
// nothing has come after a while it says that this was all, so that whoever waits
// for the rest is told, and has no answer to give.
func try(c net.Conn, text string, while time.Duration) (v verdict) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		io.WriteString(c, text) // it may be refused before its end
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

// A way is a port of the sidecar's and how it is spoken to.
type way struct {
	name string
	dial func() (net.Conn, error)
}

// ways are all ports but the status page's, which is for this host alone.
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

// verdicts count what became of malformed requests.
type verdicts struct{ byApp, refused, ours, silent atomic.Int64 }

// count notes the answers to a text. On a port of ours alone we answer 200 as well.
func (n *verdicts) count(t *testing.T, port string, oursAlone bool, text string, v verdict) {
	t.Helper()
	if v.err != nil {
		t.Errorf("%s: %.300q gets what is no answer: %v", port, text, v.err)
	}
	if len(v.answers) == 0 {
		n.silent.Add(1)
		if !v.closed {
			t.Errorf("%s: %.300q gets nothing, and its connection stays", port, text)
		}
	}
	for _, m := range v.answers {
		switch s := m.status(); {
		case m.get("X-From") == "app":
			n.byApp.Add(1)
		case 400 <= s && s < 500, s == 501, s == 505, port == "metrics" && s == 307: // a coding, a version and a path that net/http does not know
			n.refused.Add(1)
		case oursAlone && s == 200, word(m.get("Proxy-Status")) == "no reason" && s == 200: // a probe that is none the worse
			n.ours.Add(1)
		default:
			t.Errorf("%s: %.300q gets %q with %q, want 4xx", port, text, m.Start, m.Fields)
		}
	}
}

// Malformed requests in bulk: each is refused, or the connection ends; what is
// well-formed after all is the app's to answer, and nothing else reaches it.
// Nothing is left of them.
func TestMalformedRequestsInBulkLeaveNothingBehind(t *testing.T) {
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
		t.Logf("%s: %d refused, %d closed without a word, %d answered by the app, %d by us", w.name, got.refused.Load(), got.silent.Load(), got.byApp.Load(), got.ours.Load())
		if got.refused.Load() < int64(each/4) {
			t.Errorf("%s: %d of %d were refused: is anything malformed?", w.name, got.refused.Load(), each)
		}
		c, err := w.dial()
		if err != nil {
			t.Fatalf("%s: after that: %v", w.name, err)
		}
		after := newClient(t, c)
		if m := after.ask("/metrics"); m.status() != 200 && (w.name != "admin" || m.status() != 404) {
			t.Errorf("%s: after that: got %q, want an answer as before", w.name, m.Start)
		}
		after.Close()
		heard, broken := app.requests()
		if len(broken) > 0 {
			t.Errorf("%s: the app got what is no request: %q", w.name, broken)
		}
		if i < 2 && len(heard) == 0 {
			t.Errorf("%s: the app got nothing: are all of them refused?", w.name)
		}
	}
	p.unharmed(before)
}

// The generator makes the same requests each time, and hardly ever a sound one.
func TestMutationsAreSeededAndSpoil(t *testing.T) {
	sound := 0
	a, b := rand.New(rand.NewPCG(1, 1)), rand.New(rand.NewPCG(1, 1))
	for i := range 1000 {
		text := wellFormed[i%len(wellFormed)]
		one, two := mutate(a, text), mutate(b, text)
		if one != two {
			t.Fatalf("got %q and %q of one seed", one, two)
		}
		if bytes.Equal([]byte(one), []byte(text)) {
			sound++
		}
	}
	if sound > 100 {
		t.Errorf("%d of 1000 mutations changed nothing", sound)
	}
}
