package http1_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// The tests send the same bytes to this engine and to the reference on net/http. Each of them is in front of
// a user container that records the requests and sends scripted responses. Both must forward the same
// requests and responses, and close the connection at the same position.
//
// Only the following differences are permitted:
//
//   - the case of field names, and the order of fields of different names;
//   - the reason phrase, and the date;
//   - the framing of a body (Content-Length or chunks), and the sizes of the chunks;
//   - the format of several Trailer lines;
//   - Content-Length and Content-Type of a 304 response, which net/http omits (RFC 9110
//     section 15.4.5);
//   - Cache-Control: no-cache, which net/http adds if there is Pragma: no-cache;
//   - the number of 100 (Continue) responses, because net/http can add one to that of the application;
//   - only one of the two connections may end after the response to a request with a body,
//     because this depends on whether the body is complete at that moment.
//
// Requests that the sidecar rejects are only sent to this engine. net/http accepts some of them
// (docs/promises.md 3.7a contains the reasons).
//
// The bytes of a client are cut before the following input:
//
//   - an incomplete message, because both proxies would wait for the rest
//   - an empty line before a request, which net/http accepts only after a POST request
//   - a target with an invalid escape, which net/http rejects
//   - a chunked body over HTTP/1.0, which net/http does not support

// A scripted app sends the nth response to the nth request, and starts again after the last response.
// It closes its side after a response whose end is marked only by the end of the connection.
type scripted struct {
	app *harness.App

	mu       sync.Mutex
	answers  []string
	requests []string // complete requests, normalized for comparison
	bad      []string // input that the strict parser rejects
}

func newScripted(t testing.TB) *scripted {
	s := &scripted{}
	s.app = harness.NewApp(t, s.serve)
	return s
}

func (s *scripted) serve(conn *harness.AppConn) {
	for {
		m, err := harness.ReadHead(conn.In)
		if err == nil {
			if m.Get("expect") != "" {
				conn.Send("HTTP/1.1 100 Continue\r\n\r\n")
			}
			err = m.ReadBody(conn.In)
		}
		s.mu.Lock()
		if errors.Is(err, harness.ErrNotHTTP) {
			s.bad = append(s.bad, fmt.Sprintf("%+v", m))
		}
		if err != nil {
			s.mu.Unlock()
			return
		}
		text := s.answers[len(s.requests)%len(s.answers)]
		s.requests = append(s.requests, asRequest(m))
		s.mu.Unlock()
		conn.Send(text)
		if method, _, _ := strings.Cut(m.Start, " "); !endsItself(text, method) {
			conn.CloseWrite()
			conn.Hang()
			return
		}
	}
}

// endsItself reports whether text is one complete final response to a request with the given method, after which the
// connection can be reused. Informational responses can precede the final response.
func endsItself(text, method string) bool {
	b := []byte(text)
	for {
		var r wire.Response
		n, err := r.Parse(b)
		if n == 0 || err != nil {
			return false
		}
		b = b[n:]
		if r.Status < 200 && r.Status != 101 {
			continue
		}
		switch length, framing := r.BodyLength(method); framing {
		case wire.Length:
			return int64(len(b)) == length && !r.Close
		case wire.Chunked:
			var chunks wire.Chunks
			for len(b) > 0 && !chunks.Done() {
				_, n, err := chunks.Next(b)
				if err != nil {
					return false
				}
				b = b[n:]
			}
			return chunks.Done() && len(b) == 0 && !r.Close
		case wire.None:
			return len(b) == 0 && !r.Close && r.Status != 101
		}
		return false
	}
}

// script sets the responses and clears the records of the previous script.
func (s *scripted) script(answers []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers, s.requests, s.bad = answers, nil, nil
}

// records returns the requests and the rejected input since the last call to script.
func (s *scripted) records() (requests, bad []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests, s.bad
}

// asRequest returns all properties of a request that must be equal.
func asRequest(m *harness.Message) string {
	var fields, announced []string
	pragma := strings.HasPrefix(m.Get("pragma")+"|", "no-cache|")
	for _, f := range m.Fields {
		name, value, _ := strings.Cut(f, ": ")
		switch {
		case name == "cache-control" && value == "no-cache" && pragma:
			continue
		case name == "trailer":
			for v := range strings.SplitSeq(value, ",") {
				if v = strings.ToLower(strings.Trim(v, " \t")); v != "" {
					announced = append(announced, v)
				}
			}
			continue
		}
		fields = append(fields, f)
	}
	slices.Sort(announced)
	return fmt.Sprintf("%s\n%s\nbody %q\ntrailers %s, announced %q\n", m.Start, grouped(fields), m.Body, grouped(m.Trailers), slices.Compact(announced))
}

// asResponse returns all properties of a response that must be equal.
func asResponse(m *harness.Message, end error) string {
	var fields []string
	status := m.Status()
	hasBody := m.Body != "" || m.Get("content-length") == "0" || m.Get("transfer-encoding") != ""
	for _, f := range m.Fields {
		name, _, _ := strings.Cut(f, ": ")
		switch {
		case name == "date":
			f = "date: some"
		case name == "transfer-encoding", name == "content-length" && hasBody,
			status == http.StatusNotModified && (name == "content-length" || name == "content-type"):
			continue
		}
		fields = append(fields, f)
	}
	whole := "whole"
	if end != nil {
		whole = "cut"
	}
	return fmt.Sprintf("%d\n%s\n%s body %q\ntrailers %s\n", status, grouped(fields), whole, m.Body, grouped(m.Trailers))
}

// grouped sorts fields by name and keeps the order of fields with the same name.
func grouped(fields []string) string {
	fields = slices.Clone(fields)
	slices.SortStableFunc(fields, func(a, b string) int {
		a, _, _ = strings.Cut(a, ":")
		b, _, _ = strings.Cut(b, ":")
		return strings.Compare(a, b)
	})
	return fmt.Sprintf("%q", fields)
}

// A comparison contains the engine and the reference with their applications.
type comparison struct {
	own, reference       *proxytest.Proxy
	ownApp, referenceApp *scripted
}

func newComparison(t testing.TB, secure bool) *comparison {
	c := &comparison{ownApp: newScripted(t), referenceApp: newScripted(t)}
	// Both proxies add the same Host to requests without a Host.
	same := func(reference bool) func(*proxy.Proxy, *proxytest.Options) {
		return func(_ *proxy.Proxy, s *proxytest.Options) {
			s.MaxHeaderBytes, s.Reference, s.TLS = 32<<10, reference, secure
		}
	}
	c.own = proxytest.Start(t, c.ownApp.app, same(false))
	c.reference = proxytest.Start(t, c.referenceApp.app, same(true))
	return c
}

// A script is the input of one comparison.
type script struct {
	client  []byte
	methods []string // methods of the requests that could be parsed
	bodies  bool     // a request has a body
	refused []byte   // a rejected request after the other requests; nil if there is none
	badBody bool     // the header section of refused is valid
	answers []string
	split   int // offset at which the bytes of the client are split
}

// last is the final request, which closes the connection.
const last = "GET /last HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n"

// newScript reads the bytes that a client sends and the responses that an app sends. It returns
// false if they cannot be compared.
func newScript(client, answers []byte, split int) (*script, bool) {
	s := &script{split: split}
	if len(client) > 12<<10 || len(answers) > 8<<10 {
		return nil, false
	}
	end := more
	at := 0
	for end == more {
		rest := client[at:]
		if len(rest) == 0 {
			break
		}
		if is, maybe := wire.HasPreface(rest); is || maybe {
			break // covered by another test
		}
		n, method, then := oneRequest(rest)
		if n == 0 {
			break
		}
		if then == refused || then == badBody {
			s.refused, s.badBody = rest, then == badBody
			break
		}
		s.methods = append(s.methods, method)
		s.bodies = s.bodies || hasBody(rest)
		at, end = at+n, then
	}
	switch s.client = client[:at]; end {
	case closes:
		s.client = client // the server must not serve the bytes after the request
	case more:
		s.client = append(s.client[:at:at], last...)
		s.methods = append(s.methods, "GET")
	}
	s.answers = strings.Split(string(answers), "\x00\x00")
	for _, a := range s.answers {
		if strings.HasPrefix(a, "HTTP/1.1 101") && bytes.Contains(bytes.ToLower(s.client), []byte("upgrade")) {
			return nil, false // test/conformance contains tests of tunnels
		}
		if bytes.Contains(s.client, []byte("HTTP/1.0")) && !strings.Contains(strings.ToLower(a), "content-length") {
			return nil, false // net/http detects the length of a short body and keeps the connection open
		}
	}
	return s, true
}

// ending classifies the bytes after a request.
type ending uint8

const (
	more    ending = iota // another request may follow
	closes                // no request that follows is served
	refused               // the request itself is rejected
	badBody               // the body is invalid but the header section is valid, so the app may respond before the body ends
	alone                 // no bytes may follow, because unread bytes would cause a reset, which truncates a response that ends with the connection
)

// oneRequest returns the length of the complete request at the beginning of b, or 0 if there is
// none. then classifies the bytes after the request.
func oneRequest(b []byte) (n int, method string, then ending) {
	var q wire.Request
	n, err := q.Parse(b)
	var no *wire.Error
	switch {
	case errors.As(err, &no) && no.Word == wire.WordLeadingLine: // this engine skips an empty line
		return 0, "", more
	case err != nil:
		return len(b), "GET", refused
	case n == 0, unusual(&q), wire.BadEscape(q.Target), q.Minor == 0 && q.Chunked: // net/http rejects a bad escape, and does not parse chunks in HTTP/1.0
		return 0, "", more
	}
	method = string(q.Method)
	if q.Close {
		then = closes
	}
	if q.Minor == 0 {
		if q.Close {
			then = alone
		}
		lines := 0
		for _, f := range q.Fields {
			if transport.EqualFold(f.Name, "connection") {
				lines++
			}
			if lines > 1 || lines == 1 && q.Close && bytes.Contains(bytes.ToLower(f.Value), []byte("keep-alive")) {
				return 0, "", more // net/http reads only one Connection line, and keeps the connection open if the line contains close and keep-alive
			}
		}
	}
	switch length, framing := q.BodyLength(); framing {
	case wire.Length:
		if length > int64(len(b)-n) {
			return 0, "", more
		}
		n += int(length)
	case wire.Chunked:
		chunks := wire.Chunks{MaxTrailer: wire.MaxRequestTrailer}
		for !chunks.Done() {
			_, k, err := chunks.Next(b[n:])
			if n += k; err != nil {
				return n, method, badBody
			}
			if k == 0 && !chunks.Done() {
				return 0, "", more
			}
		}
	}
	return n, method, then
}

// plainHost matches hosts with or without a port, and plainTarget matches absolute targets. All parsers accept them.
var (
	plainHost   = regexp.MustCompile(`^(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:]*::[0-9A-Fa-f]*\])(?::[0-9]*)?$`)
	plainTarget = regexp.MustCompile(`^(?i:https?://)([^/?]*)`)
)

// unusual reports whether net/http may reject a request that this engine serves: because of its host,
// its target or its Connection field, or because HTTP/1.0 has no Expect field.
func unusual(q *wire.Request) bool {
	switch {
	case string(q.Method) == "CONNECT":
		if !plainHost.Match(q.Target) || !regexp.MustCompile(`:[0-9]+$`).Match(q.Target) {
			return true
		}
	case q.Target[0] != '/' && string(q.Target) != "*":
		if m := plainTarget.FindSubmatch(q.Target); m == nil || !plainHost.Match(m[1]) {
			return true
		}
	}
	for _, f := range q.Fields {
		switch strings.ToLower(string(f.Name)) {
		case "host":
			if !plainHost.Match(f.Value) {
				return true
			}
		case "connection":
			for option := range bytes.SplitSeq(f.Value, []byte{','}) {
				if option = wire.Trim(option); len(option) > 0 && !wire.ValidToken(option) {
					return true
				}
			}
		case "expect":
			if q.Minor == 0 {
				return true
			}
		}
	}
	return false
}

// hasBody reports whether the request at the beginning of b has a body.
func hasBody(b []byte) bool {
	var q wire.Request
	_, _ = q.Parse(b)
	return q.Chunked || q.ContentLength > 0
}

// send sends the bytes of a client to server and returns the responses.
func (s *script) send(t testing.TB, server *proxytest.Proxy, client []byte) (responses []string) {
	c := server.Connect(t)
	defer c.Close()
	go func() { // a client that still sends while its request is rejected must receive the response
		split := min(s.split, len(client))
		c.Write(client[:split])
		c.Write(client[split:])
	}()
	in := bufio.NewReader(c)
	for i := 0; ; i++ {
		if _, err := in.Peek(1); err != nil {
			if harness.IsTimeout(err) {
				t.Errorf("%.2000q, answered %.2000q: got no response after %q, want a response or the end of the connection", client, s.answers, responses)
			}
			return responses
		}
		method := "GET"
		if i < len(s.methods) {
			method = s.methods[i]
		}
		infos, m, err := harness.ReadResponse(in, method)
		for _, m := range infos {
			if m.Status() != 100 { // net/http sends 100 even if the body has arrived
				responses = append(responses, asResponse(m, nil))
			}
		}
		if m == nil || errors.Is(err, harness.ErrNotHTTP) {
			return append(responses, fmt.Sprintf("no response: %v", err))
		}
		responses = append(responses, asResponse(m, err))
	}
}

// compare runs a script with the engine and with the reference.
func (c *comparison) compare(t testing.TB, s *script) {
	t.Helper()
	if s.refused != nil {
		c.refuses(t, s)
	}
	play := func(server *proxytest.Proxy, a *scripted) (responses, requests, bad []string) {
		a.script(s.answers)
		responses = s.send(t, server, s.client)
		requests, bad = a.records()
		return responses, requests, bad
	}
	ownResponses, ownRequests, ownBad := play(c.own, c.ownApp)
	refResponses, refRequests, refBad := play(c.reference, c.referenceApp)
	for i := range ownRequests { // the ports of the apps are different
		ownRequests[i] = strings.ReplaceAll(ownRequests[i], fmt.Sprintf("host: 127.0.0.1:%d", c.ownApp.app.Port), "host: app")
	}
	for i := range refRequests {
		refRequests[i] = strings.ReplaceAll(refRequests[i], fmt.Sprintf("host: 127.0.0.1:%d", c.referenceApp.app.Port), "host: app")
	}
	if i, ended := endedEarly(ownResponses, refResponses, s.bodies); ended {
		ownResponses, refResponses = ownResponses[:i], refResponses[:i]
		n := min(len(ownRequests), len(refRequests))
		ownRequests, refRequests = ownRequests[:n], refRequests[:n]
	}
	if i, got, want := firstDifference(ownRequests, refRequests); i >= 0 {
		t.Errorf("%.3000q, answered %.3000q: request %d at the app: got\n%.2000s\nwant\n%.2000s", s.client, s.answers, i, got, want)
	}
	if i, got, want := firstDifference(ownResponses, refResponses); i >= 0 {
		t.Errorf("%.3000q, answered %.3000q: answer %d: got\n%.2000s\nwant\n%.2000s", s.client, s.answers, i, got, want)
	}
	if bad := append(ownBad, refBad...); len(bad) > 0 {
		t.Errorf("%.2000q: the app got %q, want strict HTTP/1.1", s.client, bad)
	}
}

// refuses runs a script with a request that the engine rejects. The engine must send the response, close the
// connection, and forward no byte of the request to an app.
func (c *comparison) refuses(t testing.TB, s *script) {
	t.Helper()
	client, n := s.client, len(s.methods)
	if rest, found := bytes.CutSuffix(client, []byte(last)); found {
		client, n = rest, n-1
	}
	c.ownApp.script(s.answers)
	responses := s.send(t, c.own, append(bytes.Clone(client), s.refused...))
	requests, _ := c.ownApp.records()
	if len(requests) > n {
		t.Errorf("%.3000q: the app got %q, want nothing after %d requests", s.refused, requests[n:], n)
	}
	if s.badBody {
		return
	}
	responses = slices.DeleteFunc(responses, func(response string) bool { return strings.HasPrefix(response, "1") }) // informational
	if len(responses) == 0 || !strings.Contains(responses[len(responses)-1], "proxy-status: queue-proxy") && len(responses) > n {
		t.Errorf("%.3000q: got %.2000q, want a response from the sidecar", s.refused, responses)
	}
}

// firstDifference returns the first index at which two lists differ, or -1.
func firstDifference(a, b []string) (i int, got, want string) {
	for i := range max(len(a), len(b)) {
		got, want := "none", "none"
		if i < len(a) {
			got = a[i]
		}
		if i < len(b) {
			want = b[i]
		}
		if got != want {
			return i, got, want
		}
	}
	return -1, "", ""
}

// endedEarly returns the index of the response after which only one engine may close the connection,
// if any.
func endedEarly(a, b []string, bodies bool) (i int, ended bool) {
	bare := strings.NewReplacer(`"connection: close" `, "", `"connection: close"`, "", `"connection: keep-alive" `, "")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i, bodies && bare.Replace(a[i]) == bare.Replace(b[i])
		}
	}
	return min(len(a), len(b)), bodies && len(b) < len(a)
}

// A seed is the input of a script.
type seed struct {
	name            string
	client, answers string
}

const plainAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// vectors reads the seeds of the black-box test suite.
func vectors(t testing.TB) (seeds []seed) {
	t.Helper()
	for _, file := range []string{"smuggling.txt", "targets.txt", "fields.txt", "classify.txt"} {
		text, err := os.ReadFile("../../../test/conformance/testdata/" + file)
		harness.NoError(t, err)
		before := len(seeds)
		for block := range strings.SplitSeq("\n"+string(text), "\n== ") {
			title, lines, found := strings.Cut(block, "\n")
			if !found || strings.HasPrefix(block, "\n#") {
				continue
			}
			s := seed{name: file + ": " + title}
			head, fields, body := "GET / HTTP/1.1\r\nHost: a.test\r\n", "", ""
			for line := range strings.SplitSeq(lines, "\n") {
				name, value, isField := strings.Cut(line, ":")
				switch {
				case strings.HasPrefix(line, ">"):
					s.client += harness.WireLine(line[1:])
				case strings.HasPrefix(line, "|"):
					s.answers += harness.WireLine(line[1:])
				case file != "classify.txt" || line == "" || line[0] == '#' || strings.HasPrefix(line, "-> ") || strings.HasPrefix(line, "only "):
				case strings.HasPrefix(line, "body "):
					body = harness.Unescape(line[len("body "):])
					fields += fmt.Sprintf("Content-Length: %d\r\n", len(body))
				case isField && !strings.Contains(name, " "):
					fields += name + ":" + harness.Unescape(value) + "\r\n"
				default: // METHOD TARGET
					head = line + " HTTP/1.1\r\nHost: a.test\r\n"
				}
			}
			if file == "classify.txt" {
				s.client = head + fields + "\r\n" + body
			}
			if s.answers == "" {
				s.answers = plainAnswer
			}
			seeds = append(seeds, s)
		}
		if len(seeds) < before+20 {
			t.Fatalf("%s: got %d seeds, want more", file, len(seeds)-before)
		}
	}
	return seeds
}

// seeds returns all named scripts.
func seeds(t testing.TB) []seed {
	all := vectors(t)
	for name, text := range requestSeeds {
		all = append(all, seed{name, text, plainAnswer})
	}
	const get, head = "GET /r HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD /r HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, text := range responseSeeds {
		all = append(all, seed{"GET, " + name, get + get, text}, seed{"HEAD, " + name, head + get, text})
	}
	slices.SortFunc(all, func(a, b seed) int { return strings.Compare(a.name, b.name) })
	return all
}

// requestSeeds contains requests by name.
var requestSeeds = map[string]string{
	"RFC 9112 2.1, a request":           "GET /hello.txt HTTP/1.1\r\nUser-Agent: curl/7.64.1\r\nHost: www.example.com\r\nAccept-Language: en, mi\r\n\r\n",
	"RFC 9112 3.2.1, origin form":       "GET /where?q=now HTTP/1.1\r\nHost: www.example.org\r\n\r\n",
	"RFC 9112 3.2.2, absolute form":     "GET http://www.example.org/pub/WWW/TheProject.html HTTP/1.1\r\nHost: other\r\n\r\n",
	"RFC 9112 3.2.3, authority form":    "CONNECT www.example.com:80 HTTP/1.1\r\nHost: www.example.com\r\n\r\n",
	"RFC 9112 3.2.4, asterisk form":     "OPTIONS * HTTP/1.1\r\nHost: www.example.org:8001\r\n\r\n",
	"RFC 9112 3.2.4, absolute options":  "OPTIONS http://www.example.org:8001 HTTP/1.1\r\nHost: a\r\n\r\n",
	"RFC 9112 3.3, no authority":        "GET /pub/WWW/TheProject.html HTTP/1.1\r\nHost: www.example.org:8080\r\n\r\n",
	"RFC 9112 6.3, a chunked body":      "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n7\r\npedia i\r\nB\r\nn \r\nchunks.\r\n0\r\n\r\n",
	"RFC 9112 7.1.1, extensions":        "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b;c=\"d;\\\"e\"\r\nWiki\r\n0;last\r\n\r\n",
	"RFC 9112 7.1.2, trailers":          "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: Expires\r\n\r\n4\r\nWiki\r\n0\r\nExpires: never\r\nX-More: 1\r\nX-More: 2\r\n\r\n",
	"trailers of maximum length":        "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("x", wire.MaxRequestTrailer-5) + "\r\n\r\n",
	"trailers above the maximum length": "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("x", wire.MaxRequestTrailer-4) + "\r\n\r\n",
	"RFC 9112 9.3.2, pipelining":        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcPUT /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nHEAD /4 HTTP/1.1\r\nHost: a\r\n\r\nDELETE /5 HTTP/1.1\r\nHost: a\r\n\r\n",
	"RFC 9112 9.6, close":               "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
	"curl with Expect":                  curlUpload + "hello",
	"Go sends chunks":                   goUpload,
	"Java offers HTTP/2":                javaOffer,
	"HTTP/1.0":                          "GET /old HTTP/1.0\r\n\r\n",
	"HTTP/1.0 kept alive":               "GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
	"HTTP/1.2":                          "GET /new HTTP/1.2\r\nHost: a\r\n\r\n",
	"HTTP/3.0":                          "GET /new HTTP/3.0\r\nHost: a\r\n\r\n",
	"first half of the HTTP/2 preface":  "PRI * HTTP/2.0\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
	"many X-Forwarded fields":           "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: [::1]:80, x\r\nX-Forwarded-Host: h\r\nX-Forwarded-Proto: https\r\nConnection: X-Hop, TE\r\nX-Hop: 1\r\nTE: trailers, deflate\r\nK-Original-Host: o\r\nProxy-Authorization: x\r\nCookie: a\r\nCookie: b\r\nForwarded: \r\n\r\n",
	"empty X-Forwarded-For":             "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For:\r\nX-Forwarded-For:\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
	"Pragma":                            "GET / HTTP/1.1\r\nHost: a\r\nPragma: no-cache\r\n\r\n",
	"a GET with a body":                 "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
	"a POST with an empty body":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\n\r\n",
	"a probe with a body":               "POST / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\nContent-Length: 5\r\n\r\nhelloGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
	"a probe with chunks":               "POST / HTTP/1.1\r\nHost: a\r\nK-Network-Probe: queue\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
	"gRPC":                              "POST /s/m HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nTE: trailers\r\nContent-Length: 5\r\n\r\n\x00\x00\x00\x00\x00",
	"an upgrade with a body":            "POST /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
	"a rejected upgrade":                "GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
	"non-ASCII bytes":                   "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\nX: \xff\xfe\r\n\r\n",
	"an empty Host":                     "GET / HTTP/1.1\r\nHost:\r\n\r\n",
	"userinfo":                          "GET http://u:p@h/ HTTP/1.1\r\nHost: a\r\n\r\n",
	"an invalid escape, then bare LF":   "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\nGET /odd HTTP/1.1\nHost: a\n\n",
	"invalid trailer after Expect":      "POST /t HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0;e\r\nContent-Length: 3\r\n\r\nmore",
	"h2c offered twice":                 "GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nUpgrade: h2c\r\n\r\n",
	"h2c and another protocol":          "GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c, x\r\n\r\n",
	"a scheme without a host":           "GET https:// HTTP/1.1\r\nHost: a\r\n\r\n",
}

// responseSeeds contains the responses to two requests by name.
var responseSeeds = map[string]string{
	"chunks":                           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n0\r\n\r\n",
	"an empty chunked body":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"trailers":                         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n4\r\nWiki\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n",
	"trailers of an empty body":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-B: 2\r\n\r\n",
	"until close":                      "HTTP/1.1 200 OK\r\n\r\nuntil the end",
	"HTTP/1.0":                         "HTTP/1.0 200 OK\r\nServer: x\r\n\r\nold",
	"HTTP/1.0 kept alive":              "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nold",
	"204":                              "HTTP/1.1 204 No Content\r\n\r\n",
	"204 with a length":                "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
	"205":                              "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
	"304 with a length":                "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\nETag: x\r\n\r\n",
	"304":                              "HTTP/1.1 304 Not Modified\r\n\r\n",
	"a length without a body":          "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
	"interim":                          "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\nContent-Length: 3\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"interim without a final response": "HTTP/1.1 103 Early Hints\r\n\r\n",
	"101":                              "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
	"truncated body":                   "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
	"truncated chunks":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf",
	"truncated header":                 "HTTP/1.1 200 OK\r\nContent-",
	"nothing":                          "",
	"garbage":                          "220 mail.example.org ESMTP\r\n",
	"two lengths":                      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
	"the same length twice":            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2, 2\r\n\r\nok",
	"length and chunks":                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"gzip":                             "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
	"folded":                           "HTTP/1.1 200 OK\r\nX: a\r\n  b\r\nContent-Length: 2\r\n\r\nok",
	"bare LF":                          "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
	"space before colon":               "HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 2\r\n\r\nok",
	"no reason":                        "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
	"an unknown status":                "HTTP/1.1 999 \x80\r\nContent-Length: 2\r\n\r\nok",
	"hop-by-hop fields":                "HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Status: queue-proxy, a\r\nProxy-Status: b\r\nContent-Length: 2\r\n\r\nok",
	"fields with the same name":        "HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nX: 1\r\nSet-Cookie: b\r\nSet-Cookie:\r\nContent-Length: 2\r\n\r\nok",
	"a date":                           "HTTP/1.1 200 OK\r\nDate: yesterday\r\nContent-Type:\r\nContent-Length: 2\r\n\r\nok",
	"bytes after the length":           "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	"a trailer line with a length":     "HTTP/1.1 200 OK\r\nTrailer: X-A\r\nContent-Length: 2\r\n\r\nok",
	"unrequested upgrade":              "HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
	"a trailer announced twice":        "HTTP/1.1 200 OK\r\nTrailer: X-A\r\nTrailer: X-A\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-A: 1\r\n\r\n",
	"a field announced as trailer":     "HTTP/1.1 200 OK\r\nX-A: 1\r\nTrailer: X-A\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
	"different second response":        "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno\x00\x00HTTP/1.1 201 Yes\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n",
}

// transports maps the name of each transport to whether it uses TLS.
var transports = map[string]bool{"TCP": false, "TLS": true}

func TestEngineMatchesReference(t *testing.T) {
	for name, secure := range transports {
		t.Run(name, func(t *testing.T) { compareVectors(t, newComparison(t, secure)) })
	}
}

func compareVectors(t *testing.T, c *comparison) {
	valid := uint64(0)
	for _, v := range seeds(t) {
		t.Run(v.name, func(t *testing.T) {
			s, worth := newScript([]byte(v.client), []byte(v.answers), 1<<30)
			if !worth {
				t.Skip("nothing to compare")
			}
			valid += uint64(len(s.methods))
			c.compare(t, s)
		})
	}
	served, given := c.own.Counts()
	t.Logf("%d requests are valid; %d were served, %d connections handed to the HTTP/2 engine", valid, served, given)
	if 100*served < 95*valid {
		t.Errorf("got %d requests served in http1, want at least 95 %% of %d", served, valid)
	}
}

// randomTime is the maximum duration of the random part of the comparison.
const randomTime = 2 * time.Second

func TestEngineMatchesReferenceForRandomRequests(t *testing.T) {
	for name, secure := range transports {
		t.Run(name, func(t *testing.T) { compareRandom(t, newComparison(t, secure)) })
	}
}

func compareRandom(t *testing.T, c *comparison) {
	from := uint64(time.Now().UnixNano())
	t.Logf("seed %d", from)
	g := &generator{rand.New(rand.NewPCG(from, 0))}
	n := 0
	for end := time.Now().Add(randomTime); time.Now().Before(end) && !t.Failed(); n++ {
		client, answers := g.talk()
		if s, worth := newScript([]byte(client), []byte(answers), g.IntN(len(client)+1)); worth {
			c.compare(t, s)
		}
	}
	served, given := c.own.Counts()
	t.Logf("%d scripts; %d requests were served, %d connections handed to the HTTP/2 engine", n, served, given)
}

// A generator creates requests and responses that are mostly valid.
type generator struct{ *rand.Rand }

func (g *generator) of(texts ...string) string { return texts[g.IntN(len(texts))] }

// seldom returns text with probability 1/n, and "" otherwise.
func (g *generator) seldom(n int, text string) string {
	if g.IntN(n) == 0 {
		return text
	}
	return ""
}

// noise contains bytes that parsers may handle incorrectly.
const noise = "\x00\r\n\t :,;\"\x7f\xffaZ0"

// talk creates the bytes that a client sends and the responses that an app sends.
func (g *generator) talk() (client, answers string) {
	for range 1 + g.IntN(4) {
		client += g.request()
	}
	answers = g.response()
	for range g.IntN(2) {
		answers += "\x00\x00" + g.response()
	}
	if g.IntN(20) == 0 { // replace one byte of the input
		b := []byte(client)
		b[g.IntN(len(b))] = noise[g.IntN(len(noise))]
		client = string(b)
	}
	if g.IntN(20) == 0 && len(answers) > 0 {
		b := []byte(answers)
		b[g.IntN(len(b))] = noise[g.IntN(len(noise))]
		answers = string(b)
	}
	return client, answers
}

func (g *generator) request() string {
	end := "\r\n"
	if g.IntN(60) == 0 {
		end = "\n"
	}
	b := g.of("GET", "GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "X-M!") + " " +
		g.of("/", "/a", "/a?b=c", "/%2f;x", "/%zz", "//", "*", "http://h/x", "http://h?y", "/\xc3\xa9", "/"+strings.Repeat("x", g.IntN(300))) + " HTTP/1." +
		g.of("1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "0") + end + "Host: " + g.of("a", "a", "a", "A.b:80", "[::1]:8", "") + end
	for range g.IntN(5) {
		b += g.of(
			"X-A: 1", "x-a:2 ", "X-Forwarded-For: 1.2.3.4, ::1", "X-Forwarded-For: ", "X-Forwarded-Proto: https", "X-Forwarded-Host: h\"h", "Forwarded: for=x",
			"Connection: keep-alive", "Connection: X-A, x-b", "Connection: close", "X-B: hop", "TE: trailers", "TE: gzip", "Te: trailers;q=1", "Trailer: X-T", "trailer: X-U, X-V",
			"Upgrade: h2c", "Connection: Upgrade", "Upgrade: websocket", "HTTP2-Settings: AAA", "Expect: 100-continue", "K-Network-Probe: queue", "K-Network-Probe: probe", "K-Network-Hash: h",
			"User-Agent: kube-probe/1.3", "User-Agent: x", "K-Original-Host: o", "K-Proxy-Request: activator", "Content-Type: application/grpc", "Keep-Alive: timeout=5", "Pragma: no-cache", "Cookie: a=b", "Cookie: c=d", "Accept:",
		) + end
	}
	body := g.of("", "x", "hello world", strings.Repeat("0123456789", g.IntN(200)))
	switch g.IntN(8) {
	case 0, 1:
		b += fmt.Sprintf("Content-Length: %d%s%s", len(body), end, g.seldom(30, fmt.Sprintf("Content-Length: %d%s", len(body)+g.IntN(2), end)))
		return b + g.seldom(40, "Transfer-Encoding: chunked"+end) + end + body
	case 2, 3:
		b += g.of("Transfer-Encoding: chunked", "transfer-encoding:\tChunked", "Transfer-Encoding: chunked"+g.seldom(10, ", chunked")) + end + end
		for len(body) > 0 {
			n := 1 + g.IntN(len(body))
			b += fmt.Sprintf("%x%s\r\n%s%s\r\n", n, g.seldom(4, ";x=\"y\""), body[:n], g.seldom(60, "z"))
			body = body[n:]
		}
		return b + "0" + g.seldom(5, ";e") + "\r\n" + g.seldom(3, "X-T: t\r\n") + g.seldom(5, "X-Other: \r\n") + g.seldom(60, "Content-Length: 3\r\n") + "\r\n"
	}
	return b + end
}

func (g *generator) response() string {
	var b string
	for range g.IntN(8) / 6 {
		b += "HTTP/1.1 " + g.of("100 Continue", "102 Processing", "103 Early Hints\r\nLink: x") + "\r\n\r\n"
	}
	b += "HTTP/1." + g.of("1", "1", "1", "1", "0") + " " + g.of("200 OK", "200 OK", "201", "204 No", "304 Not", "404 \xff", "500 Internal", "799 ?", "101 Sw") + "\r\n"
	for range g.IntN(5) {
		b += g.of("X-A: 1", "x-a: 2", "Set-Cookie: a", "Set-Cookie: b", "Connection: keep-alive", "Connection: X-A", "Connection: close", "Keep-Alive: timeout=9", "Trailer: X-T", "Date: now", "Content-Type: text/plain",
			"Proxy-Status: queue-proxy; x, y", "Upgrade: x", "X-Fold: a\r\n b", "X-Blank : c", "Server: s", "Te: x", "Vary: *") + "\r\n"
	}
	body := g.of("", "x", "hello world", strings.Repeat("0123456789", g.IntN(600)))
	switch g.IntN(8) {
	case 0:
		return b + "\r\n" + body
	case 1, 2, 3:
		b += "Transfer-Encoding: chunked\r\n\r\n"
		for len(body) > 0 {
			n := 1 + g.IntN(len(body))
			b += fmt.Sprintf("%x%s\r\n%s\r\n", n, g.seldom(4, ";x"), body[:n])
			body = body[n:]
		}
		return b + "0\r\n" + g.seldom(3, "X-T: t\r\n") + g.seldom(5, "X-Other: o\r\n") + "\r\n" + g.seldom(30, "more")
	}
	return b + fmt.Sprintf("Content-Length: %d\r\n\r\n%s%s", len(body)+g.IntN(20)/19, body, g.seldom(30, "more"))
}

func FuzzEngineMatchesReference(f *testing.F) { fuzzComparison(f, false) }

func FuzzEngineMatchesReferenceOverTLS(f *testing.F) { fuzzComparison(f, true) }

func fuzzComparison(f *testing.F, secure bool) {
	for _, v := range seeds(f) {
		f.Add([]byte(v.client), []byte(v.answers), uint16(1<<15))
	}
	c := newComparison(f, secure)
	f.Fuzz(func(t *testing.T, client, answers []byte, split uint16) {
		if s, worth := newScript(client, answers, int(split)); worth {
			c.compare(t, s)
		}
	})
}
