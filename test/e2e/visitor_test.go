//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A verdict is how a request ended, as its client saw it.
type verdict int

const (
	byApp  verdict = iota // a whole answer of the app, with the request's own id
	byUs                  // a whole answer of the sidecar, with its reason
	broken                // an end that nobody can take for an answer
	lost                  // anything else
)

// An entry is a line of the client's ledger.
type entry struct {
	id, method string
	verdict    verdict
	word       string // the sidecar's reason; what the client noticed; why it is lost
	conn       bool   // there was a connection to send it on
	status     int
}

// A wish is a request that a visitor might send, and how much it then expects.
type wish struct {
	method, path string
	body         int  // bytes; -1: none
	chunked      bool // the body's framing
	h2           bool
	want         int // bytes in the answer of the app; -1: not known
}

// usual is what visitors send where a fault needs nothing else: repeated
// entries are more likely.
var usual = []wish{
	{"GET", "/bytes/3000", -1, false, false, 3000},
	{"GET", "/bytes/3000", -1, false, false, 3000},
	{"GET", "/stream/60000", -1, false, false, 60000},
	{"GET", "/slow?ms=20", -1, false, false, 5},
	{"POST", "/sink", 10000, false, false, -1},
	{"POST", "/sink", 10000, true, false, -1},
	{"GET", "/bytes/3000", -1, false, true, 3000},
	{"POST", "/sink", 10000, false, true, -1},
}

// A visitor is one client: it sends one request after the other over HTTP/1.1, on
// a connection that it keeps for a while, or over HTTP/2. It never sends one
// again, so that what is sent twice was so by others.
type visitor struct {
	p       *pod
	address string
	tls     *tls.Config // nil: plain
	name    string
	wishes  []wish
	rng     *rand.Rand
	trickle time.Duration // between two bytes of a body; 0: all is sent at once

	n       int
	c       net.Conn
	r       *bufio.Reader
	h2      *http.Transport
	entries []entry
}

// visit sends requests until ctx ends; the one under way is finished.
func (v *visitor) visit(ctx context.Context) {
	defer v.leave()
	for ctx.Err() == nil {
		v.ask(v.wishes[v.rng.IntN(len(v.wishes))])
		if v.rng.IntN(10) == 0 {
			v.hangUp()
		}
		pause := time.Duration(v.rng.IntN(15)) * time.Millisecond
		if last := &v.entries[len(v.entries)-1]; last.verdict == broken {
			pause += 20 * time.Millisecond // a port that is closed is not a race track
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (v *visitor) leave() {
	v.hangUp()
	if v.h2 != nil {
		v.h2.CloseIdleConnections()
		v.h2 = nil
	}
}

func (v *visitor) hangUp() {
	if v.c != nil {
		v.c.Close()
		v.c = nil
	}
}

// ask sends one request and notes how it ended.
func (v *visitor) ask(q wish) *entry {
	v.n++
	v.entries = append(v.entries, entry{id: fmt.Sprintf("%s-%d", v.name, v.n), method: q.method})
	e := &v.entries[len(v.entries)-1]
	start := time.Now()
	var a *http.Response
	var err error
	if q.h2 {
		a, err = v.send2(q, e)
	} else {
		a, err = v.send1(q, e)
	}
	var body []byte
	if err == nil {
		body, err = io.ReadAll(a.Body)
		a.Body.Close()
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout() && time.Since(start) >= patience:
		e.verdict, e.word = lost, fmt.Sprintf("no answer and no end in %v", patience)
	case err != nil:
		e.verdict, e.word = broken, err.Error()
		e.conn = e.conn || q.h2
	default:
		v.judge(q, e, a, body)
	}
	if e.verdict != byApp && e.verdict != byUs || a.Close {
		v.hangUp()
	}
	return e
}

// judge says what a whole answer is.
func (v *visitor) judge(q wish, e *entry, a *http.Response, body []byte) {
	e.status = a.StatusCode
	ours := a.Header.Get("Proxy-Status")
	_, word, said := strings.Cut(ours, `details="`)
	switch id := a.Header.Get("X-Id"); {
	case id == e.id && a.StatusCode == http.StatusOK && q.want >= 0 && len(body) != q.want:
		e.verdict, e.word = lost, fmt.Sprintf("a whole answer of %d bytes, of %d", len(body), q.want)
	case id == e.id:
		e.verdict = byApp
	case id != "":
		e.verdict, e.word = lost, "the answer to "+id
	case strings.HasPrefix(ours, "queue-proxy;") && said && a.StatusCode >= 400:
		e.verdict, e.word = byUs, strings.TrimSuffix(word, `"`)
	default:
		e.verdict, e.word = lost, fmt.Sprintf("%d %q of nobody", a.StatusCode, body)
	}
}

// send1 speaks HTTP/1.1.
func (v *visitor) send1(q wish, e *entry) (*http.Response, error) {
	if v.c == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err := v.dial(ctx)
		if err != nil {
			return nil, err
		}
		v.c, v.r = c, bufio.NewReader(c)
	}
	e.conn = true
	v.c.SetDeadline(time.Now().Add(patience))
	// The answer is read whatever becomes of the writing: it may come early.
	wrote := v.write(message(q, e.id))
	a, err := http.ReadResponse(v.r, &http.Request{Method: q.method})
	if err != nil && wrote != nil {
		err = wrote
	}
	return a, err
}

// write sends a request, its body byte by byte if that is how the visitor is.
func (v *visitor) write(text string) error {
	now := len(text)
	if v.trickle > 0 {
		now = strings.Index(text, "\r\n\r\n") + 4
	}
	_, err := io.WriteString(v.c, text[:now])
	for ; now < len(text) && err == nil; now++ {
		time.Sleep(v.trickle)
		_, err = io.WriteString(v.c, text[now:now+1])
	}
	return err
}

// message returns a request as it stands on the wire in HTTP/1.1.
func message(q wish, id string) string {
	head := q.method + " " + target(q, id) + " HTTP/1.1\r\nHost: example\r\nX-Id: " + id + "\r\n"
	switch {
	case q.body < 0:
		return head + "\r\n"
	case q.chunked:
		half := q.body / 2
		return head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n",
			half, strings.Repeat("a", half), q.body-half, strings.Repeat("b", q.body-half))
	default:
		return head + "Content-Length: " + strconv.Itoa(q.body) + "\r\n\r\n" + strings.Repeat("a", q.body)
	}
}

// target puts the id where the request log shows it.
func target(q wish, id string) string {
	if strings.Contains(q.path, "?") {
		return q.path + "&id=" + id
	}
	return q.path + "?id=" + id
}

// send2 speaks HTTP/2, by prior knowledge or as TLS agrees.
func (v *visitor) send2(q wish, e *entry) (*http.Response, error) {
	if v.h2 == nil {
		speaks := new(http.Protocols)
		speaks.SetHTTP2(v.tls != nil)
		speaks.SetUnencryptedHTTP2(v.tls == nil)
		v.h2 = &http.Transport{
			Protocols:       speaks,
			TLSClientConfig: v.tls,
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return v.p.dial(ctx, v.address) },
		}
	}
	var body io.Reader
	if q.body >= 0 {
		body = io.LimitReader(as{}, int64(q.body)) // of no known length: net/http cannot send it twice
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	scheme := "http"
	if v.tls != nil {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, q.method, scheme+"://example"+target(q, e.id), body)
	if err != nil {
		cancel()
		return nil, err
	}
	r.Header.Set("X-Id", e.id)
	a, err := v.h2.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	a.Body = ended{a.Body, cancel}
	return a, nil
}

func (v *visitor) dial(ctx context.Context) (net.Conn, error) {
	c, err := v.p.dial(ctx, v.address)
	if err != nil || v.tls == nil {
		return c, err
	}
	settings := v.tls.Clone()
	settings.NextProtos = nil
	secure := tls.Client(c, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return secure, nil
}

// as reads as many times the letter a as are wanted.
type as struct{}

func (as) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	return len(b), nil
}

// ended is a body whose request ends with it.
type ended struct {
	io.ReadCloser
	end func()
}

func (b ended) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
