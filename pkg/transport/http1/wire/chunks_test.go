package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http/httputil"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// decode decodes a chunked body that arrives in parts of the given size, each in separate memory.
// It returns the data and the number of bytes in the body.
func decode(c *wire.Chunks, body string, piece int) (data string, taken int, err error) {
	var all strings.Builder
	for taken < len(body) && !c.Done() && err == nil {
		b := []byte(body[taken:min(len(body), taken+piece)])
		d, n, nextErr := c.Next(b)
		all.Write(d)
		taken += n
		switch {
		case nextErr != nil:
			err = nextErr
		case n == 0:
			err = errors.New("consumed nothing")
		case n < 0 || n > len(b):
			err = fmt.Errorf("consumed %d of %d bytes", n, len(b))
		case n < len(b) && len(d) == 0 && !c.Done():
			err = fmt.Errorf("consumed %d of %d bytes without data or end", n, len(b))
		}
	}
	return all.String(), taken, err
}

func chunksVerdict(c *wire.Chunks, data string, err error) string {
	var bad *wire.Error
	switch {
	case errors.As(err, &bad):
		return "bad " + string(bad.Word)
	case err != nil:
		return err.Error()
	case c.Done():
		return strings.TrimSpace("ok " + fmt.Sprintf("%q", data))
	}
	return "more " + fmt.Sprintf("%q", data)
}

func TestChunksVectors(t *testing.T) {
	for _, v := range vectors(t, "chunks.txt") {
		t.Run(v.name, func(t *testing.T) {
			want := v.verdict
			if kind, data, _ := strings.Cut(v.verdict, " "); kind != "bad" {
				want = kind + " " + fmt.Sprintf("%q", unescape(t, data))
			}
			for piece := 1; piece <= len(v.bytes); piece++ {
				var c wire.Chunks
				data, _, err := decode(&c, v.bytes, piece)
				harness.Equal(t, chunksVerdict(&c, data, err), want, v.bytes, "in pieces of", piece)
			}
		})
	}
}

func TestLenientChunksAcceptBlanksAndEmptyExtensions(t *testing.T) {
	for body, want := range map[string]string{
		"5 \r\nhello\r\n0 \r\n\r\n":           `ok "hello"`,
		"5 \t \r\nhello\r\n0\t\r\n\r\n":       `ok "hello"`,
		"5;\r\nhello\r\n0;\r\n\r\n":           `ok "hello"`,
		"5; \r\nhello\r\n0;;\r\n\r\n":         `ok "hello"`,
		"5 ; a = b ;\r\nhello\r\n0\r\n\r\n":   `ok "hello"`,
		"5;a \r\nhello\r\n0;a=\"b\" \r\n\r\n": `ok "hello"`,
		" 5\r\nhello\r\n0\r\n\r\n":            "bad chunk-size",
		"5\nhello\r\n0\r\n\r\n":               "bad chunk-size",
		"5 \nhello\r\n0\r\n\r\n":              "bad chunk-extension",
		"5 5\r\nhello\r\n0\r\n\r\n":           "bad chunk-extension",
		"5;\nhello\r\n0\r\n\r\n":              "bad chunk-extension",
		"5 \rhello\r\n0\r\n\r\n":              "bad chunk-end",
		"5;a=\r\nhello\r\n0\r\n\r\n":          "bad chunk-extension",
		"5" + strings.Repeat(" ", 3<<10):      "bad long-extension",
		"5" + strings.Repeat(";", 3<<10):      "bad long-extension",
	} {
		for _, piece := range []int{1, len(body)} {
			c := wire.Chunks{Lenient: true}
			data, _, err := decode(&c, body, piece)
			harness.Equal(t, chunksVerdict(&c, data, err), want, body, "in pieces of", piece)
			c.Reset()
			harness.Equal(t, c.Lenient, true, "lenient after Reset")
		}
	}
}

func TestChunksStopsAtBodyEnd(t *testing.T) {
	const body = "5\r\nhello\r\n0\r\nX: y\r\n\r\n"
	var c wire.Chunks
	_, taken, err := decode(&c, body+"0\r\n\r\n", 1000)
	if taken != len(body) || err != nil || !c.Done() {
		t.Errorf("got %d, %v, done %v, want %d, nil, true", taken, err, c.Done(), len(body))
	}
	if data, n, err := c.Next([]byte("0\r\n\r\n")); data != nil || n != 0 || err != nil {
		t.Errorf("after the end: got %q, %d, %v, want nothing", data, n, err)
	}
}

func TestChunksReturnsTrailerWhenDone(t *testing.T) {
	var c wire.Chunks
	if _, _, err := decode(&c, "0\r\nX: y\r\nZ:\t1 \r\n\r", 1000); err != nil {
		t.Fatal(err)
	}
	harness.Equal(t, c.Trailer(), nil, "before the end")
	if _, _, err := c.Next([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	harness.Equal(t, fmt.Sprintf("%q", c.Trailer()), `[{"X" "y"} {"Z" "1"}]`)
	c.Reset()
	if _, _, err := decode(&c, "0\r\n\r\n", 1000); err != nil {
		t.Fatal(err)
	}
	if got := c.Trailer(); !c.Done() || len(got) != 0 {
		t.Errorf("next body: got %q, done %v, want none, true", got, c.Done())
	}
}

func TestChunksErrorPersistsUntilReset(t *testing.T) {
	var c wire.Chunks
	_, n, err := c.Next([]byte("x"))
	_, n2, err2 := c.Next([]byte("0\r\n\r\n"))
	if n != 0 || n2 != 0 || err == nil || err2 != err || c.Done() {
		t.Errorf("got %d, %v, then %d, %v, done %v, want the same error twice", n, err, n2, err2, c.Done())
	}
	c.Reset()
	if _, _, err := c.Next([]byte("0\r\n\r\n")); err != nil || !c.Done() {
		t.Errorf("after Reset: got %v, done %v, want nil, true", err, c.Done())
	}
}

func TestChunksLimitsExtensions(t *testing.T) {
	extension := func(n int) string { return ";" + strings.Repeat("a", n-1) }
	const limit = wire.MaxExtension - 1 // the CR of the line counts as well
	for _, tt := range []struct {
		name, body string
		want       string
	}{
		{"one extension", "1" + extension(limit) + "\r\nx\r\n0\r\n\r\n", `ok "x"`},
		{"one extension above the limit", "1" + extension(limit+1) + "\r\nx\r\n0\r\n\r\n", "bad long-extension"},
		{"many extensions with little data", strings.Repeat("1;a\r\nx\r\n", wire.MaxExtension) + "0\r\n\r\n", "bad long-extension"},
		{"many signed chunks", strings.Repeat("400"+extension(90)+"\r\n"+strings.Repeat("x", 1024)+"\r\n", 100) + "0\r\n\r\n",
			fmt.Sprintf("ok %q", strings.Repeat("x", 102400))},
	} {
		var c wire.Chunks
		data, _, err := decode(&c, tt.body, 1000)
		if got := chunksVerdict(&c, data, err); got != tt.want {
			t.Errorf("%s: got %.60s, want %.60s", tt.name, got, tt.want)
		}
	}
}

func TestChunksLimitsTrailer(t *testing.T) {
	line := func(n int) string { return "X:" + strings.Repeat("y", n-4) + "\r\n" }
	for _, tt := range []struct {
		name, trailer, want string
	}{
		{"maximum length", line(wire.MaxTrailer), `ok ""`},
		{"too long", line(wire.MaxTrailer + 1), "bad trailer-too-long"},
		{"too long in two lines", line(wire.MaxTrailer) + "Y:\r\n", "bad trailer-too-long"},
		{"maximum number of fields", strings.Repeat("X: y\r\n", wire.MaxFields), `ok ""`},
		{"too many fields", strings.Repeat("X: y\r\n", wire.MaxFields+1), "bad too-many-fields"},
		{"endless", strings.Repeat("X", 2*wire.MaxTrailer), "bad trailer-too-long"},
	} {
		for _, piece := range []int{1, 1000, 1 << 20} {
			var c wire.Chunks
			data, _, err := decode(&c, "0\r\n"+tt.trailer+"\r\n", piece)
			harness.Equal(t, chunksVerdict(&c, data, err), tt.want, tt.name, "in pieces of", piece)
		}
	}
}

func TestChunksMaxTrailerIsConfigurable(t *testing.T) {
	c := wire.Chunks{MaxTrailer: 6}
	for range 2 { // Reset does not change the limit
		for body, want := range map[string]string{"0\r\nX: y\r\n\r\n": `ok ""`, "0\r\nX: yz\r\n\r\n": "bad trailer-too-long"} {
			c.Reset()
			data, _, err := decode(&c, body, 1000)
			harness.Equal(t, chunksVerdict(&c, data, err), want, body)
		}
	}
}

func TestChunksRoundTrip(t *testing.T) {
	for _, size := range []int{1, 9, 10, 15, 16, 255, 256, 70000} {
		data := strings.Repeat("d", size)
		b := wire.AppendChunkHead(nil, size)
		b = append(b, data+wire.ChunkTail...)
		plain := string(wire.AppendLastChunk(bytes.Clone(b), nil))
		trailed := string(wire.AppendLastChunk(b, []wire.Field{{Name: []byte("X"), Value: []byte("y")}}))

		var c wire.Chunks
		if got, taken, err := decode(&c, plain, 100); got != data || taken != len(plain) || err != nil {
			t.Errorf("size %d: got %d bytes of data, %d consumed, %v, want %d, %d, nil", size, len(got), taken, err, size, len(plain))
		}
		c.Reset()
		if got, taken, err := decode(&c, trailed, 100); got != data || taken != len(trailed) || err != nil {
			t.Errorf("size %d with a trailer: got %d bytes of data, %d consumed, %v, want %d, %d, nil", size, len(got), taken, err, size, len(trailed))
		}
		harness.Equal(t, fmt.Sprintf("%s", c.Trailer()), "[{X y}]", "size", size, "trailer")
		std, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(plain)))
		if string(std) != data || err != nil {
			t.Errorf("size %d, standard library: got %d bytes, %v, want %d, nil", size, len(std), err, size)
		}
	}
	harness.Equal(t, string(wire.AppendLastChunk(nil, nil)), "0\r\n\r\n", "no trailer")
	largest := strconv.FormatInt(math.MaxInt, 16) + "\r\n"
	harness.Equal(t, string(wire.AppendChunkHead(nil, math.MaxInt)), largest, "the largest chunk")
}

func TestChunksReadsStandardLibraryOutput(t *testing.T) {
	var buf bytes.Buffer
	w := httputil.NewChunkedWriter(&buf)
	want := ""
	for _, size := range []int{1, 2, 15, 16, 17, 4096, 100000} {
		s := strings.Repeat("x", size)
		io.WriteString(w, s)
		want += s
	}
	w.Close()
	buf.WriteString("\r\n")
	for _, piece := range []int{1, 3, 4096, 1 << 20} {
		var c wire.Chunks
		if got, _, err := decode(&c, buf.String(), piece); got != want || err != nil || !c.Done() {
			t.Errorf("in parts of %d bytes: got %d bytes, %v, done %v, want %d, nil, true", piece, len(got), err, c.Done(), len(want))
		}
	}
}
