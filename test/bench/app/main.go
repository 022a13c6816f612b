//go:build linux

// Command app is the user container of the comparison. It costs as little as it
// can, so that the proxies in front of it can be told apart: HTTP/1.1 on bare
// connections, a goroutine for each, answers that were made at the start.
//
//	GET /              1 KB, Content-Length
//	GET /100k          100 KB
//	GET /slow?ms=20    1 KB, after so many milliseconds
//	POST (any path)    the body is read and dropped, then 2 bytes
//
// It understands what the proxies send it: a request with Content-Length or
// without a body. To anything else it says 400 and closes.
//
// On a port of its own it answers gRPC calls, over HTTP/2 alone (grpc.go).
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
	address := flag.String("listen", "127.0.0.1:8080", "where to listen for HTTP/1.1")
	grpcAddress := flag.String("grpc", "", "where to listen for gRPC; empty: nowhere")
	flag.Parse()
	failed := make(chan error, 2)
	go func() { failed <- listen(*address, newServer().serve) }()
	if *grpcAddress != "" {
		go func() { failed <- listen(*grpcAddress, serveGRPC) }()
	}
	fmt.Fprintln(os.Stderr, "app:", <-failed)
	os.Exit(1)
}

// listen serves each connection in a goroutine of its own, until the listener fails.
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

// A server holds the answers, complete.
type server struct{ small, large, received, bad []byte }

func newServer() *server {
	return &server{
		small:    response("200 OK", 1<<10),
		large:    response("200 OK", 100<<10),
		received: response("200 OK", 2),
		bad:      []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
	}
}

// response has the fields that an ordinary server sends. The date is that of the
// start: nobody looks at it, and a proxy must not add one.
func response(status string, size int) []byte {
	b := fmt.Appendf(nil, "HTTP/1.1 %s\r\nServer: app\r\nDate: %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n",
		status, time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), size)
	return append(b, bytes.Repeat([]byte("x"), size)...)
}

// readSize holds the longest line of a head that is understood.
const readSize = 16 << 10

// serve answers one connection until it ends.
func (s *server) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, readSize)
	for {
		answer, delay, ok := s.read(r)
		if answer == nil {
			return
		}
		if delay > 0 {
			time.Sleep(delay) // it plays an app that is at work
		}
		if _, err := c.Write(answer); err != nil || !ok {
			return
		}
	}
}

// read takes one request and returns the answer to it; nil at the end of the
// connection. With ok false the connection ends after the answer.
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
