package http2_test

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http/httpguts"
	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// The tests send the same requests to this engine and to a reference that uses net/http. Each of them runs in front
// of an app with HTTP/1.1 and of an app with HTTP/2. The apps must receive the same requests, and the client must
// receive the same responses.
//
// Only these differences are allowed:
//
//   - the case of field names in HTTP/1.1, and the order of fields with different names
//   - the date
//   - whitespace around the value of a cookie, which the engine removes, and empty cookies, which the engine keeps
//   - the division of content into frames and chunks, and END_STREAM in the last or in an empty DATA frame
//   - Content-Length of a response if net/http adds it or omits it (for 304)
//   - the number of 100 (Continue) responses
//   - RST_STREAM(NO_ERROR) after the response to an incomplete request (RFC 9113 section 8.1), because the timing
//     determines whether the body is complete
//   - a trailer section without a Trailer field, which the net/http server drops
//   - a Trailer field without a trailer section, because a complete body is sent with its length and cannot have
//     trailers
//   - trailer fields for message framing, which net/http drops and the engine rejects, and trailer fields such as
//     Content-Type, which the engine forwards
//   - malformed requests (RFC 9113 section 8.1.1), for which the engine resets the stream and net/http may return
//     400; neither may forward a complete request to the app
//   - a Host that differs from the authority, the path "*" with a method other than OPTIONS (RFC 9113 section
//     8.3.1), a path that is a URI of another scheme, and an invalid authority (RFC 3986 section 3.2), which
//     net/http accepts and the engine treats as malformed

// A script contains a request and its response.
type script struct {
	fields  [][2]string // fields in the order in which they are sent, pseudo-header fields first
	body    []byte
	split   int         // length of the first DATA frame in bytes
	trailer [][2]string // nil means no trailer section
	status  int
	answer  [][2]string
	content string
	ends    [][2]string // trailer section of the response
}

// flushing is a ResponseWriter that flushes after each write.
type flushing struct{ http.ResponseWriter }

func (w flushing) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// has reports whether the request contains a field.
func (s *script) has(name string) bool {
	return s != nil && slices.ContainsFunc(s.fields, func(f [2]string) bool { return f[0] == name })
}

// value returns the first value of a field.
func (s *script) value(name string) string {
	for _, f := range s.fields {
		if f[0] == name {
			return f[1]
		}
	}
	return ""
}

// stricter reports whether the engine treats a request as malformed that net/http accepts.
func (s *script) stricter() bool {
	authority := s.value(":authority")
	hosts := 0
	for _, f := range s.fields {
		if f[0] == "host" {
			if hosts++; hosts > 1 || authority != "" && f[1] != authority {
				return true
			}
		}
	}
	path := s.value(":path")
	return path == "*" && s.value(":method") != "OPTIONS" || path != "*" && !strings.HasPrefix(path, "/") ||
		!wire.ValidHost(cmp.Or(authority, s.value("host")))
}

// A setup is a proxy in front of an app.
type setup struct {
	proxy *proxytest.Proxy
	app   *app
}

// An app responds according to its script and records the request.
type app struct {
	mu     sync.Mutex
	script *script
	got    []string
}

func (a *app) set(s *script) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.script, a.got = s, nil
}

func (a *app) received() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.got
}

func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/echo" {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(flushing{w}, r.Body)
		return
	}
	if r.Method == "PRI" { // protocol detection, which may be repeated
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(r.Body)
	a.mu.Lock()
	s := a.script
	var fields []string
	if !s.has("content-length") { // the proxy may add Content-Length if the body is complete
		r.Header.Del("Content-Length")
		r.ContentLength = -1
	}
	for name, values := range r.Header {
		fields = append(fields, fmt.Sprintf("%s: %q", strings.ToLower(name), values))
	}
	for name, values := range r.Trailer {
		if values == nil { // announced but not sent
			continue
		}
		fields = append(fields, fmt.Sprintf("trailer %s: %q", strings.ToLower(name), values))
	}
	slices.Sort(fields)
	if err != nil {
		a.mu.Unlock()
		return // the body is incomplete
	}
	a.got = append(a.got, fmt.Sprintf("%s %s %s\n%s\nlength %d body %q", r.Method, r.Host, r.RequestURI, strings.Join(fields, "\n"), r.ContentLength, body))
	a.mu.Unlock()
	for _, f := range s.answer {
		w.Header().Add(f[0], f[1])
	}
	for _, f := range s.ends {
		w.Header().Add(http.TrailerPrefix+f[0], f[1])
	}
	w.WriteHeader(s.status)
	if len(s.ends) > 0 {
		w.(http.Flusher).Flush()
	}
	io.WriteString(w, s.content)
}

// newSetup starts the engine or the reference proxy in front of an app with HTTP/1.1 or HTTP/2.
func newSetup(t testing.TB, reference, appH2 bool) *setup {
	t.Helper()
	s := &setup{app: &app{}}
	s.proxy = start(t, serveApp(t, s.app, appH2), func(_ *proxy.Proxy, o *proxytest.Options) { o.Reference = reference })
	return s
}

// serveApp starts an app with HTTP/1.1 or HTTP/2 and returns its listener.
func serveApp(t testing.TB, h http.Handler, appH2 bool) net.Listener {
	t.Helper()
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!appH2)
	protocols.SetUnencryptedHTTP2(appH2)
	ln := harness.Listen(t)
	server := &http.Server{Handler: h, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(ln)
	t.Cleanup(func() { server.Close() })
	return ln
}

// start starts a proxy in front of the app that listens on ln.
func start(t testing.TB, ln net.Listener, change func(*proxy.Proxy, *proxytest.Options)) *proxytest.Proxy {
	t.Helper()
	return proxytest.StartOn(t, ln.Addr().(*net.TCPAddr).Port, func(p *proxy.Proxy, o *proxytest.Options) {
		o.MaxHeaderBytes, o.AppHost, o.UnknownApp = 32<<10, "app", true
		if change != nil {
			change(p, o)
		}
	})
}

// A client is an HTTP/2 connection that sends and receives frames.
type client struct {
	testing.TB
	*harness.Frames
	id uint32 // ID of the next stream
}

func connect(t testing.TB, server *proxytest.Proxy) *client {
	t.Helper()
	nc := server.Connect(t)
	t.Cleanup(func() { nc.Close() })
	c := &client{TB: t, Frames: harness.NewFrames(nc), id: 1}
	_, err := io.WriteString(nc, xhttp2.ClientPreface)
	harness.NoError(c, err)
	harness.NoError(c, c.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 24}))
	return c
}

// flat returns alternating names and values.
func flat(pairs [][2]string) (fields []string) {
	for _, f := range pairs {
		fields = append(fields, f[0], f[1])
	}
	return fields
}

// send sends a request and returns the ID of its stream.
func (c *client) send(s *script) uint32 {
	c.Helper()
	id := c.id
	c.id += 2
	hasBody := len(s.body) > 0 || s.trailer != nil
	_ = c.WriteHead(id, !hasBody, flat(s.fields)...)
	if split := min(s.split, len(s.body)); hasBody {
		if split > 0 {
			_ = c.WriteData(id, false, s.body[:split])
		}
		_ = c.WriteData(id, s.trailer == nil, s.body[split:])
	}
	if s.trailer != nil {
		_ = c.WriteHead(id, true, flat(s.trailer)...)
	}
	return id
}

// receive reads a complete response and returns it as a string.
func (c *client) receive(id uint32) string {
	c.Helper()
	var parts []string
	var body []byte
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return fmt.Sprint(strings.Join(parts, "\n"), " the connection ended: ", err)
		}
		switch f := f.(type) {
		case *xhttp2.SettingsFrame:
			if !f.IsAck() {
				harness.NoError(c, c.WriteSettingsAck())
			}
		case *xhttp2.GoAwayFrame:
			if f.ErrCode != xhttp2.ErrCodeNo {
				return fmt.Sprint("GOAWAY ", f.ErrCode)
			}
		}
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *xhttp2.MetaHeadersFrame:
			if f.PseudoValue("status") != "100" {
				parts = append(parts, asText(f))
			}
			if f.StreamEnded() {
				return strings.Join(parts, "\n") + fmt.Sprintf("\nbody %q", body)
			}
		case *xhttp2.DataFrame:
			body = append(body, f.Data()...)
			if f.StreamEnded() {
				return strings.Join(parts, "\n") + fmt.Sprintf("\nbody %q", body)
			}
		case *xhttp2.RSTStreamFrame:
			return strings.Join(parts, "\n") + fmt.Sprintf("\nbody %q reset %v", body, f.ErrCode)
		}
	}
}

// asText returns the parts of a header section that must match as a string.
func asText(f *xhttp2.MetaHeadersFrame) string {
	var fields []string
	for _, h := range f.RegularFields() {
		if h.Name != "date" && h.Name != "content-length" {
			fields = append(fields, h.Name+": "+h.Value)
		}
	}
	slices.SortStableFunc(fields, func(a, b string) int {
		a, _, _ = strings.Cut(a, ":")
		b, _, _ = strings.Cut(b, ":")
		return strings.Compare(a, b)
	})
	return fmt.Sprintf("%s %q", f.PseudoValue("status"), fields)
}

// A comparison contains the engine and the reference, each in front of both applications.
type comparison struct{ own, reference [2]*setup }

func newComparison(t testing.TB) *comparison {
	var c comparison
	for i, h2 := range []bool{false, true} {
		c.own[i], c.reference[i] = newSetup(t, false, h2), newSetup(t, true, h2)
	}
	return &c
}

func (s *setup) run(t testing.TB, script *script) (answer string, requests []string) {
	s.app.set(script)
	c := connect(t, s.proxy)
	defer c.Close()
	answer = c.receive(c.send(script))
	return answer, s.app.received()
}

func (c *comparison) compare(t testing.TB, s *script) {
	t.Helper()
	for i, speaks := range []string{"HTTP/1.1", "h2c"} {
		own, ownRequests := c.own[i].run(t, s)
		ref, refRequests := c.reference[i].run(t, s)
		short := s.has("content-length") // the content may be complete before the error occurs
		if refused(own) && (len(ownRequests) == 0 || short) && (s.stricter() || refused(ref)) {
			continue
		}
		harness.Equal(t, own, ref, s, "the app uses", speaks)
		harness.Equal(t, ownRequests, refRequests, s, "the app uses", speaks, "the app")
	}
}

// refused reports whether a response rejects the request as malformed.
func refused(answer string) bool {
	return strings.HasPrefix(answer, "400 ") || strings.HasPrefix(answer, "431 ") || strings.Contains(answer, " reset ") || strings.HasPrefix(answer, "GOAWAY")
}

// lines parses lines of the form "name: value".
func lines(text string) (fields [][2]string) {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if ok && name != "" {
			fields = append(fields, [2]string{name, value})
		}
	}
	return fields
}

// newScript parses a script. It returns nil if the script cannot be compared. text contains a request, a
// response and the two trailer sections, separated by empty lines.
func newScript(text string, body []byte, content string, split int) *script {
	parts := strings.Split(strings.ReplaceAll(text, "\n\n\n", "\n\n \n\n"), "\n\n")
	for len(parts) < 4 {
		parts = append(parts, "")
	}
	s := &script{body: body, split: split, content: content, fields: lines(parts[0] + "\n"), trailer: lines(parts[1] + "\n"), ends: lines(parts[3] + "\n")}
	first, rest, _ := strings.Cut(parts[2]+"\n", "\n")
	s.status, _ = strconv.Atoi(first)
	s.answer = lines(rest)
	if len(text) > 8<<10 || len(body) > 32<<10 || len(content) > 32<<10 || !comparable(s) {
		return nil
	}
	return s
}

// comparable reports whether the app can send the response of a script without changes by its standard library,
// and whether all parts of the response are compared.
func comparable(s *script) bool {
	if s.status < 200 || s.status > 599 || s.status == 204 || s.status == 304 {
		return false
	}
	for _, f := range slices.Concat(s.answer, s.ends) {
		if !httpguts.ValidHeaderFieldName(f[0]) || !httpguts.ValidHeaderFieldValue(f[1]) || f[1] != strings.Trim(f[1], " \t") {
			return false
		}
		switch strings.ToLower(f[0]) {
		case "content-length", "transfer-encoding", "connection", "date", "trailer", "upgrade", "te", "keep-alive", "proxy-connection", "host":
			return false
		}
	}
	for _, f := range slices.Concat(s.trailer, s.ends) {
		if !httpguts.ValidTrailerHeader(f[0]) {
			return false
		}
	}
	for _, f := range s.trailer {
		if !slices.ContainsFunc(s.fields, func(h [2]string) bool { return h[0] == "trailer" && h[1] == f[0] }) || len(rewrite.RequestTrailer([]wire.Field{{Name: []byte(f[0])}})) == 0 {
			return false
		}
	}
	for _, f := range s.fields {
		if f[0] == "cookie" && (f[1] == "" || f[1] != strings.Trim(f[1], " \t")) {
			return false
		}
		if f[0] == ":protocol" || strings.HasPrefix(strings.ToLower(f[0]), "k-") || strings.ToLower(f[0]) == "user-agent" || f[0] == "expect" {
			return false
		}
	}
	return true
}

const begin = ":method: GET\n:scheme: http\n:authority: a\n:path: /\n"

var seeds = []struct{ name, text, body, content string }{
	{"GET", begin + "\n\n200\ncontent-type: text/plain", "", "hi"},
	{"HEAD", ":method: HEAD\n:scheme: http\n:authority: a\n:path: /\n\n\n200\nx: y", "", "hi"},
	{"POST", ":method: POST\n:scheme: http\n:authority: a\n:path: /p?q\ncontent-type: x/y\n\n\n201\ncontent-type: x/y", "some body", "done"},
	{"POST with a length", ":method: POST\n:scheme: http\n:authority: a\n:path: /\ncontent-length: 4\n\n\n200\ncontent-type: x/y", "body", "done"},
	{"wrong length", ":method: POST\n:scheme: http\n:authority: a\n:path: /\ncontent-length: 5\n\n\n200", "body", "done"},
	{"a shorter length", ":method: POST\n:scheme: http\n:authority: a\n:path: /\ncontent-length: 3\n\n\n200", "body", "done"},
	{"trailers in both directions", ":method: POST\n:scheme: http\n:authority: a\n:path: /\nte: trailers\ntrailer: checksum\n\nchecksum: 1\n\n200\ncontent-type: application/grpc\n\ngrpc-status: 0", "body", "done"},
	{"missing announced trailers", ":method: POST\n:scheme: http\n:authority: a\n:path: /\nte: trailers\ntrailer: checksum\n\n\n200\n", "body", ""},
	{"trailers without content", ":method: POST\n:scheme: http\n:authority: a\n:path: /\nte: trailers\ntrailer: checksum\n\nchecksum: 1\n\n200\ncontent-type: application/grpc\n\ngrpc-status: 0", "", ""},
	{"cookies", begin + "cookie: a=b\ncookie: c=d\n\n\n200\nset-cookie: a\nset-cookie: b\ncontent-type: a/b", "", "x"},
	{"an authority with a space", ":method: GET\n:scheme: http\n:authority: a b\n:path: /\n\n\n200", "", ""},
	{"no authority", ":method: GET\n:scheme: http\n:path: /\nhost: b\n\n\n200\ncontent-type: a/b", "", "x"},
	{"no authority, and an invalid host", ":method: GET\n:scheme: http\n:path: /\nhost: \x8e\n\n\n200\ncontent-type: a/b", "", "x"},
	{"another host", begin + "host: b\n\n\n200", "", ""},
	{"forwarded", begin + "x-forwarded-for: 1.2.3.4\nx-forwarded-proto: https\nforwarded: for=x\n\n\n404\ncontent-type: a/b", "", "x"},
	{"options", ":method: OPTIONS\n:scheme: http\n:authority: a\n:path: *\n\n\n200\ncontent-type: a/b", "", ""},
	{"connect", ":method: CONNECT\n:authority: a:80\n\n\n200", "", ""},
	{"a path that is the authority", ":method: GET\n:scheme: http\n:authority: a\n:path: a\n\n\n200", "", ""},
	{"an authority that is an asterisk", ":method: GET\n:scheme: http\n:authority: *\n:path: *\n\n\n200", "", ""},
	{"a path that is a URI", ":method: GET\n:scheme: http\n:authority: a\n:path: e:\n\n\n200", "", ""},
	{"no scheme", ":method: GET\n:authority: a\n:path: /\n\n\n200", "", ""},
	{"another scheme", ":method: GET\n:scheme: ftp\n:authority: a\n:path: /\n\n\n200", "", ""},
	{"an invalid escape", ":method: GET\n:scheme: http\n:authority: a\n:path: /%zz\n\n\n200", "", ""},
	{"unusual paths", ":method: GET\n:scheme: http\n:authority: a\n:path: //a//..;b?%zz\n\n\n200\ncontent-type: a/b", "", "x"},
	{"connection", begin + "connection: close\n\n\n200", "", ""},
	{"an alias", begin + "content_length: 5\n\n\n200", "", ""},
	{"upper case", begin + "Upper: x\n\n\n200", "", ""},
	{"proxy-status", begin + "\n\n200\nproxy-status: queue-proxy; error=x\nproxy-status: other\ncontent-type: a/b", "", "x"},
	{"an error", begin + "accept: */*\n\n\n503\nretry-after: 1\ncontent-type: a/b", "", "x"},
}

func TestEngineMatchesReference(t *testing.T) {
	c := newComparison(t)
	for _, seed := range seeds {
		t.Run(seed.name, func(t *testing.T) {
			s := newScript(seed.text, []byte(seed.body), seed.content, 1)
			if s == nil {
				t.Fatal("got no script, want one")
			}
			c.compare(t, s)
		})
	}
}

func FuzzEngineMatchesReference(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed.text, []byte(seed.body), seed.content, 1)
	}
	c := newComparison(f)
	f.Fuzz(func(t *testing.T, text string, body []byte, content string, split int) {
		if s := newScript(text, body, content, max(split, 0)); s != nil {
			c.compare(t, s)
		}
	})
}
