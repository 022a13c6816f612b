// Package ledger contains clients that record the result of each request, and compares these records with the records of
// the application and with the request log of the sidecar.
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

// Patience is the maximum time that a test waits for one event. It is long enough for a slow machine.
const Patience = 30 * time.Second

// IDField is the header field that contains the ID in a request and in its response.
const IDField = "X-Id"

// A Verdict is the result of a request.
type Verdict int

// The verdicts.
const (
	FromApp     Verdict = iota // a complete response from the application with the request's ID
	FromSidecar                // a complete response from the sidecar with a reason in Proxy-Status
	Broken                     // a reset, an incomplete response or a refused connection
	Lost                       // all other results
)

// Verdicts is the number of values of Verdict.
const Verdicts = Lost + 1

func (v Verdict) String() string {
	return [Verdicts]string{"application", "sidecar", "broken", "lost"}[v]
}

// An Entry is the record of a request by its client.
type Entry struct {
	ID, Method string
	Path       string
	Verdict    Verdict
	Word       string // reason from the sidecar, error in the client, or reason for the verdict Lost
	Conn       bool   // the request was sent on an open connection
	Left       bool   // the client closed the connection before the response
	Status     int
}

// Classify sets the verdict for a complete response. want is the length of the application's body in bytes, or -1 if it
// is unknown.
func (e *Entry) Classify(want int, a *http.Response, body []byte) {
	e.Status = a.StatusCode
	ours := a.Header.Get("Proxy-Status")
	_, word, said := strings.Cut(ours, `details="`)
	said = said && strings.HasPrefix(ours, "queue-proxy;")
	switch id := a.Header.Get(IDField); {
	case id == e.ID && a.StatusCode == http.StatusOK && want >= 0 && len(body) != want:
		e.Verdict, e.Word = Lost, fmt.Sprintf("complete response of %d bytes, want %d", len(body), want)
	case id == e.ID:
		e.Verdict = FromApp
	case id != "":
		e.Verdict, e.Word = Lost, "response to "+id
	case said && (a.StatusCode >= 400 || a.Header.Get("Grpc-Status") != ""):
		e.Verdict, e.Word = FromSidecar, strings.TrimSuffix(word, `"`)
	default:
		e.Verdict, e.Word = Lost, fmt.Sprintf("unknown sender: status %d, body %q", a.StatusCode, body)
	}
}

// Fail sets the verdict for a request without a complete response.
func (e *Entry) Fail(err error, took time.Duration) {
	var timeout net.Error
	if took >= Patience && (errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()) {
		e.Verdict, e.Word = Lost, fmt.Sprintf("no response within %v", Patience)
	} else {
		e.Verdict, e.Word = Broken, err.Error()
	}
}

// A Request describes a request and the expected response.
type Request struct {
	Method, Path string
	Body         int  // length in bytes; -1 means no body
	Chunked      bool // the body uses the chunked transfer coding
	H2           bool
	Want         int // length of the response body of the application in bytes; -1 means unknown
}

// Get returns a GET request over HTTP/1.1.
func Get(path string, want int) Request {
	return Request{Method: http.MethodGet, Path: path, Body: -1, Want: want}
}

// Post returns a POST request with Content-Length over HTTP/1.1. Any response body is accepted.
func Post(path string, body int) Request {
	return Request{Method: http.MethodPost, Path: path, Body: body, Want: -1}
}

// InChunks returns the request with a chunked body.
func (q Request) InChunks() Request {
	q.Chunked = true
	return q
}

// OverH2 returns the request for HTTP/2.
func (q Request) OverH2() Request {
	q.H2 = true
	return q
}

// Usual returns the default requests. A request that occurs twice is sent twice as often.
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

// A Client sends requests sequentially over HTTP/1.1 or HTTP/2. It keeps its connections for several requests and
// never repeats a request. It is not safe for concurrent use.
type Client struct {
	Name     string // prefix of the request IDs
	Dial     func(context.Context) (net.Conn, error)
	TLS      *tls.Config // nil means no TLS
	Host     string      // Host field; the default is example
	Requests []Request
	Rand     *rand.Rand
	Trickle  time.Duration // time between two bytes of a body; 0 means no delay
	Fields   [][2]string   // additional header fields
	Entries  []Entry       // records of all requests

	c    net.Conn
	r    *bufio.Reader
	h2   *http.Transport
	open *conns // connections of h2
}

// conns contains the connections that a transport has opened, including connections for
// canceled requests.
type conns struct {
	mu    sync.Mutex // protects the following fields
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

// Run sends requests until ctx is done. The current request is completed.
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

// Next returns a random request.
func (v *Client) Next() Request { return v.Requests[v.Rand.IntN(len(v.Requests))] }

// Pause waits for the time between two requests, or until ctx is done.
func (v *Client) Pause(ctx context.Context) {
	pause := time.Duration(v.Rand.IntN(15)) * time.Millisecond
	if v.Entries[len(v.Entries)-1].Verdict == Broken {
		pause += 20 * time.Millisecond // do not connect in a busy loop if the port is closed
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// Leave closes the connections of the client. The client can be used afterward.
func (v *Client) Leave() {
	v.hangUp()
	if v.h2 != nil {
		v.h2.CloseIdleConnections()
		v.open.close() // close the connections explicitly, because a stream that was reset can still be open
		v.h2 = nil
	}
}

func (v *Client) hangUp() {
	if v.c != nil {
		v.c.Close()
		v.c = nil
	}
}

// note adds the record of a request. The pointer is valid until the next call.
func (v *Client) note(q Request) *Entry {
	v.Entries = append(v.Entries, Entry{ID: fmt.Sprintf("%s-%d", v.Name, len(v.Entries)+1), Method: q.Method, Path: q.Path})
	return &v.Entries[len(v.Entries)-1]
}

// Ask sends one request and records its result.
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
	if e.Verdict != FromApp && e.Verdict != FromSidecar || a.Close {
		v.hangUp()
	}
	return e
}

// AskAtOnce pipelines HTTP/1.1 requests (RFC 9112 section 9.3.2). If the connection ends, the requests without a response
// are recorded as broken.
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
			_, _ = io.WriteString(v.c, text.String()) // ignore errors, because the reader reports them
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
			err = errors.New("the connection was closed before the response")
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

// AskAndLeave sends a request or the beginning of a request. After the given duration it resets the connection or the
// stream.
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
		plain.Close() // close the TCP connection, because closing the TLS connection would send close_notify
	}
}

// connect opens the connection for HTTP/1.1 unless it is already open.
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

// send1 sends a request over HTTP/1.1 and reads the header section of the response.
func (v *Client) send1(q Request, e *Entry) (*http.Response, error) {
	if err := v.connect(); err != nil {
		return nil, err
	}
	e.Conn = true
	v.c.SetDeadline(time.Now().Add(Patience))
	// Read the response even if the write fails, because the response can arrive early.
	wrote := v.write(v.message(q, e.ID))
	a, err := v.answer(q.Method)
	if err != nil && wrote != nil {
		err = wrote
	}
	return a, err
}

// answer reads the header section of the final response.
func (v *Client) answer(method string) (*http.Response, error) {
	for {
		a, err := http.ReadResponse(v.r, &http.Request{Method: method})
		if err != nil || a.StatusCode >= http.StatusOK {
			return a, err
		}
	}
}

// write sends a request. If Trickle is set, it sends the body byte by byte.
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

// message returns a request in the HTTP/1.1 format.
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

// Target adds the ID to the query, so that the request log contains it.
func Target(path, id string) string {
	if strings.Contains(path, "?") {
		return path + "&id=" + id
	}
	return path + "?id=" + id
}

// send2 sends a request over HTTP/2, with TLS or with prior knowledge.
func (v *Client) send2(ctx context.Context, q Request, id string) (*http.Response, error) {
	if v.h2 == nil {
		protocols := new(http.Protocols)
		protocols.SetHTTP2(v.TLS != nil)
		protocols.SetUnencryptedHTTP2(v.TLS == nil)
		open := new(conns)
		v.open = open
		v.h2 = &http.Transport{
			Protocols:       protocols,
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
		body = io.LimitReader(as{}, int64(q.Body)) // hide the type of the body, so that net/http cannot rewind it and send the request twice
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
	a.Body = cancelingBody{a.Body, cancel}
	return a, nil
}

// as is an endless reader of the letter a.
type as struct{}

func (as) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	return len(b), nil
}

// cancelingBody is a response body that cancels the request when the body is closed.
type cancelingBody struct {
	io.ReadCloser
	end func()
}

func (b cancelingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
