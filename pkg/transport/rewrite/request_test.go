package rewrite

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// fields parses field lines, one per line.
func fields(lines string) (f []wire.Field) {
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ":")
		f = append(f, wire.Field{Name: []byte(name), Value: []byte(strings.Trim(value, " \t"))})
	}
	return f
}

// oneTrace is a trace that replaces traceparent.
type oneTrace struct{}

func (oneTrace) Drop(name string) bool { return strings.EqualFold(name, "traceparent") }
func (oneTrace) Fields() []transport.Field {
	return []transport.Field{{Name: "traceparent", Value: "ours"}}
}

// A vector is a request and the two expected header sections. They omit the common parts: the first
// line and Host of HTTP/1.1, and X-Forwarded-For if it only contains the peer.
type vector struct {
	name     string
	lines    string
	with     func(*Request)
	http1    string
	eachOnly string // fields that EachField yields; "" if they are equal to http1
}

var vectors = []vector{
	{name: "case, order and repeated fields are kept", lines: "b: 1\nA: 2\nb: 3\n", http1: "b: 1\nA: 2\nb: 3\n"},
	{name: "empty value is kept", lines: "Accept:\n", http1: "Accept: \n"},
	{name: "hop-by-hop fields", lines: "Keep-Alive: timeout=5\nProxy-Connection: close\nUpgrade: websocket\nProxy-Authorization: x\nA: 1\n", http1: "A: 1\n"},
	{name: "fields named in Connection", lines: "Connection: close, X-A ,, keep-alive\nX-a: 1\nconnection: x-b\nX-B: 2\nX-C: 3\n", http1: "X-C: 3\n"},
	{name: "Connection names a field of the sidecar", lines: "Connection: X-Forwarded-For, Host\nX-Forwarded-For: 1.2.3.4\n",
		http1: "Forwarded: for=1.2.3.4\nX-Forwarded-For: 1.2.3.4, 10.0.0.9\n"},
	{name: "internal fields of Knative", lines: "K-Network-Hash: x\nK-Proxy-Request: activator\nKnative-Serving-Revision: r\nKnative-Serving-Tag: t\n", http1: "Knative-Serving-Tag: t\n"},
	{name: "framing fields are replaced", lines: "Content-Length: 5\nTransfer-Encoding: chunked\nHost: other\n", http1: ""},
	{name: "TE", lines: "TE: gzip, trailers\n", http1: "Connection: TE\nTE: trailers\n", eachOnly: "none"},
	{name: "TE without trailers", lines: "TE: gzip\n", http1: ""},
	{name: "a chain of proxies", lines: "X-Forwarded-For: 1.2.3.4\nA: 1\nX-Forwarded-For: 5.6.7.8\n",
		http1: "A: 1\nForwarded: for=1.2.3.4, for=5.6.7.8\nX-Forwarded-For: 1.2.3.4, 5.6.7.8, 10.0.0.9\n"},
	{name: "a chain with an empty line", lines: "X-Forwarded-For:\nX-Forwarded-For: 5.6.7.8\n",
		http1: "Forwarded: for=unknown, for=5.6.7.8\nX-Forwarded-For: , 5.6.7.8, 10.0.0.9\n"},
	{name: "Forwarded from two fields", lines: "X-Forwarded-Proto: https\nX-Forwarded-Host: h\n",
		http1: "X-Forwarded-Proto: https\nX-Forwarded-Host: h\nForwarded: host=h;proto=https\n"},
	{name: "Forwarded exists", lines: "X-Forwarded-Proto: https\nForwarded: for=1.2.3.4\n", http1: "X-Forwarded-Proto: https\nForwarded: for=1.2.3.4\n"},
	{name: "TLS of the sidecar", with: func(r *Request) { r.Secure = true }, http1: "X-Forwarded-For: 10.0.0.9\nX-Forwarded-Proto: https\n"},
	{name: "TLS of the sidecar after a proxy", lines: "X-Forwarded-Port: 80\n", with: func(r *Request) { r.Secure = true }, http1: "X-Forwarded-Port: 80\n"},
	{name: "a trace", lines: "Traceparent: theirs\nA: 1\n", with: func(r *Request) { r.Trace = oneTrace{} }, http1: "A: 1\ntraceparent: ours\n"},
	{name: "Expect without a body", lines: "Expect: 100-continue\n", with: func(r *Request) { r.Expect100 = true }, http1: ""},
	{name: "Expect", lines: "Expect: 100-Continue\nContent-Length: 5\n", with: func(r *Request) { r.Expect100, r.Length = true, 5 },
		http1: "X-Forwarded-For: 10.0.0.9\nExpect: 100-continue\nContent-Length: 5\n", eachOnly: "none"},
	{name: "chunks and trailers", lines: "Transfer-Encoding: chunked\nTrailer: A\n", with: func(r *Request) { r.Chunked = true },
		http1: "Trailer: A\nX-Forwarded-For: 10.0.0.9\nTransfer-Encoding: chunked\n", eachOnly: "Trailer: A\n"},
	{name: "trailers need chunks", lines: "Trailer: A\n", with: func(r *Request) { r.Length = 0 }, http1: "X-Forwarded-For: 10.0.0.9\nContent-Length: 0\n", eachOnly: "none"},
	{name: "POST without a body", with: func(r *Request) { r.Method = "POST" }, http1: "X-Forwarded-For: 10.0.0.9\nContent-Length: 0\n", eachOnly: "none"},
	{name: "an upgrade", lines: "Connection: Upgrade\nUpgrade: h2c, websocket\nUpgrade: x/1\nTE: trailers\n", with: func(r *Request) { r.Upgrade = true },
		http1: "X-Forwarded-For: 10.0.0.9\nConnection: Upgrade\nUpgrade: websocket, x/1\n", eachOnly: "none"},
	{name: "several Cookie fields of HTTP/1.1", lines: "Cookie: a=1\nCookie: b=2\n", http1: "Cookie: a=1\nCookie: b=2\n"},
	{name: "split cookies of HTTP/2", lines: "cookie: a=1\nA: 1\ncookie: b=2\ncookie: c=3\n", with: func(r *Request) { r.Crumbs = true },
		http1: "A: 1\nX-Forwarded-For: 10.0.0.9\nCookie: a=1; b=2; c=3\n", eachOnly: "cookie: a=1\nA: 1\ncookie: b=2\ncookie: c=3\n"},
	{name: "no cookies", lines: "a: 1\n", with: func(r *Request) { r.Crumbs = true }, http1: "a: 1\n"},
}

const ourXFF = "X-Forwarded-For: 10.0.0.9\n"

// withXFF adds the X-Forwarded-For field if it is omitted. The field is last, or precedes Connection and TE.
func withXFF(head string) string {
	if strings.Contains(head, "X-Forwarded-For:") {
		return head
	}
	if before, ok := strings.CutSuffix(head, "Connection: TE\nTE: trailers\n"); ok {
		return before + ourXFF + "Connection: TE\nTE: trailers\n"
	}
	return head + ourXFF
}

func (v *vector) request() *Request {
	r := &Request{Method: "GET", Target: "/p?q", Host: "a.example", AppHost: "app", Peer: "10.0.0.9", Fields: fields(v.lines), Length: -1}
	if v.with != nil {
		v.with(r)
	}
	return r
}

func TestRequestAppendHTTP1(t *testing.T) {
	for _, v := range vectors {
		r := v.request()
		want := strings.ReplaceAll(r.Method+" /p?q HTTP/1.1\nHost: a.example\n"+withXFF(v.http1)+"\n", "\n", "\r\n")
		for range 2 { // the second call must not depend on memory of the first one
			if got := string(r.AppendHTTP1([]byte("before"))); got != "before"+want {
				t.Errorf("%s: got\n%s\nwant\n%s", v.name, got, want)
			}
		}
	}
}

// seen is an Encoder that records the fields.
type seen struct{ strings.Builder }

func (s *seen) Field(name, value string) { s.WriteString(name + ": " + value + "\n") }

func TestRequestEachField(t *testing.T) {
	for _, v := range vectors {
		want := v.eachOnly
		switch want {
		case "":
			want = v.http1
		case "none":
			want = ""
		}
		var got seen
		v.request().EachField(&got)
		if want = withXFF(want); got.String() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", v.name, &got, want)
		}
	}
}

func TestAuthorityPrefersOriginalHost(t *testing.T) {
	for _, c := range []struct{ host, lines, want, passed string }{
		{"a", "", "a", ""},
		{"", "", "app", ""},
		{"a", "K-Original-Host: b\n", "b", ""},
		{"a", "k-original-host:\n", "a", "k-original-host: \n"},
	} {
		r := &Request{Host: c.host, AppHost: "app", Peer: "10.0.0.9", Fields: fields(c.lines)}
		var got seen
		r.EachField(&got)
		if host := r.Authority(); host != c.want || got.String() != withXFF(c.passed) {
			t.Errorf("%q, %q: got host %q and\n%s\nwant %q and\n%s", c.host, c.lines, host, &got, c.want, withXFF(c.passed))
		}
	}
}

func TestPathIsOriginForm(t *testing.T) {
	for _, c := range []struct{ method, target, want string }{
		{"GET", "/", "/"},
		{"GET", "//a/%zz?b#c", "//a/%zz?b#c"},
		{"OPTIONS", "*", "*"},
		{"GET", "http://h", "/"},
		{"OPTIONS", "http://h", "*"},
		{"OPTIONS", "http://h/", "/"},
		{"GET", "HTTPS://h:1/a//b?c", "/a//b?c"},
		{"GET", "http://h?q=/", "/?q=/"},
		{"GET", "", ""},
		{"GET", "a:1", "a:1"},
	} {
		harness.Equal(t, (&Request{Method: c.method, Target: c.target}).Path(), c.want, c.method, c.target)
	}
}

func TestRefuseRejectsInvalidRequests(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*Request)
		want error
	}{
		"ordinary":           {func(*Request) {}, nil},
		"maximum length":     {func(r *Request) { r.Length = 10 }, nil},
		"too long":           {func(r *Request) { r.Length = 11 }, transport.FaultTooLarge},
		"unknown length":     {func(r *Request) { r.Chunked = true }, nil},
		"CONNECT":            {func(r *Request) { r.Method = "CONNECT" }, transport.FaultBadRequest},
		"no method":          {func(r *Request) { r.Method = "" }, transport.FaultBadRequest},
		"two lines":          {func(r *Request) { r.Method = "GET / HTTP/1.1\r\n" }, transport.FaultBadRequest},
		"a blank in target":  {func(r *Request) { r.Target = "/ HTTP/1.1" }, transport.FaultBadRequest},
		"a control, too":     {func(r *Request) { r.Target = "/\x7f" }, transport.FaultBadRequest},
		"beyond ASCII":       {func(r *Request) { r.Target = "/\xff" }, nil},
		"an alias of length": {func(r *Request) { r.Fields = fields("Content_length: 1\n") }, transport.FaultBadRequest},
		"an alias of coding": {func(r *Request) { r.Fields = fields("A: b\ntransfer_Encoding: x\n") }, transport.FaultBadRequest},
		"another underscore": {func(r *Request) { r.Fields = fields("content_type: x\n") }, nil},
	} {
		r := &Request{Method: "GET", Target: "/", Length: -1}
		c.with(r)
		harness.Equal(t, r.Refuse(10), c.want, name)
	}
	harness.Equal(t, (&Request{Method: "PUT", Target: "/", Length: 1 << 40}).Refuse(0), nil, "without a limit")
}

func TestOffersUpgradeIgnoresH2CAndBodies(t *testing.T) {
	const webSocket = "Connection: keep-alive, Upgrade\nUpgrade: websocket\n"
	for _, c := range []struct {
		name, lines string
		length      int64
		chunked     bool
		want        bool
	}{
		{"WebSocket", webSocket, -1, false, true},
		{"with an empty body", webSocket, 0, false, true},
		{"with a body", webSocket, 1, false, false},
		{"with chunks", webSocket, -1, true, false},
		{"only HTTP/2", "Connection: Upgrade\nUpgrade: h2c\n", -1, false, false},
		{"HTTP/2 as well", "connection: upgrade\nUpgrade: h2c\nupgrade: , x\n", -1, false, true},
		{"no protocol", "Connection: Upgrade\nUpgrade: ,\n", -1, false, false},
	} {
		r := &Request{Fields: fields(c.lines), Length: c.length, Chunked: c.chunked}
		harness.Equal(t, r.OffersUpgrade(), c.want, c.name)
	}
}

func TestEachFieldReportsTETrailers(t *testing.T) {
	for lines, want := range map[string]bool{"": false, "TE: gzip\n": false, "te: gzip\nTE: deflate, Trailers\n": true, "TE: trailers;q=1\n": false} {
		harness.Equal(t, (&Request{Fields: fields(lines)}).EachField(new(seen)), want, lines)
	}
}

func TestAppendHTTP1DoesNotAllocate(t *testing.T) {
	r := &Request{
		Method: "POST", Target: "http://h/p", Peer: "10.0.0.9", Length: 5, Secure: true, Expect100: true, Crumbs: true,
		Fields: fields("A: 1\nConnection: b, c\nB: 2\nX-Forwarded-For: 1.2.3.4\nX-Forwarded-For: 5.6.7.8\nForwarded: for=1.2.3.4\nTE: trailers\ncookie: a\ncookie: b\n"),
	}
	buf := make([]byte, 0, 4<<10)
	harness.Equal(t, testing.AllocsPerRun(100, func() { buf = r.AppendHTTP1(buf[:0]) }), 0, "allocations")
	var e Encoder = new(Lines)
	harness.Equal(t, testing.AllocsPerRun(100, func() { *e.(*Lines) = buf[:0]; r.EachField(e) }), 0, "fields", "allocations")
}
