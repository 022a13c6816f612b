package wire_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// requestVerdict returns the result for a header section in the format of the vectors.
func requestVerdict(r *wire.Request, n int, err error) string {
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return "refused " + string(refused.Word)
	case err != nil:
		return err.Error()
	case n == 0:
		return "incomplete"
	}
	if length, framing := r.BodyLength(); framing == wire.Length {
		return fmt.Sprint("ok ", length)
	} else {
		return "ok " + framings[framing]
	}
}

// framings contains the names of the framings in the vectors.
var framings = [...]string{wire.None: "none", wire.Length: "length", wire.Chunked: "chunked", wire.UntilClose: "until-close"}

// verdictOf returns the requestVerdict for bytes that arrive together.
func verdictOf(b string) string {
	var r wire.Request
	n, err := r.Parse([]byte(b))
	return requestVerdict(&r, n, err)
}

// describe returns all values of a Request after Parse.
func describe(r *wire.Request, n int, err error) string {
	if n == 0 {
		return fmt.Sprint(n, err)
	}
	return fmt.Sprintf("%d %v %s %s %d %s %q %d %v %v %v %v", n, err, r.Method, r.Target, r.Minor,
		r.Host, r.Fields, r.ContentLength, r.Chunked, r.Close, r.Upgrade, r.Expect100)
}

// parseBytewise passes one more byte to the parser in each call, each time in different memory.
func parseBytewise(r interface{ Parse([]byte) (int, error) }, b string) (n int, err error) {
	for end := 0; end <= len(b) && n == 0 && err == nil; end++ {
		n, err = r.Parse([]byte(b[:end]))
	}
	return n, err
}

func requestVectors(t testing.TB) []vector {
	vv := vectors(t, "requests.txt")
	for _, v := range vectors(t, "fields.txt") {
		v.bytes = "POST / HTTP/1.1\r\nHost: a\r\n" + v.bytes + "\r\n"
		vv = append(vv, v)
	}
	return vv
}

func TestRequestVectors(t *testing.T) {
	for _, v := range requestVectors(t) {
		t.Run(v.name, func(t *testing.T) {
			harness.Equal(t, verdictOf(v.bytes), v.verdict, v.bytes)
			var r wire.Request
			n, err := parseBytewise(&r, v.bytes)
			harness.Equal(t, requestVerdict(&r, n, err), v.verdict, v.bytes, "byte by byte")
		})
	}
}

func TestRequestParseSetsFields(t *testing.T) {
	const head = "PUT /a?b HTTP/1.1\r\nhost: h:1\r\nX:  y z\t\r\nConnection: a, close, UPGRADE\r\n" +
		"Upgrade: u\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
	var r wire.Request
	n, err := r.Parse([]byte(head + "abc"))
	if n != len(head) || err != nil {
		t.Fatalf("got %d, %v, want %d, nil", n, err, len(head))
	}
	got := fmt.Sprintf("%s %s %d %s %d %v %v %v %v", r.Method, r.Target, r.Minor, r.Host,
		r.ContentLength, r.Chunked, r.Close, r.Upgrade, r.Expect100)
	harness.Equal(t, got, "PUT /a?b 1 h:1 3 false true true true")
	var fields []string
	for _, f := range r.Fields {
		fields = append(fields, fmt.Sprintf("%s=%s", f.Name, f.Value))
	}
	want := "host=h:1;X=y z;Connection=a, close, UPGRADE;Upgrade=u;Expect=100-continue;Content-Length=3"
	harness.Equal(t, strings.Join(fields, ";"), want, "fields")
}

func TestRequestTargetDecidesHost(t *testing.T) {
	for _, tt := range []struct {
		method, target string
		host           string
		badEscape      bool
	}{
		{"GET", "/", "field", false},
		{"GET", "//h/", "field", false},
		{"GET", "/%4a%zz", "field", true},
		{"GET", "/%", "field", true},
		{"GET", "/%1", "field", true},
		{"GET", "/?%zz", "field", false},
		{"OPTIONS", "*", "field", false},
		{"GET", "http://h:80/p", "h:80", false},
		{"GET", "http://h/%zz", "h", true},
		{"GET", "http://h?%zz", "h", false},
		{"CONNECT", "h:443", "h:443", false},
		{"GET", "http://u@h/", "field", false},
		{"CONNECT", "h", "field", false},
	} {
		var r wire.Request
		n, err := r.Parse([]byte(tt.method + " " + tt.target + " HTTP/1.1\r\nHost: field\r\n\r\n"))
		if n == 0 {
			t.Errorf("%s %s: got %v, want a request", tt.method, tt.target, err)
			continue
		}
		if string(r.Host) != tt.host || wire.BadEscape(tt.target) != tt.badEscape {
			t.Errorf("%s %s: got host %s, bad escape %v, want %s, %v",
				tt.method, tt.target, r.Host, wire.BadEscape(tt.target), tt.host, tt.badEscape)
		}
	}
}

func TestRequestCloseFollowsVersionAndConnection(t *testing.T) {
	for _, tt := range []struct {
		version, connection string
		want                bool
	}{
		{"1.1", "", false},
		{"1.1", "Connection: CLOSE\r\n", true},
		{"1.1", "Connection: closed, x\r\n", false},
		{"1.1", "Connection: a\r\nConnection: b,\t close\r\n", true},
		{"1.0", "", true},
		{"1.0", "Connection: Keep-Alive\r\n", false},
		{"1.0", "Connection: keep-alive, close\r\n", true},
	} {
		var r wire.Request
		if n, err := r.Parse([]byte("GET / HTTP/" + tt.version + "\r\nHost: a\r\n" + tt.connection + "\r\n")); n == 0 {
			t.Errorf("HTTP/%s %q: got %v, want a request", tt.version, tt.connection, err)
		} else if r.Close != tt.want {
			t.Errorf("HTTP/%s %q: got close %v, want %v", tt.version, tt.connection, r.Close, tt.want)
		}
	}
}

func TestRequestUpgradeRequiresBothFields(t *testing.T) {
	for fields, want := range map[string]bool{
		"Connection: upgrade\r\nUpgrade: x\r\n": true,
		"Connection: upgrade\r\n":               false,
		"Upgrade: x\r\n":                        false,
		"Connection: upgrade\r\nUpgrade:\r\n":   false,
	} {
		var r wire.Request
		if n, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")); n == 0 || err != nil {
			t.Errorf("%q: got %d, %v, want a request", fields, n, err)
		} else if r.Upgrade != want {
			t.Errorf("%q: got %v, want %v", fields, r.Upgrade, want)
		}
	}
}

func TestUnusualRequestIsServed(t *testing.T) {
	for head, want := range map[string]string{
		"POST / HTTP/1.1\r\nHost: a:b\r\nContent-Length: 5\r\n\r\n":                       "a:b false 2 5",
		"POST http://u@b/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n":               "a false 2 5",
		"GET * HTTP/1.1\r\nHost: a\r\n\r\n":                                               "a false 1 -1",
		"POST / HTTP/1.1\r\nHost: a\r\nConnection: x. close\r\nContent-Length: 5\r\n\r\n": "a true 3 5",
		"POST / HTTP/1.0\r\nExpect: x\r\nContent-Length: 5\r\n\r\n":                       " true 2 5",
	} {
		var r wire.Request
		n, err := r.Parse([]byte(head))
		if n != len(head) || err != nil {
			t.Errorf("%q: got %d, %v, want %d, nil", head, n, err, len(head))
			continue
		}
		harness.Equal(t, fmt.Sprintf("%s %v %d %d", r.Host, r.Close, len(r.Fields), r.ContentLength), want, head)
	}
}

func TestRefusedRequestHasStatusAndLength(t *testing.T) {
	for head, want := range map[string]string{
		"POST / HTTP/1.1\r\nHost: a/b\r\nContent-Length: 5\r\n\r\n":                      "host 400",
		"POST ftp://a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n":                  "target 400",
		"POST / HTTP/1.1\r\nHost: a\r\nExpect: x\r\nContent-Length: 5\r\n\r\n":           "expect 417",
		"POST / HTTP/1.1\nHost: a\nContent-Length: 5\n\n":                                "line-end 400",
		"POST / HTTP/1.0\r\nX: y\r\n z\r\nContent-Length: 5\r\n\r\n":                     "fold 400",
		"POST / HTTP/1.1\r\nHost: a/b\r\nX: y\r\n z\r\nContent-Length: 5\r\n\r\n":        "fold 400",
		"\r\nPOST / HTTP/1.0\r\nContent-Length: 5\r\n\r\n":                               "leading-line 400",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5,5\r\n\r\n": "content-length 400",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n":         "transfer-encoding 501",
		"POST / HTTP/1.1\r\nHost: a/b\r\nTransfer-Encoding: gzip, chunked\r\n\r\n":       "transfer-encoding 501",
		"POST ftp://a HTTP/1.1\r\nHost: a/b\r\nExpect: x\r\nContent-Length: 5\r\n\r\n":   "target 400",
	} {
		var r wire.Request
		n, err := r.Parse([]byte(head))
		var refused *wire.Error
		if !errors.As(err, &refused) || n != len(head) {
			t.Errorf("%q: got %d, %v, want %d and a refusal", head, n, err, len(head))
			continue
		}
		harness.Equal(t, fmt.Sprint(refused.Word, " ", refused.Status), want, head)
	}
	for head, want := range map[string]string{
		"GET / HTTP/2.0\r\nHost: a\r\n\r\n":                                                  "version 505",
		"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n":                              "transfer-encoding 400",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n":       "content-length 400",
		"GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X:\r\n", wire.MaxFields) + "\r\n":  "too-many-fields 431",
		"GET / HTTP/1.1\r\nHost: a\r\nTrailer: " + strings.Repeat("a,", 4000) + "\r\n\r\n":   "list-too-long 431",
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: " + strings.Repeat("a,", 100) + "\r\n\r\n": "connection 400",
	} {
		var r wire.Request
		n, err := r.Parse([]byte(head))
		var refused *wire.Error
		if !errors.As(err, &refused) || n != 0 {
			t.Errorf("%.200q: got %d, %v, want 0 and a refusal", head, n, err)
			continue
		}
		harness.Equal(t, fmt.Sprint(refused.Word, " ", refused.Status), want, head[:20])
	}
}

func TestRequestIsReusable(t *testing.T) {
	var r wire.Request
	for i, head := range []string{
		"GET /long/path HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET http://c/%zz HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: d\r\n\r\n",
	} {
		n, err := parseBytewise(&r, head)
		var fresh wire.Request
		wantN, wantErr := fresh.Parse([]byte(head))
		got, want := describe(&r, n, err), describe(&fresh, wantN, wantErr)
		harness.Equal(t, got, want, "head", i)
	}
}

func TestInvalidRequestLineIsRefusedEarly(t *testing.T) {
	for _, b := range []string{"GET /\r\n", "\x16\x03\x01", "\r\n\x16", "GET / HTTP/1.1 \n", "x\n"} {
		harness.Equal(t, verdictOf(b), "refused request-line", b)
	}
}

func TestIncompleteRequestNeedsMoreBytes(t *testing.T) {
	const head = "\r\nGET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n"
	for end := range len(head) {
		var r wire.Request
		if n, err := r.Parse([]byte(head[:end])); n != 0 || err != nil {
			t.Errorf("%q: got %d, %v, want 0, nil", head[:end], n, err)
		}
	}
}

func TestRequestResetDiscardsHeader(t *testing.T) {
	var r wire.Request
	if n, err := r.Parse([]byte("GET /a/rather/long/line HTTP/1.1\r\nHost: a\r\n")); n != 0 || err != nil {
		t.Fatalf("got %d, %v, want 0, nil", n, err)
	}
	r.Reset()
	const head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	if n, err := r.Parse([]byte(head)); n != len(head) || err != nil {
		t.Errorf("got %d, %v, want %d, nil", n, err, len(head))
	}
}

func TestRequestTooManyFieldsReturns431(t *testing.T) {
	for _, tt := range []struct {
		fields int
		want   string
	}{{wire.MaxFields, "ok none"}, {wire.MaxFields + 1, "refused too-many-fields"}} {
		head := "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", tt.fields-1) + "\r\n"
		harness.Equal(t, verdictOf(head), tt.want, tt.fields, "fields")
	}
}

// The length of these lists is limited, because the parser searches them once for each field. Legitimate requests have
// short lists.
func TestRequestLongListsAreRefused(t *testing.T) {
	line := func(name string, size int) string {
		return name + ": " + strings.Repeat("a", size) + "\r\n"
	}
	options := func(n int) string { return "Connection: " + strings.Repeat("a, ,", n) + "\r\n" }
	for _, tt := range []struct{ name, fields, want string }{
		{"Connection", line("Connection", wire.MaxConnection-2), "ok none"},
		{"Connection, too long", line("Connection", wire.MaxConnection-1), "refused list-too-long"},
		{"Connection in two lines, too long", line("Connection", wire.MaxConnection-4) + line("connection", 2), "refused list-too-long"},
		{"empty Connection lines", strings.Repeat("Connection:\r\n", wire.MaxConnection/2+1), "refused list-too-long"},
		{"maximum number of options", options(wire.MaxOptions), "ok none"},
		{"too many options", options(wire.MaxOptions-1) + options(2), "refused connection"},
		{"1000 options", options(1000), "refused connection"},
		{"Trailer", line("Trailer", wire.MaxRequestTrailer-2), "ok none"},
		{"Trailer, too long", line("Trailer", wire.MaxRequestTrailer-1), "refused list-too-long"},
		{"folded Trailer, too long", "Trailer: a,\r\n " + strings.Repeat("b,", wire.MaxRequestTrailer) + "\r\n", "refused list-too-long"},
		{"long list in another field", line("X-Forwarded-For", 1<<20), "ok none"},
	} {
		harness.Equal(t, verdictOf("GET / HTTP/1.1\r\nHost: a\r\n"+tt.fields+"\r\n"), tt.want, tt.name)
	}
	var r wire.Response
	for _, fields := range []string{line("Connection", wire.MaxConnection+1), line("Trailer", wire.MaxTrailer+1)} {
		n, err := r.Parse([]byte("HTTP/1.1 200 OK\r\n" + fields + "\r\n"))
		harness.Equal(t, responseVerdict(&r, n, err), "garbage list-too-long", fields[:20])
	}
}

func TestHasPrefaceReportsPrefix(t *testing.T) {
	for b, want := range map[string][2]bool{
		"":                         {false, true},
		"P":                        {false, true},
		"POST":                     {false, false},
		"PRI * HTTP/2.0\r\n\r\n":   {false, true},
		"PRI * HTTP/2.0\r\n\r\nXX": {false, false},
		wire.Preface:               {true, false},
		wire.Preface + "\x00\x00":  {true, false},
		"GET / HTTP/1.1\r\n\r\n":   {false, false},
	} {
		if is, maybe := wire.HasPreface([]byte(b)); is != want[0] || maybe != want[1] {
			t.Errorf("%q: got %v, %v, want %v", b, is, maybe, want)
		}
	}
}
