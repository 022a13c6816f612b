package http1client

import (
	"io"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// A lateBody is complete, but its reader is delayed, as on a busy host.
type lateBody struct{ reads int }

func (b *lateBody) Read(p []byte) (int, error) {
	if b.reads++; b.reads == 1 {
		return copy(p, "hello"), nil
	}
	time.Sleep(5 * lagTimeout) // real time: longer than Close waits for the upload
	return 0, io.EOF
}

func TestDelayedUploadKeepsConnection(t *testing.T) {
	a := app(t, func(conn *harness.AppConn) {
		for r := readHead(conn); r != nil; r = readHead(conn) {
			if r.Method == "GET" {
				conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			io.ReadFull(conn.In, make([]byte, len("5\r\nhello\r\n")))
			conn.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") // the response does not depend on the rest of the body
			io.ReadFull(conn.In, make([]byte, len("0\r\n\r\n")))
		}
	})
	newCall("GET", "/first").do(a)
	k := newCall("POST", "/").with(&lateBody{}, -1)
	k.arrived = true
	k.stop = func() { t.Error("got a call to StopBody, want none") }
	k.do(a).want(t, 200, "ok")
	harness.Equal(t, idle(a), 1, "idle connections")
}
