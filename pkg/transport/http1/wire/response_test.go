package wire_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// responseVerdict returns the result for a header section in the format of the vectors.
func responseVerdict(r *wire.Response, n int, err error) string {
	var garbage *wire.Error
	switch {
	case errors.As(err, &garbage):
		if n != 0 {
			return fmt.Sprintf("garbage, but n is %d", n)
		}
		return "garbage " + string(garbage.Word)
	case err != nil:
		return err.Error()
	case n == 0:
		return "incomplete"
	}
	length, framing := r.BodyLength("GET")
	verdict := "ok " + framings[framing]
	if framing == wire.Length {
		verdict = fmt.Sprint("ok ", length)
	}
	if r.Close {
		verdict += " close"
	}
	return verdict
}

func TestResponseVectors(t *testing.T) {
	for _, v := range vectors(t, "responses.txt") {
		t.Run(v.name, func(t *testing.T) {
			var r wire.Response
			n, err := r.Parse([]byte(v.bytes))
			harness.Equal(t, responseVerdict(&r, n, err), v.verdict, v.bytes)
			n, err = parseBytewise(&r, v.bytes)
			harness.Equal(t, responseVerdict(&r, n, err), v.verdict, v.bytes, "byte by byte")
		})
	}
}

func TestResponseParseSetsFields(t *testing.T) {
	const head = "HTTP/1.1 101 Off we go\r\nX:  y z\t\r\nConnection: a, UPGRADE\r\n" +
		"Upgrade: u\r\nKeep-Alive: max=3, Timeout=5\r\nContent-Length: 3\r\n\r\n"
	var r wire.Response
	n, err := r.Parse([]byte(head + "abc"))
	if n != len(head) || err != nil {
		t.Fatalf("got %d, %v, want %d, nil", n, err, len(head))
	}
	got := fmt.Sprintf("%d %d %s %d %v %v %d", r.Minor, r.Status, r.Reason,
		r.ContentLength, r.Chunked, r.Close, r.KeepAliveTimeout)
	harness.Equal(t, got, "1 101 Off we go 3 false false 5")
	harness.Equal(t, fmt.Sprintf("%s", r.Fields), "[{X y z} {Connection a, UPGRADE} {Upgrade u} {Keep-Alive max=3, Timeout=5} {Content-Length 3}]", "fields")
}

func TestResponseBodyLengthDependsOnMethod(t *testing.T) {
	for _, tt := range []struct {
		method, head string
		length       int64
		framing      wire.Framing
	}{
		{"GET", "200 OK\r\nContent-Length: 5\r\n", 5, wire.Length},
		{"HEAD", "200 OK\r\nContent-Length: 5\r\n", 0, wire.None},
		{"HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n", 0, wire.None},
		{"HEAD", "200 OK\r\n", 0, wire.None},
		{"GET", "304 x\r\nTransfer-Encoding: chunked\r\n", 0, wire.None},
		{"GET", "204 x\r\nContent-Length: 5\r\n", 0, wire.None},
		{"GET", "199 x\r\nContent-Length: 5\r\n", 0, wire.None},
		{"CONNECT", "200 OK\r\nContent-Length: 5\r\n", 0, wire.None},
		{"CONNECT", "299 OK\r\n", 0, wire.None},
		{"CONNECT", "407 No\r\nContent-Length: 5\r\n", 5, wire.Length},
		{"connect", "200 OK\r\nContent-Length: 5\r\n", 5, wire.Length},
		{"POST", "200 OK\r\nTransfer-Encoding: chunked\r\n", -1, wire.Chunked},
		{"POST", "500 No\r\n", -1, wire.UntilClose},
		{"POST", "200 OK\r\nContent-Length: 0\r\n", 0, wire.Length},
	} {
		var r wire.Response
		if n, err := r.Parse([]byte("HTTP/1.1 " + tt.head + "\r\n")); n == 0 || err != nil {
			t.Errorf("%q: got %d, %v, want a response", tt.head, n, err)
			continue
		}
		if length, framing := r.BodyLength(tt.method); length != tt.length || framing != tt.framing {
			t.Errorf("%s, %q: got %d, %v, want %d, %v", tt.method, tt.head, length, framing, tt.length, tt.framing)
		}
	}
}

func TestResponseFoldedLineIsUnfolded(t *testing.T) {
	b := []byte("HTTP/1.1 200 OK\r\nX: a  \r\n\t b\r\n c\r\nY:\r\n d\r\nZ : e\r\n\r\nbody\r\n kept")
	var r wire.Response
	n, err := r.Parse(b)
	if n == 0 || err != nil {
		t.Fatalf("got %d, %v, want a response", n, err)
	}
	harness.Equal(t, fmt.Sprintf("%q", r.Fields), `[{"X" "a    \t b   c"} {"Y" "d"} {"Z" "e"}]`)
	harness.Equal(t, string(b[n:]), "body\r\n kept", "after the header section")
}

func TestResponseKeepAliveTimeout(t *testing.T) {
	for value, want := range map[string]int{
		"timeout=5":              5,
		"max=100, TIMEOUT = 0 ":  0,
		"timeout=5;max=100":      -1,
		"timeout=":               -1,
		"timeout":                -1,
		"timeout=-1":             -1,
		"timeout=2147483648":     -1,
		"timeout=99999999999999": -1,
		"timeouts=5":             -1,
		"":                       -1,
	} {
		var r wire.Response
		if n, err := r.Parse([]byte("HTTP/1.1 200 OK\r\nKeep-Alive: " + value + "\r\n\r\n")); n == 0 || err != nil {
			t.Errorf("%q: got %d, %v, want a response", value, n, err)
		} else if r.KeepAliveTimeout != want {
			t.Errorf("%q: got %d, want %d", value, r.KeepAliveTimeout, want)
		}
	}
}

func TestResponseOtherProtocolIsGarbage(t *testing.T) {
	for _, b := range []string{"S", "HTTP/2", "\x15\x03\x01", "\r", "\x00\x00\x12\x04", "HTTP/1.1 abc\r\n"} {
		var r wire.Response
		n, err := r.Parse([]byte(b))
		harness.Equal(t, responseVerdict(&r, n, err), "garbage status-line", b)
	}
}

func TestIncompleteResponseNeedsMoreBytes(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 5\n\n"
	for end := range len(head) {
		var r wire.Response
		if n, err := r.Parse([]byte(head[:end])); n != 0 || err != nil {
			t.Errorf("%q: got %d, %v, want 0, nil", head[:end], n, err)
		}
	}
}

func TestResponseIsReusable(t *testing.T) {
	var r wire.Response
	for i, head := range []string{
		"HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.0 200 A long reason\r\nConnection: upgrade, keep-alive\r\nUpgrade: x\r\nKeep-Alive: timeout=5\r\n\r\n",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: y\n\n",
		"HTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\n",
	} {
		n, err := parseBytewise(&r, head)
		var fresh wire.Response
		freshN, freshErr := fresh.Parse([]byte(head))
		harness.Equal(t, describeResponse(&r, n, err), describeResponse(&fresh, freshN, freshErr), "head", i)
	}
}

// describeResponse returns all values of a Response after Parse.
func describeResponse(r *wire.Response, n int, err error) string {
	if n == 0 {
		return fmt.Sprint(n, err)
	}
	return fmt.Sprintf("%d %v %d %d %q %q %d %v %v %d", n, err, r.Minor, r.Status, r.Reason, r.Fields,
		r.ContentLength, r.Chunked, r.Close, r.KeepAliveTimeout)
}

func TestEmptyLineIsAcceptedOnceAfter100(t *testing.T) {
	const interim, final = "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"
	for text, want := range map[string]string{
		interim + "\r\n" + final:                                "100 204",
		interim + final:                                         "100 204",
		interim + "\r\n" + interim + "\r\n" + final:             "100 100 204",
		interim + "\r\n\r\n" + final:                            "100 malformed response: status-line",
		interim + "\n" + final:                                  "100 malformed response: status-line",
		interim + "\r" + final:                                  "100 malformed response: status-line",
		"HTTP/1.1 103 Early Hints\r\n\r\n" + "\r\n" + final:     "103 malformed response: status-line",
		interim + "HTTP/1.1 102 Processing\r\n\r\n\r\n" + final: "100 102 malformed response: status-line",
		final + "\r\n" + final:                                  "204 malformed response: status-line",
		"\r\n" + final:                                          "malformed response: status-line",
	} {
		harness.Equal(t, statuses(text, len(text)), want, text)
		harness.Equal(t, statuses(text, 1), want, text, "byte by byte")
	}
}

// statuses parses the responses in text, which arrives in parts of the given size.
func statuses(text string, piece int) string {
	var r wire.Response
	var got []string
	for begin, end := 0, 0; begin < len(text); {
		n, err := r.Parse([]byte(text[begin:end]))
		switch {
		case err != nil:
			return strings.Join(append(got, err.Error()), " ")
		case n > 0:
			got = append(got, strconv.Itoa(r.Status))
			begin += n
		case end == len(text):
			return strings.Join(append(got, "more"), " ")
		default:
			end = min(len(text), end+piece)
		}
	}
	return strings.Join(got, " ")
}
