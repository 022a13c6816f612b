package conformance

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
)

// A message is an HTTP/1 request or response as received.
type message struct {
	Start    string // request line or status line
	Fields   []field
	Body     string
	Trailers []field
	Interim  []*message // preceding 1xx responses
	Cut      error      // error that truncated the body; nil if the body is complete
}

type field struct{ Name, Value string }

func (f field) String() string { return f.Name + ": " + f.Value }

// values returns the values of a field in order.
func values(fields []field, name string) []string {
	var v []string
	for _, f := range fields {
		if strings.EqualFold(f.Name, name) {
			v = append(v, f.Value)
		}
	}
	return v
}

// get returns the first value of a field, or "" if the field is missing.
func (m *message) get(name string) string {
	if v := values(m.Fields, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (m *message) status() int {
	parts := strings.SplitN(m.Start, " ", 3)
	if len(parts) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(parts[1])
	return n
}

// readHead reads a start line and fields. The parser is strict (RFC 9112 sections 2.2 and 5):
// lines end with CRLF, names are tokens, and values are not folded.
func readHead(r *bufio.Reader) (*message, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	m := &message{Start: line}
	m.Fields, err = readFields(r)
	return m, err
}

func readFields(r *bufio.Reader) ([]field, error) {
	var fields []field
	for {
		line, err := readLine(r)
		if err != nil {
			return fields, err
		}
		if line == "" {
			return fields, nil
		}
		name, value, found := strings.Cut(line, ":")
		if !found || !httpguts.ValidHeaderFieldName(name) {
			return fields, fmt.Errorf("invalid field line %.200q", line)
		}
		value = strings.Trim(value, " \t")
		if !httpguts.ValidHeaderFieldValue(value) {
			return fields, fmt.Errorf("invalid field value %.200q", line)
		}
		fields = append(fields, field{name, value})
	}
}

func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		if err == io.EOF && line != "" {
			err = fmt.Errorf("%w after %.100q", io.ErrUnexpectedEOF, line)
		}
		return "", err
	}
	if !strings.HasSuffix(line, "\r\n") {
		return "", fmt.Errorf("line ends with a bare LF: %.200q", line)
	}
	return line[:len(line)-2], nil
}

// readBody reads the body according to the fields (RFC 9112 section 6.3) and sets Cut if the
// body is truncated. If untilClose is true, a body without framing ends with the connection.
func (m *message) readBody(r *bufio.Reader, untilClose bool) error {
	lengths, codings := values(m.Fields, "Content-Length"), values(m.Fields, "Transfer-Encoding")
	switch {
	case len(lengths) > 0 && len(codings) > 0:
		return errors.New("both Content-Length and Transfer-Encoding")
	case len(lengths) > 1 || len(codings) > 1:
		return errors.New("framing fields are repeated")
	case len(codings) == 1:
		if !strings.EqualFold(codings[0], "chunked") {
			return fmt.Errorf("Transfer-Encoding: %q", codings[0])
		}
		return m.readChunks(r)
	case len(lengths) == 1:
		if !regexp.MustCompile(`^\d+$`).MatchString(lengths[0]) {
			return fmt.Errorf("Content-Length: %q", lengths[0])
		}
		n, err := strconv.Atoi(lengths[0])
		if err != nil {
			return err
		}
		b := make([]byte, n)
		n, m.Cut = io.ReadFull(r, b)
		m.Body = string(b[:n])
	case untilClose:
		b, err := io.ReadAll(r)
		m.Body, m.Cut = string(b), err
	}
	return nil
}

func (m *message) readChunks(r *bufio.Reader) error {
	var body strings.Builder
	for {
		line, err := readLine(r)
		if err != nil {
			m.Body, m.Cut = body.String(), eof(err)
			return nil
		}
		n, err := strconv.ParseUint(line, 16, 31)
		if err != nil {
			return fmt.Errorf("invalid chunk size line %.100q", line)
		}
		if n == 0 {
			m.Trailers, err = readFields(r)
			m.Body, m.Cut = body.String(), eof(err)
			return nil
		}
		if _, err := io.CopyN(&body, r, int64(n)); err != nil {
			m.Body, m.Cut = body.String(), eof(err)
			return nil
		}
		if line, err := readLine(r); err != nil || line != "" {
			m.Body, m.Cut = body.String(), eof(err)
			if err == nil {
				return fmt.Errorf("chunk data is followed by %.100q, want CRLF", line)
			}
			return nil
		}
	}
}

func eof(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readResponse reads the interim responses and the final response to a request with the given
// method.
func readResponse(r *bufio.Reader, method string) (*message, error) {
	var interim []*message
	for {
		m, err := readHead(r)
		if err != nil {
			return m, err
		}
		if s := m.status(); s >= 100 && s < 200 && s != 101 {
			interim = append(interim, m)
			continue
		}
		m.Interim = interim
		if s := m.status(); method == "HEAD" || s == 101 || s == 204 || s == 304 {
			return m, nil
		}
		return m, m.readBody(r, true)
	}
}

// A client is a raw connection to the sidecar.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

// dial opens a connection with a deadline of patience.
func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, c)
}

func dialTLS(t *testing.T, addr, alpn string) *client {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.ConnectionState().NegotiatedProtocol; got != alpn {
		t.Fatalf("ALPN: got %q, want %q", got, alpn)
	}
	return newClient(t, c)
}

func newClient(t *testing.T, c net.Conn) *client {
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &client{t, c, bufio.NewReaderSize(c, 64<<10)}
}

// send writes text to the connection.
func (w *client) send(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		w.t.Fatalf("send: %v", err)
	}
}

// receive reads the response to a request with the given method.
func (w *client) receive(method string) *message {
	w.t.Helper()
	m, err := readResponse(w.r, method)
	if err != nil {
		w.t.Fatalf("receive: %v", err)
	}
	return m
}

// ask sends a GET request and returns the response.
func (w *client) ask(target string, fields ...string) *message {
	w.t.Helper()
	w.send(request("GET", target, fields...))
	return w.receive("GET")
}

// closed fails the test unless the connection ends and no more data arrives.
func (w *client) closed() {
	w.t.Helper()
	b, err := io.ReadAll(io.LimitReader(w.r, 4096))
	if len(b) > 0 {
		w.t.Errorf("after the response: got %.300q, want a closed connection", b)
	} else if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		w.t.Errorf("read: got %v, want a closed connection", err)
	}
}

// request returns the text of a request without a body.
func request(method, target string, fields ...string) string {
	text := method + " " + target + " HTTP/1.1\r\nHost: a.test\r\n"
	for _, f := range fields {
		text += f + "\r\n"
	}
	return text + "\r\n"
}

// A bareApp is a user container that parses requests strictly and responds with the bytes of a
// script.
type bareApp struct {
	t *testing.T

	mu     sync.Mutex
	heard  []*message // received requests in the order of arrival
	broken []error    // errors of invalid requests
	script func(c *bareConn, m *message) bool
	conns  int
}

// A bareConn is the server side of a connection to a bareApp.
type bareConn struct {
	*net.TCPConn
	r      *bufio.Reader
	number int // the first connection has number 0
}

func (c *bareConn) send(text string) { io.WriteString(c, text) }

// reset closes the connection with RST instead of FIN.
func (c *bareConn) reset() {
	c.SetLinger(0)
	c.Close()
}

// bare starts a bareApp. The script is called for each request after the body was read. It
// sends the response and reports whether the connection stays open.
func (p *proxy) bare(script func(c *bareConn, m *message) bool) *bareApp {
	a := &bareApp{t: p.t, script: script}
	a.serve(p.listen(), true)
	return a
}

// bareHeads is like bare, but does not read request bodies.
func (p *proxy) bareHeads(script func(c *bareConn, m *message) bool) *bareApp {
	a := &bareApp{t: p.t, script: script}
	a.serve(p.listen(), false)
	return a
}

func (a *bareApp) serve(l net.Listener, bodies bool) {
	var wg sync.WaitGroup
	a.t.Cleanup(wg.Wait)
	a.t.Cleanup(func() { l.Close() })
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			conn := &bareConn{c.(*net.TCPConn), bufio.NewReader(c), a.conns}
			a.conns++
			a.mu.Unlock()
			c.SetDeadline(time.Now().Add(2 * patience))
			stop := context.AfterFunc(a.t.Context(), func() { c.Close() })
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer stop()
				defer c.Close()
				a.talk(conn, bodies)
			}()
		}
	}()
}

func (a *bareApp) talk(c *bareConn, bodies bool) {
	for {
		if b, _ := c.r.Peek(1); string(b) == "@" { // ignore an invalid request that a sidecar may send to detect the protocol
			c.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			return
		}
		m, err := readHead(c.r)
		if err == nil && m.Start == preface {
			c.send("HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			return
		}
		a.mu.Lock()
		script := a.script
		if err == nil {
			a.heard = append(a.heard, m)
		} else if !ended(err) {
			a.broken = append(a.broken, err)
		}
		a.mu.Unlock()
		if err == nil && bodies {
			whole := *m // read the body into a copy, because other goroutines use the elements of heard
			if err = whole.readBody(c.r, false); err == nil {
				err = whole.Cut
			}
			a.mu.Lock()
			*m = whole
			if err != nil && !ended(err) {
				a.broken = append(a.broken, err)
			}
			a.mu.Unlock()
		}
		if err != nil || !script(c, m) {
			return
		}
	}
}

// preface is the first line of the HTTP/2 preface (RFC 9113 section 3.4). The sidecar sends it
// to detect the protocol of the user container, so it does not count as a request.
const preface = "PRI * HTTP/2.0"

// ended reports whether err means that the connection has ended.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE)
}

// play sets the script for the following requests.
func (a *bareApp) play(script func(c *bareConn, m *message) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.script = script
}

// requests returns the received requests and the errors of invalid requests.
func (a *bareApp) requests() ([]*message, []error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var heard []*message
	for _, m := range a.heard {
		whole := *m
		heard = append(heard, &whole)
	}
	return heard, append([]error(nil), a.broken...)
}

// answers returns a script that sends the same response to all requests.
func answers(text string) func(*bareConn, *message) bool {
	return func(c *bareConn, m *message) bool {
		c.send(text)
		return true
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
