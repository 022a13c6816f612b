//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A client selects the protocol of closedLoop. The zero value selects HTTP/1.1 without TLS.
type client struct {
	tls *tls.Config // nil if the client does not use TLS
	h2  bool        // HTTP/2 with one stream at a time on each connection
}

// address returns the address of a peer for this client.
func (k client) address(at *parameters) string {
	switch {
	case k.tls != nil:
		return at.TLS
	case k.h2:
		return at.H2C
	}
	return at.Address
}

// closedLoop is client.closedLoop for HTTP/1.1 without TLS.
func closedLoop(address, path string, connections int, d time.Duration) ([][]time.Duration, error) {
	return client{}.closedLoop(address, path, connections, d)
}

// closedLoop sends GET requests on the given number of connections. Each connection sends a
// request as soon as it has received the previous response, until d has passed and each
// connection has received at least one response. closedLoop returns, for each connection, the
// durations of its requests in order. It opens all connections before the first request and
// closes them after the last response. A status other than 200 is an error.
func (k client) closedLoop(address, path string, connections int, d time.Duration) ([][]time.Duration, error) {
	askers := make([]asker, connections)
	for i := range askers {
		c, err := k.dial(address)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(d + patience))
		if k.h2 {
			if askers[i], err = newH2Asker(c, address, path, k.tls != nil); err != nil {
				return nil, err
			}
		} else {
			askers[i] = newH1Asker(c, address, path)
		}
	}
	took := make([][]time.Duration, connections)
	errs := make([]error, connections)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i, a := range askers {
		all.Go(func() {
			took[i], errs[i] = askInTurn(a, end)
		})
	}
	all.Wait()
	return took, errors.Join(errs...)
}

// dial opens a connection and completes the TLS handshake.
func (k client) dial(address string) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil || k.tls == nil {
		return c, err
	}
	config := k.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address)
	config.NextProtos = []string{"http/1.1"}
	if k.h2 {
		config.NextProtos = []string{http2.NextProtoTLS}
	}
	c.SetDeadline(time.Now().Add(patience))
	secure := tls.Client(c, config)
	if err := secure.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	if got := secure.ConnectionState().NegotiatedProtocol; got != "" && got != config.NextProtos[0] {
		c.Close()
		return nil, fmt.Errorf("got protocol %q, want %q", got, config.NextProtos[0])
	}
	return secure, nil
}

// An asker sends one request and waits for the complete response.
type asker interface{ ask() error }

// askInTurn runs one connection of closedLoop.
func askInTurn(a asker, end time.Time) (took []time.Duration, err error) {
	for at := time.Now(); at.Before(end) || len(took) == 0; at = time.Now() {
		if err := a.ask(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
	}
	return took, nil
}

// An h1Asker sends requests over HTTP/1.1.
type h1Asker struct {
	c       net.Conn
	in      *bufio.Reader
	request string
}

func newH1Asker(c net.Conn, address, path string) *h1Asker {
	return &h1Asker{c: c, in: bufio.NewReaderSize(c, 4<<10), request: "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nUser-Agent: bench\r\n\r\n"}
}

func (a *h1Asker) ask() error {
	if _, err := io.WriteString(a.c, a.request); err != nil {
		return err
	}
	return readAnswer(a.in)
}

// An h2Asker sends requests over HTTP/2.
type h2Asker struct {
	out     *bufio.Writer
	framer  *http2.Framer
	decoder *hpack.Decoder
	request []byte // header block that uses only the static table of HPACK
	stream  uint32 // ID of the last stream
	status  string
}

func newH2Asker(c net.Conn, address, path string, secure bool) (*h2Asker, error) {
	a := &h2Asker{out: bufio.NewWriterSize(c, 4<<10)}
	a.framer = http2.NewFramer(a.out, bufio.NewReaderSize(c, 4<<10))
	a.framer.SetReuseFrames()
	a.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			a.status = f.Value
		}
	})
	scheme := "http"
	if secure {
		scheme = "https"
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: scheme},
		{Name: ":authority", Value: address},
		{Name: ":path", Value: path},
		{Name: "user-agent", Value: "bench"},
	} {
		if err := e.WriteField(f); err != nil {
			return nil, err
		}
	}
	a.request = block.Bytes()
	if _, err := a.out.WriteString(http2.ClientPreface); err != nil {
		return nil, err
	}
	if err := a.framer.WriteSettings(); err != nil {
		return nil, err
	}
	return a, a.out.Flush()
}

// open sends a request on a new stream.
func (a *h2Asker) open() error {
	if a.stream == 0 {
		a.stream = 1
	} else {
		a.stream += 2
	}
	if err := a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: a.request, EndStream: true, EndHeaders: true}); err != nil {
		return err
	}
	return a.out.Flush()
}

func (a *h2Asker) ask() error {
	if err := a.open(); err != nil {
		return err
	}
	a.status = ""
	received := 0
	for {
		if err := a.out.Flush(); err != nil {
			return err
		}
		f, err := a.framer.ReadFrame()
		if err != nil {
			return err
		}
		ended := false
		switch f := f.(type) {
		case *http2.HeadersFrame:
			if !f.HeadersEnded() {
				return errors.New("CONTINUATION frames are not supported")
			}
			if _, err := a.decoder.Write(f.HeaderBlockFragment()); err != nil {
				return err
			}
			if err := a.decoder.Close(); err != nil {
				return err
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			received += int(f.Length)
			ended = f.StreamEnded()
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = a.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = a.framer.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("stream reset: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			err = fmt.Errorf("GOAWAY: %v", f.ErrCode)
		}
		if err != nil {
			return err
		}
		if ended {
			return a.end(received)
		}
	}
}

// end checks a complete response and replenishes the window of the connection.
func (a *h2Asker) end(received int) error {
	if a.status != "200" {
		return fmt.Errorf("got status %q, want 200", a.status)
	}
	if received == 0 {
		return nil
	}
	return a.framer.WriteWindowUpdate(0, uint32(received)) // the next flush sends the frame together with the request
}

// readAnswer reads a response with status 200 and Content-Length.
func readAnswer(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("got %q, want HTTP/1.1 200", line)
	}
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= len("\r\n") {
			_, err := r.Discard(length)
			return err
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
}
