package harness

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ErrNotHTTP is what reading a message returns for bytes that are not strict HTTP/1.1.
var ErrNotHTTP = errors.New("not HTTP/1.1")

// A Message is a request or a response of HTTP/1.1 as it stood on the wire.
type Message struct {
	Start    string   // the request line or the status line
	Fields   []string // "name: value", the name in lower case
	Body     string
	Trailers []string // as Fields
	Complete bool     // the body's end was marked, by its length or by the last chunk
}

// Method returns a request's method.
func (m *Message) Method() string { return strings.Split(m.Start, " ")[0] }

// Target returns a request's target.
func (m *Message) Target() string { return strings.Split(m.Start, " ")[1] }

// Status returns a response's status.
func (m *Message) Status() int {
	n, _ := strconv.Atoi(strings.Split(m.Start, " ")[1])
	return n
}

// Get returns the values of a field, joined by "|". The name is in lower case.
func (m *Message) Get(name string) string {
	var values []string
	for _, f := range m.Fields {
		if n, v, _ := strings.Cut(f, ": "); n == name {
			values = append(values, v)
		}
	}
	return strings.Join(values, "|")
}

// Closes reports whether the message says that its connection ends behind it.
func (m *Message) Closes() bool { return m.Get("connection") == "close" }

// ReadLine reads a line that ends in CRLF, and returns it without.
func ReadLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return line, err
	}
	text, found := strings.CutSuffix(line, "\r\n")
	if !found || strings.Contains(text, "\r") {
		return "", ErrNotHTTP
	}
	return text, nil
}

func readFields(r *bufio.Reader) (fields []string, err error) {
	for {
		line, err := ReadLine(r)
		if line == "" || err != nil {
			return fields, err
		}
		name, value, found := strings.Cut(line, ":")
		if !found || strings.ContainsAny(name, " \t") {
			return nil, ErrNotHTTP
		}
		fields = append(fields, strings.ToLower(name)+": "+strings.Trim(value, " \t"))
	}
}

// ReadHead reads the head of a request or of a response.
func ReadHead(r *bufio.Reader) (*Message, error) {
	start, err := ReadLine(r)
	if err != nil {
		return nil, err
	}
	if strings.Count(start, " ") < 2 && !strings.HasPrefix(start, "HTTP/") {
		return nil, ErrNotHTTP
	}
	fields, err := readFields(r)
	return &Message{Start: start, Fields: fields}, err
}

// ReadBody reads the body of a request, or of a response that may have one.
func (m *Message) ReadBody(r *bufio.Reader) error {
	coding, length := m.Get("transfer-encoding"), m.Get("content-length")
	switch {
	case coding != "" && length != "":
		return ErrNotHTTP
	case coding == "chunked":
		return m.readChunks(r)
	case coding != "":
		return ErrNotHTTP
	case length != "":
		n, err := strconv.ParseInt(length, 10, 64)
		if err != nil {
			return err
		}
		m.Complete = true
		return m.readContent(r, n)
	case strings.HasPrefix(m.Start, "HTTP/"): // a response until the end of its connection
		b, err := io.ReadAll(r)
		m.Body += string(b)
		return err
	}
	m.Complete = true
	return nil
}

func (m *Message) readChunks(r *bufio.Reader) error {
	for {
		line, err := ReadLine(r)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(line, 16, 31)
		if err != nil {
			return err
		}
		if n == 0 {
			m.Trailers, err = readFields(r)
			m.Complete = err == nil
			return err
		}
		if err := m.readContent(r, int64(n)); err != nil {
			return err
		}
		if end, err := ReadLine(r); err != nil || end != "" {
			return cmp.Or(err, ErrNotHTTP)
		}
	}
}

func (m *Message) readContent(r *bufio.Reader, n int64) error {
	var b bytes.Buffer
	_, err := io.CopyN(&b, r, n)
	m.Body += b.String()
	return err
}

// ReadResponse reads the response to a request with the method. Informational responses
// before it come apart; 101 is final.
func ReadResponse(r *bufio.Reader, method string) (informational []*Message, m *Message, err error) {
	for {
		if m, err = ReadHead(r); err != nil {
			return informational, m, err
		}
		status := m.Status()
		if status >= 200 || status == 101 {
			break
		}
		informational = append(informational, m)
	}
	if s := m.Status(); method == "HEAD" || s == 101 || s == 204 || s == 304 {
		m.Complete = true
		return informational, m, nil
	}
	return informational, m, m.ReadBody(r)
}

// OK is a response with status 200 and a body.
func OK(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
