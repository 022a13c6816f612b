//go:build linux

// Command app is the user container of the comparison. It uses as little CPU time as possible,
// so that the differences between the proxies are visible. It serves HTTP/1.1 on raw
// connections, with one goroutine for each connection and with prepared responses.
//
//	GET /              1 KB with Content-Length
//	GET /100k          100 KB with Content-Length
//	GET /slow?ms=20    1 KB after 20 ms
//	POST (any path)    2 bytes after the complete body, which is discarded
//
// It supports the requests that the proxies send: requests with Content-Length or without a
// body. It responds to other requests with status 400 and closes the connection.
//
// On a separate port it serves gRPC calls over HTTP/2 (grpc.go).
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8080", "listen address for HTTP/1.1")
	grpcAddress := flag.String("grpc", "", "listen address for gRPC; if empty, gRPC is disabled")
	flag.Parse()
	failed := make(chan error, 2)
	go func() { failed <- listen(*address, newServer().serve) }()
	if *grpcAddress != "" {
		go func() { failed <- listen(*grpcAddress, serveGRPC) }()
	}
	fmt.Fprintln(os.Stderr, "app:", <-failed)
	os.Exit(1)
}

// listen serves each connection in a new goroutine until the listener fails.
func listen(address string, serve func(net.Conn)) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go serve(c)
	}
}

// A server contains the prepared responses.
type server struct{ small, large, received, bad []byte }

func newServer() *server {
	return &server{
		small:    response("200 OK", 1<<10),
		large:    response("200 OK", 100<<10),
		received: response("200 OK", 2),
		bad:      []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
	}
}

// response returns a response with the fields of a common server. The Date field contains the
// start time. Clients do not check it, and proxies must not replace it.
func response(status string, size int) []byte {
	b := fmt.Appendf(nil, "HTTP/1.1 %s\r\nServer: app\r\nDate: %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
		status, time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), size)
	return append(b, bytes.Repeat([]byte("x"), size)...)
}

// readSize is the maximum length of a header line in bytes.
const readSize = 16 << 10

// serve serves one connection until it ends.
func (s *server) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, readSize)
	for {
		answer, delay, ok := s.read(r)
		if answer == nil {
			return
		}
		if delay > 0 {
			time.Sleep(delay) // simulate work of the app
		}
		if _, err := c.Write(answer); err != nil || !ok {
			return
		}
	}
}

// read reads one request and returns the response and its delay. The response is nil if the
// connection has ended. If ok is false, the connection must be closed after the response.
func (s *server) read(r *bufio.Reader) (answer []byte, delay time.Duration, ok bool) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, 0, false
	}
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, _ := bytes.Cut(rest, []byte(" "))
	if !bytes.HasPrefix(version, []byte("HTTP/1.")) || bytes.HasPrefix(version, []byte("HTTP/1.0")) {
		return s.bad, 0, false
	}
	switch {
	case bytes.Equal(method, []byte("POST")):
		answer = s.received
	case bytes.HasPrefix(target, []byte("/100k")):
		answer = s.large
	case bytes.HasPrefix(target, []byte("/slow")):
		answer = s.small
		if _, value, found := bytes.Cut(target, []byte("ms=")); found {
			ms, _ := strconv.Atoi(string(value))
			delay = time.Duration(ms) * time.Millisecond
		}
	default:
		answer = s.small
	}
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return nil, 0, false
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			length, err = strconv.Atoi(string(bytes.TrimSpace(value)))
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			return s.bad, 0, false
		}
		if err != nil || length < 0 {
			return s.bad, 0, false
		}
	}
	if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
		return nil, 0, false
	}
	return answer, delay, true
}
