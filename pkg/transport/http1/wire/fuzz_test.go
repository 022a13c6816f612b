package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// inside reports whether s is a subslice of b.
func inside(s, b []byte) bool {
	if len(s) == 0 {
		return true
	}
	for i := range b {
		if &b[i] == &s[0] {
			return len(s) <= len(b)-i
		}
	}
	return false
}

func FuzzRequest(f *testing.F) {
	for _, v := range requestVectors(f) {
		f.Add([]byte(v.bytes))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<10 { // the test splits the input at every byte, which takes seconds for longer input
			return
		}
		given := bytes.Clone(b)
		var r wire.Request
		n, err := r.Parse(b)
		if !bytes.Equal(b, given) {
			t.Fatalf("got input changed to %q, want %q", b, given)
		}
		if n < 0 || n > len(b) {
			t.Fatalf("got %d of %d bytes", n, len(b))
		}
		whole := describe(&r, n, err)
		for _, s := range [][]byte{r.Method, r.Target, r.Host} {
			if n > 0 && !inside(s, b[:n]) {
				t.Errorf("got %q outside the header section", s)
			}
		}
		for _, f := range r.Fields {
			if n > 0 && (!inside(f.Name, b[:n]) || !inside(f.Value, b[:n])) {
				t.Errorf("got field %q outside the header section", f)
			}
		}

		var bytewise wire.Request
		bn, berr := parseBytewise(&bytewise, string(b))
		if n > 0 || err != nil {
			harness.Equal(t, describe(&bytewise, bn, berr), whole, "byte by byte")
		} else if bn != 0 || berr != nil {
			t.Errorf("byte by byte: got %d, %v, want 0, nil", bn, berr)
		}
		for split := range b {
			var two wire.Request
			first := bytes.Clone(b[:split])
			tn, terr := two.Parse(first)
			clear(first) // the parser must not read the old copy of an incomplete header section
			if tn == 0 && terr == nil {
				tn, terr = two.Parse(b)
				harness.Equal(t, describe(&two, tn, terr), whole, "split at", split)
			}
		}

		if n > 0 && err == nil {
			if !r.Unusual() {
				agreesWithNetHTTP(t, &r, b[:n])
			}
			sameWhenWrittenAgain(t, &r)
		}
	})
}

// agreesWithNetHTTP checks that net/http accepts a header section with the same meaning.
func agreesWithNetHTTP(t *testing.T, r *wire.Request, head []byte) {
	br := bufio.NewReader(bytes.NewReader(head))
	std, err := http.ReadRequest(br)
	if wire.BadEscape(r.Target) {
		if err == nil {
			t.Errorf("%q: net/http: got no error, want one for the bad escape", head)
		}
		return
	}
	if err != nil {
		t.Errorf("%q: net/http: got %v, want nil", head, err)
		return
	}
	harness.Equal(t, fmt.Sprintf("%s %s %s", r.Method, r.Target, r.Host), fmt.Sprintf("%s %s %s", std.Method, std.RequestURI, std.Host), head)
	chunked := slices.Equal(std.TransferEncoding, []string{"chunked"})
	length, framing := r.BodyLength()
	if r.Chunked != chunked || length != std.ContentLength {
		t.Errorf("%q: got %v of %d, want chunked %v of %d", head, framing, length, chunked, std.ContentLength)
	}
	harness.Equal(t, r.Close, std.Close, head, "close")

	got, want := http.Header{}, std.Header.Clone()
	for _, f := range r.Fields {
		got.Add(string(f.Name), string(f.Value))
	}
	// net/http removes these fields from the header, or joins them.
	for _, name := range []string{"Host", "Transfer-Encoding", "Trailer", "Content-Length"} {
		got.Del(name)
		want.Del(name)
	}
	if got.Get("Pragma") == "no-cache" && got["Cache-Control"] == nil {
		want.Del("Cache-Control") // added by net/http
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q: got fields %q, want %q", head, got, want)
	}
	if rest, _ := io.ReadAll(br); len(rest) != 0 {
		t.Errorf("%q: net/http left %q, want nothing", head, rest)
	}
}

// sameWhenWrittenAgain checks that a header section has the same meaning after a round trip.
func sameWhenWrittenAgain(t *testing.T, r *wire.Request) {
	b := fmt.Appendf(nil, "%s %s HTTP/1.%d\r\n", r.Method, r.Target, r.Minor)
	for _, f := range r.Fields {
		b = wire.AppendField(b, f.Name, f.Value)
	}
	b = append(b, "\r\n"...)
	var again wire.Request
	n, err := again.Parse(b)
	harness.Equal(t, describe(&again, n, err), describe(r, len(b), nil), b)
}

func FuzzResponse(f *testing.F) {
	for _, v := range vectors(f, "responses.txt") {
		f.Add([]byte(v.bytes))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<10 { // the test splits the input at every byte, which takes seconds for longer input
			return
		}
		given := string(b)
		var r wire.Response
		n, err := r.Parse(b)
		if n < 0 || n > len(b) || string(b[n:]) != given[n:] && err == nil {
			t.Fatalf("got %d of %d bytes, then %q, want %q", n, len(b), b[n:], given[n:])
		}
		whole := describeResponse(&r, n, err)
		for _, f := range r.Fields {
			if n > 0 && (!inside(f.Name, b[:n]) || !inside(f.Value, b[:n])) {
				t.Errorf("got field %q outside the header section", f)
			}
		}
		for split := range given {
			var two wire.Response
			tn, terr := two.Parse([]byte(given[:split]))
			if tn == 0 && terr == nil {
				tn, terr = two.Parse([]byte(given))
				harness.Equal(t, describeResponse(&two, tn, terr), whole, "split at", split)
			}
		}
		if n > 0 {
			wantSameWrittenAgain(t, &r)
			wantLengthsOfNetHTTP(t, &r)
		}
	})
}

// wantSameWrittenAgain writes the header section of a response and checks that it parses as the
// same response.
func wantSameWrittenAgain(t *testing.T, r *wire.Response) {
	t.Helper()
	again := fmt.Appendf(nil, "HTTP/1.%d %d %s\r\n", r.Minor, r.Status, r.Reason)
	for _, f := range r.Fields {
		again = wire.AppendField(again, f.Name, f.Value)
	}
	again = append(again, "\r\n"...)
	var r2 wire.Response
	n, err := r2.Parse(again)
	r2.Close = r.Close // the line ends are written as CRLF
	harness.Equal(t, describeResponse(&r2, n, err), describeResponse(r, len(again), nil), again)
}

// wantLengthsOfNetHTTP checks that net/http finds the same end of the body.
func wantLengthsOfNetHTTP(t *testing.T, r *wire.Response) {
	t.Helper()
	again := withoutLengths(r) // because net/http rejects lists of lengths
	for _, method := range []string{"GET", "HEAD"} {
		length, framing := r.BodyLength(method)
		std, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(again)), &http.Request{Method: method})
		if err != nil {
			t.Errorf("%q: net/http: got %v, want nil", again, err)
			continue
		}
		switch {
		case framing == wire.None:
			if method == "GET" && std.Body != http.NoBody {
				t.Errorf("%q: got no body, want one", again)
			}
		case framing == wire.Chunked && !slices.Equal(std.TransferEncoding, []string{"chunked"}),
			framing == wire.UntilClose && len(std.TransferEncoding) > 0,
			length != std.ContentLength:
			t.Errorf("%q: got %v of %d, want %q of %d", again, framing, length, std.TransferEncoding, std.ContentLength)
		}
	}
}

// withoutLengths writes the header section of a response with at most one Content-Length.
func withoutLengths(r *wire.Response) []byte {
	b := fmt.Appendf(nil, "HTTP/1.%d %d %s\r\n", r.Minor, r.Status, r.Reason)
	for _, f := range r.Fields {
		if !transport.EqualFold(f.Name, "Content-Length") {
			b = wire.AppendField(b, f.Name, f.Value)
		}
	}
	if r.ContentLength >= 0 {
		b = wire.AppendField(b, "Content-Length", fmt.Sprint(r.ContentLength))
	}
	return append(b, "\r\n"...)
}

func FuzzChunks(f *testing.F) {
	for _, v := range vectors(f, "chunks.txt") {
		f.Add([]byte(v.bytes), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		if len(b) > 1<<14 {
			return
		}
		body := string(b)
		var c wire.Chunks
		data, taken, err := decode(&c, body, len(body)+1)
		want := fmt.Sprint(chunksVerdict(&c, data, err), c.Trailer())
		var bad *wire.Error
		if err != nil && !errors.As(err, &bad) {
			t.Fatal(err)
		}
		for _, piece := range []int{1, max(1, piece)} {
			var p wire.Chunks
			pdata, ptaken, perr := decode(&p, body, piece)
			if got := fmt.Sprint(chunksVerdict(&p, pdata, perr), p.Trailer()); got != want || err == nil && ptaken != taken {
				t.Errorf("in parts of %d bytes: got %s of %d bytes, want %s of %d", piece, got, ptaken, want, taken)
			}
		}
		if !c.Done() {
			return
		}
		lenient := wire.Chunks{Lenient: true}
		ldata, ltaken, lerr := decode(&lenient, body, len(body)+1)
		if got := fmt.Sprint(chunksVerdict(&lenient, ldata, lerr), lenient.Trailer()); got != want || ltaken != taken {
			t.Errorf("lenient: got %s of %d bytes, want %s of %d", got, ltaken, want, taken)
		}

		br := bufio.NewReader(strings.NewReader(body[:taken]))
		std, err := io.ReadAll(httputil.NewChunkedReader(br))
		if string(std) != data || err != nil {
			t.Errorf("%q: got %q, want %q, %v", body[:taken], data, std, err)
		}
		if rest, _ := io.ReadAll(br); len(c.Trailer()) == 0 && string(rest) != "\r\n" {
			t.Errorf("%q: got %q after the last chunk, want an empty line", body[:taken], rest)
		}

		again := []byte(nil)
		if len(data) > 0 {
			again = append(wire.AppendChunkHead(nil, len(data)), data+wire.ChunkTail...)
		}
		again = wire.AppendLastChunk(again, c.Trailer())
		var c2 wire.Chunks
		data2, _, err := decode(&c2, string(again), len(again)+1)
		harness.Equal(t, fmt.Sprint(chunksVerdict(&c2, data2, err), c2.Trailer()), want, "written again")
	})
}

// Regular expressions for a token and a value (RFC 9110 sections 5.6.2 and 5.5).
var (
	aToken = regexp.MustCompile("^[!#$%&'*+\\-.^_`|~0-9A-Za-z]+$")
	aValue = regexp.MustCompile(`^[^\x00-\x08\x0a-\x1f\x7f]*$`)
)

// FuzzGrammar compares the functions for tokens and values with regular expressions and package
// strings.
func FuzzGrammar(f *testing.F) {
	f.Add("close, Upgrade ,\t x", "upgrade")
	f.Add(",,", "")
	f.Add("gzip;q=0", "gzip")
	f.Add("\u212a, k", "K")
	f.Fuzz(func(t *testing.T, value, token string) {
		ascii := func(s string) string {
			return strings.Map(func(r rune) rune {
				if 'A' <= r && r <= 'Z' {
					r += 'a' - 'A'
				}
				return r
			}, strings.ToValidUTF8(s, "\ufffd"))
		}
		valid := utf8.ValidString(value) && utf8.ValidString(token)
		if got, want := transport.EqualFold(value, token), ascii(value) == ascii(token); valid && got != want {
			t.Errorf("%q, %q: got equal %t, want %t", value, token, got, want)
		}
		if got, want := wire.HasToken(value, token), slices.ContainsFunc(strings.Split(value, ","), func(s string) bool {
			return ascii(strings.Trim(s, " \t")) == ascii(token)
		}); valid && got != want {
			t.Errorf("%q in %q: got %t, want %t", token, value, got, want)
		}
		if got, want := wire.ValidToken(token), aToken.MatchString(token); got != want {
			t.Errorf("%q: got token %t, want %t", token, got, want)
		}
		if got, want := wire.ValidValue(value), aValue.MatchString(value); got != want {
			t.Errorf("%q: got valid value %t, want %t", value, got, want)
		}
	})
}
