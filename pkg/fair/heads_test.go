package fair_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestIncompleteHeaderTotalLimit(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, 100)
	const begun = "GET / HTTP/1.1\r\nHost: a\r\nX: "
	other := dialFrom(t, "127.0.0.2", addr, begun+strings.Repeat("x", 500))
	var half []net.Conn
	for range 20 {
		half = append(half, dial(t, addr, begun+strings.Repeat("x", 3000)))
	}
	ended := make(chan bool, len(half))
	for _, c := range half {
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- !harness.IsTimeout(err)
		}()
	}
	for i := range len(half) - headBytes/3000 {
		if !<-ended {
			t.Fatalf("closed %d of %d connections with headers of 3 KB, want at most %d KB in open connections", i, len(half), headBytes>>10)
		}
	}
	if _, err := io.WriteString(other, "\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := answered(other); err != nil {
		t.Errorf("client with a shorter header: got error %v, want none", err)
	}
}

func TestHeaderLineLimit(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, 10)
	head := func(lines int) string { // lines includes the request line, Host and the empty line
		return "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a:b\r\n", lines-3) + "\r\n"
	}
	c := dial(t, addr, "")
	for range 20 {
		io.WriteString(c, head(100))
		harness.NoError(t, answered(c), "header of 100 lines")
	}
	io.WriteString(c, head(101))
	if err := answered(c); err == nil || harness.IsTimeout(err) {
		t.Errorf("header of 101 lines: got %v, want no response from the handler", err)
	}
}
