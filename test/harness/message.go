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

// ErrNotHTTP is returned when a message violates the syntax of HTTP/1.1.
var ErrNotHTTP = errors.New("not HTTP/1.1")

// A Message is an HTTP/1.1 request or response as received.
type Message struct {
	Start    string   // request line or status line
	Fields   []string // "name: value" with a lower-case name
	Body     string
	Trailers []string // in the format of Fields
	Complete bool     // the end of the body is marked by a length or the last chunk, or there is no body
}

// Method returns the method of a request.
func (m *Message) Method() string { return strings.Split(m.Start, " ")[0] }

// Target returns the target of a request.
func (m *Message) Target() string { return strings.Split(m.Start, " ")[1] }

// Status returns the status code of a response.
func (m *Message) Status() int {
	n, _ := strconv.Atoi(strings.Split(m.Start, " ")[1])
	return n
}

// Get returns the values of a field, joined by "|". The name must be in lower case.
func (m *Message) Get(name string) string {
	var values []string
	for _, f := range m.Fields {
		if n, v, _ := strings.Cut(f, ": "); n == name {
			values = append(values, v)
		}
	}
	return strings.Join(values, "|")
}

// Closes reports whether the message has "Connection: close".
func (m *Message) Closes() bool { return m.Get("connection") == "close" }

// ReadLine reads a line that ends with CRLF and returns it without CRLF.
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

// ReadHead reads the start line and the fields of a message.
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

// ReadBody reads the body of a request, or of a response that can have a body.
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
	case strings.HasPrefix(m.Start, "HTTP/"): // without a length or a coding, the body of a response ends when the connection is closed
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

// ReadResponse reads the response to a request with the given method. It returns informational
// responses separately. Status 101 is a final response.
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

// OK returns a response with status 200 and the given body.
func OK(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
