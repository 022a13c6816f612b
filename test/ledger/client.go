// Package ledger has what tests of a running sidecar share: clients that keep a
// ledger of what became of each request, and the books in which that ledger is held
// against what the app and the request log say.
package ledger

import (
	"bufio"
	"cmp"
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
	"sync"
	"time"
)

// Patience bounds every wait for something that must happen, on a slow machine.
const Patience = 30 * time.Second

// IDField names a request for all three ledgers.
const IDField = "X-Id"

// A Verdict is how a request ended, as its client saw it.
type Verdict int

// The verdicts.
const (
	ByApp  Verdict = iota // a whole answer of the app, with the request's own id
	ByUs                  // a whole answer of the sidecar, with its reason
	Broken                // an end that nobody can take for an answer
	Lost                  // anything else
)

// Verdicts is how many there are.
const Verdicts = Lost + 1

func (v Verdict) String() string { return [Verdicts]string{"by the app", "by us", "broken", "lost"}[v] }

// An Entry is a line of a client's ledger.
type Entry struct {
	ID, Method string
	Path       string
	Verdict    Verdict
	Word       string // the sidecar's reason; what the client noticed; why it is lost
	Conn       bool   // there was a connection to send it on
	Left       bool   // its client went away and got nothing
	Status     int
}

// Classify says what a whole answer is. want is how long it must be if it is the
// app's; -1: that is not known.
func (e *Entry) Classify(want int, a *http.Response, body []byte) {
	e.Status = a.StatusCode
	ours := a.Header.Get("Proxy-Status")
	_, word, said := strings.Cut(ours, `details="`)
	said = said && strings.HasPrefix(ours, "queue-proxy;")
	switch id := a.Header.Get(IDField); {
	case id == e.ID && a.StatusCode == http.StatusOK && want >= 0 && len(body) != want:
		e.Verdict, e.Word = Lost, fmt.Sprintf("a whole answer of %d bytes, of %d", len(body), want)
	case id == e.ID:
		e.Verdict = ByApp
	case id != "":
		e.Verdict, e.Word = Lost, "the answer to "+id
	case said && (a.StatusCode >= 400 || a.Header.Get("Grpc-Status") != ""):
		e.Verdict, e.Word = ByUs, strings.TrimSuffix(word, `"`)
	default:
		e.Verdict, e.Word = Lost, fmt.Sprintf("%d %q of nobody", a.StatusCode, body)
	}
}

// Fail says what a request is that got no whole answer.
func (e *Entry) Fail(err error, took time.Duration) {
	var timeout net.Error
	if took >= Patience && (errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()) {
		e.Verdict, e.Word = Lost, fmt.Sprintf("no answer and no end in %v", Patience)
	} else {
		e.Verdict, e.Word = Broken, err.Error()
	}
}

// A Request is one that a client might send, and how much it then expects.
type Request struct {
	Method, Path string
	Body         int  // bytes; -1: none
	Chunked      bool // the body's framing
	H2           bool
	Want         int // bytes in the answer of the app; -1: not known
}

// Get is a GET over HTTP/1.1.
func Get(path string, want int) Request {
	return Request{Method: http.MethodGet, Path: path, Body: -1, Want: want}
}

// Post is a POST with a length over HTTP/1.1, to which any answer is welcome.
func Post(path string, body int) Request {
	return Request{Method: http.MethodPost, Path: path, Body: body, Want: -1}
}

// InChunks returns the request with its body in chunks.
func (q Request) InChunks() Request {
	q.Chunked = true
	return q
}

// OverH2 returns the request over HTTP/2.
func (q Request) OverH2() Request {
	q.H2 = true
	return q
}

// Usual returns what clients send where nothing else is needed: repeated entries
// are more likely.
func Usual() []Request {
	return []Request{
		Get("/bytes/3000", 3000),
		Get("/bytes/3000", 3000),
		Get("/stream/60000", 60000),
		Get("/slow?ms=20", 5),
		Post("/sink", 10000),
		Post("/sink", 10000).InChunks(),
		Get("/bytes/3000", 3000).OverH2(),
		Post("/sink", 10000).OverH2(),
	}
}

// A Client sends one request after the other over HTTP/1.1, on
// a connection that it keeps for a while, or over HTTP/2. It never sends one
// again, so that what is sent twice was so by others. It is for one goroutine.
type Client struct {
	Name     string // its ids begin with it
	Dial     func(context.Context) (net.Conn, error)
	TLS      *tls.Config // nil: plain
	Host     string      // of each request; "": example
	Requests []Request
	Rand     *rand.Rand
	Trickle  time.Duration // between two bytes of a body; 0: all is sent at once
	Fields   [][2]string   // of each request, besides its id
	Entries  []Entry       // its ledger

	c    net.Conn
	r    *bufio.Reader
	h2   *http.Transport
	open *conns // of h2
}

// conns are connections that a transport has opened, maybe for a request that was
// given up meanwhile.
type conns struct {
	mu    sync.Mutex // protects all below
	all   []net.Conn
	ended bool
}

func (s *conns) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		c.Close()
	}
	s.all = append(s.all, c)
}

func (s *conns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, c := range s.all {
		c.Close()
	}
}

// Run sends requests until ctx ends; the one under way is finished.
func (v *Client) Run(ctx context.Context) {
	defer v.Leave()
	for ctx.Err() == nil {
		v.Ask(v.Next())
		if v.Rand.IntN(10) == 0 {
			v.hangUp()
		}
		v.Pause(ctx)
	}
}

// Next returns one of the requests.
func (v *Client) Next() Request { return v.Requests[v.Rand.IntN(len(v.Requests))] }

// Pause waits for the time between two requests, or until ctx ends.
func (v *Client) Pause(ctx context.Context) {
	pause := time.Duration(v.Rand.IntN(15)) * time.Millisecond
	if v.Entries[len(v.Entries)-1].Verdict == Broken {
		pause += 20 * time.Millisecond // a port that is closed is not a race track
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// Leave closes the client's connections. It may go on afterwards.
func (v *Client) Leave() {
	v.hangUp()
	if v.h2 != nil {
		v.h2.CloseIdleConnections()
		v.open.close() // a stream that was reset may still be about to end
		v.h2 = nil
	}
}

func (v *Client) hangUp() {
	if v.c != nil {
		v.c.Close()
		v.c = nil
	}
}

// note begins the entry of a request; it is valid until the next one.
func (v *Client) note(q Request) *Entry {
	v.Entries = append(v.Entries, Entry{ID: fmt.Sprintf("%s-%d", v.Name, len(v.Entries)+1), Method: q.Method, Path: q.Path})
	return &v.Entries[len(v.Entries)-1]
}

// Ask sends one request and notes how it ended.
func (v *Client) Ask(q Request) *Entry {
	e := v.note(q)
	start := time.Now()
	var a *http.Response
	var err error
	if q.H2 {
		e.Conn = true
		a, err = v.send2(context.Background(), q, e.ID)
	} else {
		a, err = v.send1(q, e)
	}
	var body []byte
	if err == nil {
		body, err = io.ReadAll(a.Body)
		a.Body.Close()
	}
	if err != nil {
		e.Fail(err, time.Since(start))
	} else {
		e.Classify(q.Want, a, body)
	}
	if e.Verdict != ByApp && e.Verdict != ByUs || a.Close {
		v.hangUp()
	}
	return e
}

// AskAtOnce sends HTTP/1.1 requests without waiting for answers in between (RFC 9112
// section 9.3.2). Those behind one after which the connection ended are broken: nobody
// has to have read them.
func (v *Client) AskAtOnce(all []Request) {
	start, first := time.Now(), len(v.Entries)
	var text strings.Builder
	for _, q := range all {
		text.WriteString(v.message(q, v.note(q).ID))
	}
	err := v.connect()
	wrote := make(chan struct{})
	if err == nil {
		v.c.SetDeadline(time.Now().Add(Patience))
		go func() {
			defer close(wrote)
			_, _ = io.WriteString(v.c, text.String()) // the reader notices it
		}()
	} else {
		close(wrote)
	}
	for i, q := range all {
		e := &v.Entries[first+i]
		if err != nil {
			e.Fail(err, 0)
			continue
		}
		e.Conn = true
		var a *http.Response
		var body []byte
		if a, err = v.answer(q.Method); err == nil {
			body, err = io.ReadAll(a.Body)
		}
		if err != nil {
			e.Fail(err, time.Since(start))
			continue
		}
		e.Classify(q.Want, a, body)
		if a.Close {
			err = errors.New("the connection ended before its turn")
		}
	}
	if err != nil && v.c != nil {
		v.c.Close()
	}
	<-wrote
	if err != nil {
		v.c = nil
	}
}

// AskAndLeave sends a request, or the beginning of one, and goes away after a while,
// wherever the exchange then is: with a reset of the connection, or of the stream.
func (v *Client) AskAndLeave(q Request, after time.Duration) {
	e := v.note(q)
	e.Verdict, e.Word, e.Left = Broken, "by its client", true
	if q.H2 {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		if a, err := v.send2(ctx, q, e.ID); err == nil {
			_, _ = io.Copy(io.Discard, a.Body)
			a.Body.Close()
		}
		return
	}
	v.hangUp()
	if v.connect() != nil {
		return
	}
	defer v.hangUp()
	v.c.SetDeadline(time.Now().Add(after))
	text := v.message(q, e.ID)
	if v.Rand.IntN(3) == 0 {
		text = text[:v.Rand.IntN(len(text))]
	}
	if _, err := io.WriteString(v.c, text); err == nil {
		_, _ = io.Copy(io.Discard, v.c)
	}
	c := v.c
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if plain, ok := c.(*net.TCPConn); ok {
		plain.SetLinger(0)
		plain.Close() // TLS would say goodbye
	}
}

// connect makes sure that there is a connection for HTTP/1.1.
func (v *Client) connect() error {
	if v.c != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := v.Dial(ctx)
	if err != nil {
		return err
	}
	if v.TLS != nil {
		secure := tls.Client(c, v.TLS.Clone())
		if err := secure.HandshakeContext(ctx); err != nil {
			c.Close()
			return err
		}
		c = secure
	}
	v.c, v.r = c, bufio.NewReader(c)
	return nil
}

// send1 speaks HTTP/1.1.
func (v *Client) send1(q Request, e *Entry) (*http.Response, error) {
	if err := v.connect(); err != nil {
		return nil, err
	}
	e.Conn = true
	v.c.SetDeadline(time.Now().Add(Patience))
	// The answer is read whatever becomes of the writing: it may come early.
	wrote := v.write(v.message(q, e.ID))
	a, err := v.answer(q.Method)
	if err != nil && wrote != nil {
		err = wrote
	}
	return a, err
}

// answer reads the head of a final answer.
func (v *Client) answer(method string) (*http.Response, error) {
	for {
		a, err := http.ReadResponse(v.r, &http.Request{Method: method})
		if err != nil || a.StatusCode >= http.StatusOK {
			return a, err
		}
	}
}

// write sends a request, its body byte by byte if that is how the client is.
func (v *Client) write(text string) error {
	now := len(text)
	if v.Trickle > 0 {
		now = strings.Index(text, "\r\n\r\n") + 4
	}
	_, err := io.WriteString(v.c, text[:now])
	for ; now < len(text) && err == nil; now++ {
		time.Sleep(v.Trickle)
		_, err = io.WriteString(v.c, text[now:now+1])
	}
	return err
}

// message returns a request as it stands on the wire in HTTP/1.1.
func (v *Client) message(q Request, id string) string {
	head := q.Method + " " + Target(q.Path, id) + " HTTP/1.1\r\nHost: " + cmp.Or(v.Host, "example") + "\r\n" + IDField + ": " + id + "\r\n"
	for _, f := range v.Fields {
		head += f[0] + ": " + f[1] + "\r\n"
	}
	switch {
	case q.Body < 0:
		return head + "\r\n"
	case q.Chunked:
		half := q.Body / 2
		return head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n",
			half, strings.Repeat("a", half), q.Body-half, strings.Repeat("b", q.Body-half))
	default:
		return head + "Content-Length: " + strconv.Itoa(q.Body) + "\r\n\r\n" + strings.Repeat("a", q.Body)
	}
}

// Target puts the id where the request log shows it.
func Target(path, id string) string {
	if strings.Contains(path, "?") {
		return path + "&id=" + id
	}
	return path + "?id=" + id
}

// send2 speaks HTTP/2, by prior knowledge or as TLS agrees.
func (v *Client) send2(ctx context.Context, q Request, id string) (*http.Response, error) {
	if v.h2 == nil {
		speaks := new(http.Protocols)
		speaks.SetHTTP2(v.TLS != nil)
		speaks.SetUnencryptedHTTP2(v.TLS == nil)
		open := new(conns)
		v.open = open
		v.h2 = &http.Transport{
			Protocols:       speaks,
			TLSClientConfig: v.TLS.Clone(),
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := v.Dial(ctx)
				if err == nil {
					open.add(c)
				}
				return c, err
			},
		}
	}
	var body io.Reader
	if q.Body >= 0 {
		body = io.LimitReader(as{}, int64(q.Body)) // of no known length: net/http cannot send it twice
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	scheme := "http"
	if v.TLS != nil {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, q.Method, scheme+"://"+cmp.Or(v.Host, "example")+Target(q.Path, id), body)
	if err != nil {
		cancel()
		return nil, err
	}
	r.Header.Set(IDField, id)
	for _, f := range v.Fields {
		r.Header.Set(f[0], f[1])
	}
	a, err := v.h2.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	a.Body = ended{a.Body, cancel}
	return a, nil
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
