package streams_test

import (
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// hangTime is the time after which all reads and writes on a peer's connection fail. Without a
// defect, no connection lasts that long.
const hangTime = 2 * time.Minute

// A conn is an HTTP/2 connection of a scripted peer.
type conn struct {
	batch *batch
	tcp   *net.TCPConn

	sending sync.Mutex
	*harness.Frames

	// Guarded by batch.mu.
	streams map[uint32]*exchange
	nextID  uint32 // ID of the client's next stream
	pinged  bool   // a PING has not been acknowledged yet
	ended   bool   // no more frames can be sent or received
	trace   trace  // trace of the frames for the whole connection, such as GOAWAY
}

func newConn(b *batch, tcp *net.TCPConn, frames *harness.Frames) *conn {
	return &conn{batch: b, tcp: tcp, Frames: frames, streams: map[uint32]*exchange{}, nextID: 1}
}

// send calls write, which writes frames. Write errors are ignored, because the traces show
// whether the connection has ended.
func (c *conn) send(write func() error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = write()
}

// ping sends a PING. Its acknowledgement shows that the proxy has processed all frames that
// were sent before.
func (c *conn) ping() {
	c.batch.mu.Lock()
	c.pinged = !c.ended
	send := c.pinged
	c.batch.mu.Unlock()
	if send {
		c.send(func() error { return c.WritePing(false, [8]byte{}) })
	}
}

// read reads frames until the connection ends. It calls got for each frame of a stream.
func (c *conn) read(got func(f http2.Frame)) {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.send(c.WriteSettingsAck)
			}
			continue
		case *http2.PingFrame:
			if !f.IsAck() {
				c.send(func() error { return c.WritePing(true, f.Data) })
				continue
			}
		}
		c.batch.mu.Lock()
		switch f := f.(type) {
		case *http2.PingFrame:
			c.pinged = false
		case *http2.GoAwayFrame:
			c.trace.add("GOAWAY " + f.ErrCode.String())
		default:
			if f.Header().StreamID != 0 {
				got(f)
			}
		}
		c.batch.mu.Unlock()
	}
	c.batch.mu.Lock()
	defer c.batch.mu.Unlock()
	c.ended, c.pinged = true, false
	c.trace.add("closed")
}

// dial opens a connection of a client.
func (b *batch) dial() *conn {
	tcp := b.proxy.Connect(b.t).(*net.TCPConn)
	_ = tcp.SetDeadline(time.Now().Add(hangTime))
	c := newConn(b, tcp, harness.NewFrames(tcp))
	_, err := io.WriteString(tcp, http2.ClientPreface)
	harness.NoError(b.t, err)
	harness.NoError(b.t, c.WriteSettings())
	b.readers.Go(func() {
		c.read(func(f http2.Frame) {
			x := c.streams[f.Header().StreamID]
			if x == nil {
				b.violation("the client received %v on a stream that it did not open", f)
				return
			}
			head := ""
			if f, ok := f.(*http2.MetaHeadersFrame); ok {
				head = responseToken(f)
			}
			x.client.frame(f, head)
		})
	})
	b.clients = append(b.clients, c)
	return c
}

// serveHTTP2 is an application that uses HTTP/2.
func (b *batch) serveHTTP2(tcp *harness.AppConn) {
	_ = tcp.SetDeadline(time.Now().Add(hangTime))
	c := newConn(b, tcp.TCPConn, tcp.Frames())
	if c.Greet(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: b.appStreams}) != nil {
		return
	}
	b.mu.Lock()
	b.apps = append(b.apps, c)
	b.mu.Unlock()
	c.read(func(f http2.Frame) {
		id := f.Header().StreamID
		head, opens := "trailers", false
		if f, ok := f.(*http2.MetaHeadersFrame); ok && c.streams[id] == nil {
			c.streams[id] = b.exchange(f.PseudoValue("path"))
			head, opens = "HEAD", true
		}
		x := c.streams[id]
		switch {
		case x == nil:
			b.violation("the application received %v on a stream that was not opened", f)
			return
		case opens:
			x.attempt(c, id)
		case x.appConn != c || x.appStream != id:
			b.violation("%v: the application received %v on a stream that was replaced", x.events, f)
			return
		}
		x.app.frame(f, head)
	})
}

// serveHTTP1 is an application that uses HTTP/1.1.
func (b *batch) serveHTTP1(tcp *harness.AppConn) {
	_ = tcp.SetDeadline(time.Now().Add(hangTime))
	for {
		m := tcp.Head()
		if m == nil {
			return
		}
		if m.Method() == "@" || m.Method() == "PRI" { // the sidecar sends this request to detect the protocol
			tcp.Send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
			return
		}
		b.mu.Lock()
		x := b.exchange(m.Target())
		x.attempt(nil, 0)
		x.appHTTP1 = tcp.TCPConn
		x.app.add("HEAD")
		b.mu.Unlock()
		if readHTTP1Content(tcp, m, x) != nil {
			x.record("closed")
			return
		}
		x.record("END")
		if _, err := tcp.In.Peek(1); err != nil {
			x.record("closed")
			return
		}
	}
}

// readHTTP1Content reads the content of a request.
func readHTTP1Content(tcp *harness.AppConn, m *harness.Message, x *exchange) error {
	if m.Get("transfer-encoding") != "chunked" {
		n, _ := strconv.Atoi(m.Get("content-length"))
		content := make([]byte, n)
		_, err := io.ReadFull(tcp.In, content)
		if n > 0 && err == nil {
			x.record("=" + string(content))
		}
		return err
	}
	for {
		line, err := harness.ReadLine(tcp.In)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(line, 16, 16)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		content := make([]byte, n+2)
		if _, err := io.ReadFull(tcp.In, content); err != nil {
			return err
		}
		x.record("=" + string(content[:n]))
	}
	for trailers := false; ; trailers = true {
		line, err := harness.ReadLine(tcp.In)
		if err != nil || line == "" {
			return err
		}
		if !trailers {
			x.record("trailers")
		}
	}
}

// An exchange is a schedule that is running. The fields after events are guarded by
// batch.mu.
type exchange struct {
	batch  *batch
	path   string
	events schedule

	performed int // number of events that were performed
	want      model
	failed    bool

	conn        *conn
	stream      uint32
	client, app trace

	appConn   *conn // connection of the last attempt
	appStream uint32
	appHTTP1  *net.TCPConn
}

func (x *exchange) record(token string) {
	x.batch.mu.Lock()
	defer x.batch.mu.Unlock()
	x.app.add(token)
}

// attempt records that the application received the request on a stream.
func (x *exchange) attempt(c *conn, id uint32) {
	if x.app != "" {
		x.app.add(">")
	}
	x.appConn, x.appStream = c, id
}

// perform performs an event. content is the content of a DATA frame.
func (x *exchange) perform(e event, content string) {
	switch {
	case e.byClient():
		x.performClient(e, content)
	case e.byApp() && x.appHTTP1 != nil:
		x.performHTTP1(e, content)
	case e.byApp():
		x.performApp(e, content)
	}
}

func (x *exchange) performClient(e event, content string) {
	c := x.conn
	switch e {
	case clientFIN:
		_ = c.tcp.CloseWrite()
		x.batch.mu.Lock()
		c.ended, c.pinged = true, false
		x.batch.mu.Unlock()
		return
	case clientRST:
		_ = c.tcp.SetLinger(0)
		_ = c.tcp.Close()
		x.batch.mu.Lock()
		c.ended, c.pinged = true, false
		x.batch.mu.Unlock()
		return
	}
	c.send(func() error {
		switch e {
		case clientHead, clientHeadEnd:
			if x.stream == 0 {
				return x.open(e == clientHeadEnd)
			}
			return c.WriteHead(x.stream, false, "x-trailer", "1")
		case clientData, clientDataEnd:
			return c.WriteData(x.stream, e == clientDataEnd, []byte(content))
		case clientTrailers:
			return c.WriteHead(x.stream, true, "x-trailer", "1")
		case clientReset:
			return c.WriteRSTStream(x.stream, http2.ErrCodeCancel)
		case clientWindow:
			return c.WriteWindowUpdate(x.stream, 1)
		case clientWindow0:
			return c.WriteWindowUpdate(x.stream, 0)
		case clientGoAway:
			return c.WriteGoAway(0, http2.ErrCodeNo, nil)
		}
		return nil
	})
}

// open opens the stream of the exchange.
func (x *exchange) open(end bool) error {
	c := x.conn
	x.batch.mu.Lock()
	x.stream = c.nextID
	c.nextID += 2
	c.streams[x.stream] = x
	x.batch.mu.Unlock()
	method := "POST"
	if end {
		method = "GET"
	}
	return c.WriteHead(x.stream, end, ":method", method, ":scheme", "http", ":authority", "app.test", ":path", x.path)
}

func (x *exchange) performApp(e event, content string) {
	x.batch.mu.Lock()
	c, id := x.appConn, x.appStream
	x.batch.mu.Unlock()
	switch e {
	case appFIN:
		_ = c.tcp.Close()
		return
	case appRST:
		_ = c.tcp.SetLinger(0)
		_ = c.tcp.Close()
		return
	}
	c.send(func() error {
		if code, ok := e.code(); ok {
			return c.WriteRSTStream(id, code)
		}
		switch e {
		case appInfo:
			return c.WriteHead(id, false, ":status", "103")
		case appHead, appHeadEnd:
			return c.WriteHead(id, e == appHeadEnd, ":status", "200")
		case appData, appDataEnd:
			return c.WriteData(id, e == appDataEnd, []byte(content))
		case appTrailers:
			return c.WriteHead(id, true, "x-trailer", "1")
		case appWindow:
			return c.WriteWindowUpdate(id, 1)
		case appWindow0:
			return c.WriteWindowUpdate(id, 0)
		case appGoAway:
			return c.WriteGoAway(math.MaxInt32, http2.ErrCodeNo, nil)
		case appGoAwayError:
			return c.WriteGoAway(id, http2.ErrCodeInternal, nil)
		case appGoAwayBefore:
			return c.WriteGoAway(0, http2.ErrCodeNo, nil)
		}
		return nil
	})
}

func (x *exchange) performHTTP1(e event, content string) {
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(content), content)
	text := ""
	switch e {
	case appInfo:
		text = "HTTP/1.1 103 Early Hints\r\n\r\n"
	case appHead:
		text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	case appHeadEnd:
		text = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	case appData:
		text = chunk
	case appDataEnd:
		text = chunk + "0\r\n\r\n"
	case appTrailers:
		text = "0\r\nX-Trailer: 1\r\n\r\n"
	case appRST:
		_ = x.appHTTP1.SetLinger(0)
	}
	if text != "" {
		_, _ = io.Copy(x.appHTTP1, strings.NewReader(text))
		return
	}
	_ = x.appHTTP1.Close()
}
