package conformance

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// The tests of request smuggling run real servers behind the sidecar. The servers record the
// requests that they receive.

var backendNames = flag.String("backends", "net/http", "comma-separated list of the servers behind the sidecar in the smuggling tests: net/http, nginx, node, lenient-node")

// newBackend starts the named server on the port of the user container. The server supports
// HTTP/1.1 and responds to each request with "X-From: app" and with the request target in
// X-Target. The returned function returns the requests that the server received, as "METHOD
// target" in order, and the invalid requests.
func newBackend(t *testing.T, p *proxy, name string) func() (requests, bad []string) {
	t.Helper()
	switch name {
	case "net/http":
		var mu sync.Mutex
		var seen []string
		p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen = append(seen, r.Method+" "+r.RequestURI)
			mu.Unlock()
			w.Header().Set("X-From", "app")
			w.Header().Set("X-Target", r.RequestURI)
		}), "h1")
		return func() ([]string, []string) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(seen), nil
		}
	case "nginx":
		return served(t, p, nginxConf, func(file string) *exec.Cmd { return exec.Command("nginx", "-c", file) })
	case "node", "lenient-node":
		return served(t, p, nodeServer, func(file string) *exec.Cmd {
			if name == "node" {
				return exec.Command("node", file)
			}
			return exec.Command("node", "--insecure-http-parser", file)
		})
	}
	t.Fatalf("unknown backend %q", name)
	return nil
}

const nginxConf = `daemon off; master_process off; worker_processes 1; pid DIR/pid; error_log DIR/error.log;
events { worker_connections 1000; }
http {
	log_format record escape=json '{"request":"$request_method $request_uri","bad":"$bad"}';
	map $status:$request_uri $bad { default ""; "~^400:" "$request"; "~^40[0-9]:$" "no request"; }
	access_log DIR/record record;
	client_body_temp_path DIR/body; proxy_temp_path DIR/p; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
	keepalive_requests 100000;
	server {
		listen 127.0.0.1:PORT;
		location / { add_header X-From app always; add_header X-Target $request_uri always; return 200 ok; }
	}
}
`

const nodeServer = `
const http = require('http'), fs = require('fs'), record = fs.openSync('DIR/record', 'a');
const server = http.createServer((request, response) => {
	fs.writeSync(record, JSON.stringify({request: request.method + ' ' + request.url}) + '\n');
	request.resume();
	request.on('end', () => {
		response.setHeader('X-From', 'app');
		response.setHeader('X-Target', encodeURI(request.url));
		response.end('ok');
	});
});
server.on('clientError', (error, connection) => {
	fs.writeSync(record, JSON.stringify({bad: error.code}) + '\n');
	connection.destroy();
});
server.keepAliveTimeout = 60000;
server.listen(PORT, '127.0.0.1');
`

// served runs a server with a configuration file until the end of the test.
func served(t *testing.T, p *proxy, text string, command func(file string) *exec.Cmd) func() (requests, bad []string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "server")
	text = strings.NewReplacer("DIR", dir, "PORT", strconv.Itoa(p.port.user)).Replace(text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(file)
	if cmd.Err != nil && !errors.Is(cmd.Err, exec.ErrDot) { // Debian installs nginx in /usr/sbin
		cmd.Path, cmd.Err = filepath.Join("/usr/sbin", cmd.Args[0]), nil
	}
	cmd.Dir, cmd.SysProcAttr = dir, dieWithParent
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("output of %s:\n%s", cmd.Args[0], out.Tail())
		}
	})
	poll(t, cmd.Args[0]+" listens", func() error {
		c, err := net.Dial("tcp", local(p.port.user))
		if err == nil {
			c.Close()
		}
		return err
	})
	return func() (requests, bad []string) {
		text, err := os.ReadFile(filepath.Join(dir, "record"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var one struct{ Request, Bad string }
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("record of %s: invalid line %q: %v", cmd.Args[0], line, err)
			}
			switch {
			case one.Bad == "ECONNRESET", one.Bad == "HPE_INVALID_EOF_STATE": // the sidecar closed the connection early, so this is not an invalid request
			case one.Bad != "":
				bad = append(bad, one.Bad)
			default:
				requests = append(requests, one.Request)
			}
		}
		return requests, bad
	}
}

// A smuggle is the input of a connection: a request for /f/N that contains another request, for
// /m/N. According to the RFCs, the hidden request is part of the first request, even if the
// first request is rejected.
type smuggle struct{ name, text string }

const hidden = "GET /m/N HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"

// lengthOf returns the length of text after the number of the case is inserted.
func lengthOf(text string) int { return len(strings.ReplaceAll(text, "/N", "/0000")) }

// smuggles returns all cases. N is a placeholder for the four-digit number of the case.
func smuggles() []smuggle {
	return slices.Concat(twoFramings(), oneLength(), ambiguousChunks(), ambiguousLines())
}

// smuggledPost returns a POST request with the given fields and body.
func smuggledPost(fields, body string) string {
	return "POST /f/N HTTP/1.1\r\nHost: a.test\r\n" + fields + "\r\n" + body
}

// twoFramings returns requests with two framings. Some parsers use the length, and others use the
// chunks.
func twoFramings() (all []smuggle) {
	add := func(name, text string) { all = append(all, smuggle{name, text}) }
	lengthFirst := "0\r\n\r\n" + hidden
	chunkedFirst := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", lengthOf(hidden), hidden)
	both := func(name, coding string) {
		length := fmt.Sprintf("Content-Length: %d\r\n", lengthOf(lengthFirst))
		short := fmt.Sprintf("Content-Length: %d\r\n", strings.Index(chunkedFirst, "GET"))
		add("CL.TE, "+name, smuggledPost(length+coding, lengthFirst))
		add("TE.CL, "+name, smuggledPost(short+coding, chunkedFirst))
		add("CL.TE, coding first, "+name, smuggledPost(coding+length, lengthFirst))
		add("TE.CL, coding first, "+name, smuggledPost(coding+short, chunkedFirst))
	}
	for _, coding := range []string{
		"Transfer-Encoding: chunked\r\n", "transfer-encoding: CHUNKED\r\n", "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunkedx\r\n", "Transfer-Encoding: chunk\r\n",
		"Transfer-Encoding : chunked\r\n", "Transfer-Encoding\t: chunked\r\n", "Transfer-Encoding:\tchunked\r\n", "Transfer-Encoding:chunked\r\n", "Transfer-Encoding: chunked \t\r\n",
		"Transfer-Encoding: \"chunked\"\r\n", "Transfer-Encoding: 'chunked'\r\n", "Transfer-Encoding: chunked;q=1\r\n", "Transfer-Encoding: chunked;\r\n", "Transfer-Encoding: chunked,\r\n", "Transfer-Encoding: ,chunked\r\n",
		"Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: identity, chunked\r\n", "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked, chunked\r\n", "Transfer-Encoding: identity\r\n", "Transfer-Encoding: cow\r\n", "Transfer-Encoding:\r\n",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n", "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
		"Transfer-Encoding:\r\n chunked\r\n", "Transfer-Encoding\r\n: chunked\r\n", "Transfer-Encoding: chunked\r\n \r\n", "X: y\r\n Transfer-Encoding: chunked\r\n", "Transfer-Encoding: c\r\n hunked\r\n", " Transfer-Encoding: chunked\r\n",
		"X: y\nTransfer-Encoding: chunked\r\n", "X: y\rTransfer-Encoding: chunked\r\n", "X: y\r\n\rTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\n", "Transfer-Encoding: chunked\r\r\n", "\nTransfer-Encoding: chunked\r\n",
		"Transfer_Encoding: chunked\r\n", "Transfer Encoding: chunked\r\n", "Transfer-Encoding chunked\r\n", "Transfer-\r\nEncoding: chunked\r\n", "Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding\r\n", "Connection: Content-Length\r\nTransfer-Encoding: chunked\r\n",
	} {
		both(fmt.Sprintf("%q", coding), coding)
	}
	for _, b := range []string{"\x00", "\x01", "\x08", "\t", "\n", "\x0b", "\f", "\r", "\x1f", " ", "\x7f", "\x80", "\xa0", "\xff"} { // insert a byte at invalid positions
		for _, coding := range []string{b + "Transfer-Encoding: chunked\r\n", "Transfer-Encoding" + b + ": chunked\r\n", "Transfer-Encoding:" + b + "chunked\r\n", "Transfer-Encoding: chunked" + b + "\r\n", "X: y\r\n" + b + "Transfer-Encoding: chunked\r\n"} {
			both(fmt.Sprintf("%q", coding), coding)
		}
		n := strconv.Itoa(lengthOf(hidden))
		for _, length := range []string{b + "Content-Length: " + n, "Content-Length" + b + ": " + n, "Content-Length:" + b + n, "Content-Length: " + n + b, "Content-Length: " + n[:1] + b + n[1:]} {
			add(fmt.Sprintf("CL.0, %q", length), smuggledPost(length+"\r\n", hidden))
		}
	}
	return all
}

// oneLength returns requests with a length that a parser may accept or ignore.
func oneLength() (all []smuggle) {
	add := func(name, text string) { all = append(all, smuggle{name, text}) }
	n := lengthOf(hidden)
	for _, length := range []string{
		"%d", "0%d", "000000000000000000000%d", "+%d", "-%d", "0x%x", "%d.0", "%de0", "%d,%[1]d", "%d, %[1]d", "0, %d", "%d, 0", "%d;", "\"%d\"", "%d\r\nContent-Length: 0", "0\r\nContent-Length: %d", "%d\r\nContent-Length: %[1]d",
		"\r\n %d", "0\r\n %d", "%d\r\n 0", "%d\r\nContent_Length: 0", "18446744073709551616%d", "%d\r\nConnection: Content-Length", "%d\r\nConnection: close, Content-Length", "%d\nX: y", "%d\r",
	} {
		field := "Content-Length: " + fmt.Sprintf(length, n) + "\r\n"
		for _, method := range []string{"POST", "GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "CONNECT"} {
			add(fmt.Sprintf("CL.0, %s, %q", method, field), strings.Replace(smuggledPost(field, hidden), "POST", method, 1))
		}
		for _, expect := range []string{"100-continue", "100-Continue", "y 100-continue", "100-continue, x", "\r\n 100-continue", "", "200-ok"} {
			add(fmt.Sprintf("Expect %q, %q", expect, field), smuggledPost("Expect: "+expect+"\r\n"+field, hidden))
		}
		add(fmt.Sprintf("HTTP/1.0, %q", field), strings.Replace(smuggledPost("Connection: keep-alive\r\n"+field, hidden), "HTTP/1.1", "HTTP/1.0", 1))
		add(fmt.Sprintf("an upgrade, %q", field), smuggledPost("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\n"+field, hidden))
		add(fmt.Sprintf("h2c, %q", field), smuggledPost("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"+field, hidden))
	}
	return all
}

// ambiguousChunks returns chunked requests whose end is at a different position for a lenient
// parser.
func ambiguousChunks() (all []smuggle) {
	add := func(name, text string) { all = append(all, smuggle{name, text}) }
	for _, end := range []string{
		"0\n\r\n", "0\r\n\n", "0\n\n", "0;\n\r\n", "0;a\n\r\n", "0;a=b\n\r\n", "0;a=\"\n\"\r\n\r\n", "0 \r\n\r\n", " 0\r\n\r\n", "0\t\r\n\r\n", "0\r\r\n\r\n", "\r\n0\r\n\r\n", "0x0\r\n\r\n", "-0\r\n\r\n", "+0\r\n\r\n", "0_0\r\n\r\n", "\r\n\r\n", ";\r\n\r\n",
		"0\r\nX\r\n\r\n", "0\r\n X: y\r\n\r\n", "0\r\nX: y\n\r\n", "0\r\nX : y\r\n\r\n", "0\r\nX: y\rZ: z\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\nHost: b.test\r\n\r\n", "0\r\nX: a\x00b\r\n\r\n", "0\r\n: y\r\n\r\n", "0\r\nX: y\r\n Z: z\r\n\r\n",
		"00000000000000000\r\n\r\n", "10000000000000000\r\n\r\n", "0\r\n\r", "0\r\n\rX", "0\r", "0;\r\n\r\n", "0; \r\n\r\n", "0;a=\r\n\r\n", "0;a b\r\n\r\n", "0;=b\r\n\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "5\r\nhello\r0\r\n\r\n", "5\r\nhelloXX0\r\n\r\n", "4\r\nhello\r\n0\r\n\r\n",
		"5\nhello\r\n0\r\n\r\n", "5;\nhello\r\n0\r\n\r\n", "5;a\nhello\r\n0\r\n\r\n", "5 ;a\r\nhello\r\n0\r\n\r\n", "5 \r\nhello\r\n0\r\n\r\n", "5;a\rhello\r\n0\r\n\r\n", "5;\rhello\r\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n", "5.\r\nhello\r\n0\r\n\r\n", "5,5\r\nhello\r\n0\r\n\r\n", "8000000000000005\r\nhello\r\n0\r\n\r\n",
		"2;\nxx\r\n4c\r\n0\r\n\r\n", "2;\rxx\r\n4c\r\n0\r\n\r\n", "2\nxx\r\n0\r\n\r\n", "1a;\n0\r\n\r\n",
	} {
		for _, trailer := range []string{"", "Trailer: X\r\n", "Expect: 100-continue\r\n", "TE: trailers\r\nConnection: TE\r\n"} {
			add(fmt.Sprintf("chunks, %q%q", end, trailer), smuggledPost("Transfer-Encoding: chunked\r\n"+trailer, end+hidden))
		}
		add(fmt.Sprintf("chunks in HTTP/1.0, %q", end), strings.Replace(smuggledPost("Transfer-Encoding: chunked\r\n", end+hidden), "HTTP/1.1", "HTTP/1.0", 1))
	}
	return all
}

// ambiguousLines returns requests with line ends that parsers interpret differently.
func ambiguousLines() (all []smuggle) {
	add := func(name, text string) { all = append(all, smuggle{name, text}) }
	for _, text := range []string{
		"GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r\r" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r\n\r" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r\n \r\n" + hidden,
		"GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r\n\t\r\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\x00\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX Y: a\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX\r\n\r\n" + hidden,
		"GET /f/N HTTP/1.1\r\nHost: a.test\r\n: a\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\r\n Host: a.test\r\nX: y\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n" + hidden,
		"GET /f/N HTTP/1.1\r\n\r\n" + hidden, "GET /f/N HTTP/1.1 GET /m/N HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /f/N\x0bHTTP/1.1\r\nHost: a.test\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\rHost: a.test\r\r" + hidden, "GET  /f/N HTTP/1.1\r\nHost: a.test\r\n\r\n" + hidden,
		"GET /f/N  HTTP/1.1\r\nHost: a.test\r\n\r\n" + hidden, "GET\t/f/N\tHTTP/1.1\r\nHost: a.test\r\n\r\n" + hidden, "GET /f/N HTTP/1.1 \r\nHost: a.test\r\n\r\n" + hidden, "GET /f/N HTTP/11\r\nHost: a.test\r\n\r\n" + hidden, "GET /f/N HTTP/1.1x\r\nHost: a.test\r\n\r\n" + hidden,
		"GET /f/N\r\n\r\n" + hidden, "GET /f/N\r\n" + hidden, "GET /f/N HTTP/0.9\r\nHost: a.test\r\n\r\n" + hidden, "GET /f/N HTTP/2.0\r\nHost: a.test\r\n\r\n" + hidden, "\x00GET /f/N HTTP/1.1\r\nHost: a.test\r\n\r\n" + hidden, "G(T /f/N HTTP/1.1\r\nHost: a.test\r\n\r\n" + hidden,
		"GET /f/N HTTP/1.1\nHost: a.test\n\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\n\r\n" + hidden, "GET /f/N HTTP/1.1\nHost: a.test\r\n\r\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\n\n" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\n\n" + hidden,
		"GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r\n " + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\r\n\t" + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test\r\nX: a\n " + hidden, "GET /f/N HTTP/1.1\r\nHost: a.test/m/N\r\nConnection: close\r\n\r\n", "GET /f/N HTTP/1.1\r\nHost: a.test\rGET /m/N HTTP/1.1\r\n\r\n",
		"GET http://b.test/f/N HTTP/1.1\r\nHost: a.test\r\nContent-Length: 47\r\n\r\n" + hidden, "GET http://a.test:80@b.test/f/N HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" + hidden, "GET http:///f/N HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" + hidden,
		"GET /f/N HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" + hidden, "GET /f/N HTTP/1.0\r\nHost: a.test\r\n\r\n" + hidden, "GET /f/N#/m/N HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" + hidden,
	} {
		add(fmt.Sprintf("lines, %.90q", strings.ReplaceAll(text, hidden, "*")), text)
	}
	return all
}

var caseOf = regexp.MustCompile(`/([fmv])/(\d{4})`)

// For any input, a server behind the sidecar does not receive the hidden request, and it receives at
// most as many requests as the client receives responses. No other client receives a wrong response.
func TestSmuggledRequestsDoNotReachServer(t *testing.T) {
	for name := range strings.SplitSeq(*backendNames, ",") {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			seen := newBackend(t, p, name)
			p.start("METRICS_NAMES=default")
			p.auditAtEnd()
			forms := smuggles()
			answers := make([]map[string]int, len(forms)) // for each case, number of responses by the kind of request target
			total := make([]int, len(forms))
			numbers := make(chan int)
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() {
					for i := range numbers {
						answers[i] = map[string]int{}
						text := strings.ReplaceAll(forms[i].text, "/N", fmt.Sprintf("/%04d", i))
						c, err := net.Dial("tcp", p.addr())
						if err != nil {
							t.Error(err)
							continue
						}
						v := try(c, text, 100*time.Millisecond)
						if v.left {
							total[i]++ // a request that the client aborts has no response
						}
						for _, m := range v.answers {
							total[i]++
							if m.get("X-From") == "app" {
								answers[i][kindOf(m.get("X-Target"))]++
							}
						}
						victim := fmt.Sprintf("/v/%04d", i)
						other, err := net.Dial("tcp", p.addr())
						if err != nil {
							t.Error(err)
							continue
						}
						w := newClient(t, other)
						w.SetDeadline(time.Now().Add(patience))
						w.Write([]byte(request("GET", victim, "Connection: close")))
						m, err := readResponse(w.r, "GET")
						w.Close()
						if err != nil || m.get("X-Target") != victim {
							t.Errorf("%s: other client that requested %s: got %v, %v", forms[i].name, victim, m, err)
						}
					}
				})
			}
			for i := range forms {
				numbers <- i
			}
			close(numbers)
			all.Wait()
			checkRecord(t, forms, answers, total, seen)
		})
	}
}

func kindOf(target string) string {
	if m := caseOf.FindStringSubmatch(target); m != nil {
		return m[1]
	}
	return target
}

// checkRecord compares the requests that a server received with the responses that its clients
// received.
func checkRecord(t *testing.T, forms []smuggle, answers []map[string]int, total []int, seen func() ([]string, []string)) {
	t.Helper()
	var requests, bad []string
	poll(t, "the record is complete", func() error {
		requests, bad = seen()
		n := 0
		for _, r := range requests {
			if strings.Contains(r, "/v/") {
				n++
			}
		}
		if n < len(forms) {
			return fmt.Errorf("got %d of %d requests", n, len(forms))
		}
		return nil
	})
	for _, b := range bad {
		if b == "PRI * HTTP/2.0" || b == "HPE_PAUSED_H2_UPGRADE" {
			continue // ignore a request of protocol detection
		}
		t.Errorf("the server received an invalid request: %q", b)
	}
	saw := make([]map[string]int, len(forms))
	for i := range saw {
		saw[i] = map[string]int{}
	}
	for _, r := range requests {
		m := caseOf.FindStringSubmatch(r)
		if r == "PRI *" {
			continue // ignore a request of protocol detection
		}
		if m == nil {
			t.Errorf("the server received %q, which no client sent", r)
			continue
		}
		i, _ := strconv.Atoi(m[2])
		saw[i][m[1]]++
	}
	front := 0
	for i, f := range forms {
		if saw[i]["m"] > 0 {
			t.Errorf("%s: the server received the hidden request:\n%q", f.name, f.text)
		}
		if saw[i]["f"] > 1 || saw[i]["f"] > total[i] || answers[i]["f"] > saw[i]["f"] || answers[i]["m"]+answers[i]["v"] > 0 {
			t.Errorf("%s: the server received %v and the client received %v in %d responses:\n%q", f.name, saw[i], answers[i], total[i], f.text)
		}
		if saw[i]["v"] != 1 {
			t.Errorf("%s: the server received the request of the other client %d times, want 1", f.name, saw[i]["v"])
		}
		front += saw[i]["f"]
	}
	t.Logf("%d of %d cases reached the server as one request", len(forms), front)
	if front == 0 || front > len(forms)/2 {
		t.Errorf("%d of %d cases reached the server, want at least one and at most half of them", front, len(forms))
	}
}

// HTTP/2 fields can contain bytes that are invalid in HTTP/1.1. These bytes never become a second
// request.
func TestSmuggledHTTP2RequestsDoNotReachServer(t *testing.T) {
	forms := formsH2()
	var listed []smuggle
	for _, f := range forms {
		listed = append(listed, smuggle{f.name, fmt.Sprintf("%q", f)})
	}
	for name := range strings.SplitSeq(*backendNames, ",") {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			seen := newBackend(t, p, name)
			p.start("METRICS_NAMES=default")
			p.auditAtEnd()
			answers, total := make([]map[string]int, len(forms)), make([]int, len(forms))
			for i, f := range forms {
				answers[i], total[i] = f.send(t, p, i)
				victim := fmt.Sprintf("/v/%04d", i)
				if m := dial(t, p.addr()).ask(victim, "Connection: close"); m.get("X-Target") != victim {
					t.Errorf("%s: other client that requested %s: got %q", f.name, victim, m.Fields)
				}
			}
			checkRecord(t, listed, answers, total, seen)
		})
	}
}

// A formH2 is an HTTP/2 request that contains another request. /N is a placeholder for the
// number of the case.
type formH2 struct {
	name   string
	pseudo map[string]string // pseudo-header fields that replace the defaults
	fields []string
	body   string
	after  []string // trailers
}

func formsH2() (forms []formH2) {
	crlf := "\r\n\r\n" + hidden
	for _, sep := range []string{"\r\n", "\n", "\r", "\r\n\r\n", "\n\n", "\x00"} {
		smuggled := sep + strings.TrimSuffix(hidden, "\r\n\r\n")
		forms = append(forms,
			formH2{name: "a value", fields: []string{"x: y" + smuggled}},
			formH2{name: "a name", fields: []string{"x" + smuggled + ": y"}},
			formH2{name: "a path", pseudo: map[string]string{":path": "/f/N HTTP/1.1" + smuggled}},
			formH2{name: "a path without a space", pseudo: map[string]string{":path": "/f/N" + smuggled}},
			formH2{name: "a method", pseudo: map[string]string{":method": "GET /f/N HTTP/1.1" + smuggled}},
			formH2{name: "an authority", pseudo: map[string]string{":authority": "a.test" + smuggled}},
			formH2{name: "a scheme", pseudo: map[string]string{":scheme": "http" + smuggled}},
			formH2{name: "a host", fields: []string{"host: a.test" + smuggled}},
			formH2{name: "a cookie", fields: []string{"cookie: a=b" + smuggled}},
			formH2{name: "a trailer", body: "x", after: []string{"x: y" + smuggled}},
			formH2{name: "X-Forwarded-For", fields: []string{"x-forwarded-for: 1.2.3.4" + smuggled}},
			formH2{name: "K-Original-Host", fields: []string{"k-original-host: a.test" + smuggled}},
			formH2{name: "a length", fields: []string{"content-length: 1" + smuggled}, body: "x"},
		)
	}
	for _, path := range []string{"/f/N /m/N", "/f/N HTTP/1.1", "f/N", "http://b.test/f/N", "", "/f/N\t", "//f/N", "/f/N#", "/f/N?\x7f"} {
		forms = append(forms, formH2{name: "a path", pseudo: map[string]string{":path": path}})
	}
	for _, fields := range [][]string{
		{"transfer-encoding: chunked"}, {"transfer-encoding: chunked", "content-length: 0"}, {"content-length: 0"}, {"content-length: 5"}, {"content-length: 1000"}, {"content-length: +5"}, {"content-length: 5, 5"}, {"content-length: 0", "content-length: 47"},
		{"connection: content-length"}, {"connection: close"}, {"upgrade: h2c"}, {"te: chunked"}, {"te: trailers"}, {"host: b.test"}, {"host: a.test", "host: b.test"}, {"transfer-encoding : chunked"}, {"transfer-encoding\x00: chunked"}, {" transfer-encoding: chunked"},
		{"Transfer-Encoding: chunked"}, {"expect: 100-continue"}, {"transfer_encoding: chunked"}, {"content_length: 0"}, {"x:y: z"}, {": z"}, {"x y: z"}, {":f: z"}, {":path: /m/N"}, {"proxy-connection: keep-alive"}, {"keep-alive: 5"},
	} {
		forms = append(forms, formH2{name: "fields", fields: fields, body: "0" + crlf}, formH2{name: "fields, no body", fields: fields})
	}
	for _, after := range [][]string{{"content-length: 5"}, {"transfer-encoding: chunked"}, {"host: b.test"}, {":path: /m/N"}, {"x y: z"}, {"connection: close"}} {
		forms = append(forms, formH2{name: "trailers", body: "x", after: after})
	}
	return forms
}

// numbered parses a field of the case and inserts the number. The field name ends at the first
// colon that does not follow a line break.
func (f formH2) numbered(s string, i int) field {
	at := strings.LastIndex(s, ": ")
	if first := strings.Index(s[1:], ": ") + 1; !strings.ContainsAny(s[:max(first, 0)], "\r\n\x00") {
		at = first
	}
	return field{withNumber(s[:at], i), withNumber(s[at+2:], i)}
}

func withNumber(s string, i int) string { return strings.ReplaceAll(s, "/N", fmt.Sprintf("/%04d", i)) }

// send sends the case on a new connection. It returns the number of the app's responses for
// each kind of target, and the total number of responses.
func (f formH2) send(t *testing.T, p *proxy, i int) (answers map[string]int, total int) {
	t.Helper()
	fields := []field{{":method", "POST"}, {":scheme", "http"}, {":authority", "a.test"}, {":path", "/f/N"}}
	for j := range fields {
		if v, ok := f.pseudo[fields[j].Name]; ok {
			fields[j].Value = v
		}
		fields[j].Value = withNumber(fields[j].Value, i)
	}
	for _, s := range f.fields {
		fields = append(fields, f.numbered(s, i))
	}
	var after []field
	for _, s := range f.after {
		after = append(after, f.numbered(s, i))
	}
	h := dialH2(t, p.addr())
	defer h.Close()
	_ = h.raw(1, f.body == "" && after == nil, fields) // ignore errors, because the sidecar may have closed the connection already
	if f.body != "" {
		h.data(1, after == nil, withNumber(f.body, i))
	}
	if after != nil {
		_ = h.raw(1, true, after)
	}
	poll(t, "the stream or the connection ends", func() error {
		events, end := h.seen()
		over := end != nil
		for _, e := range events {
			over = over || e.stream == 1 && (e.end || e.frame == http2.FrameRSTStream) || e.frame == http2.FrameGoAway
		}
		if over {
			return nil
		}
		return errNotYet
	})
	answers = map[string]int{}
	events, _ := h.seen()
	for _, e := range events {
		if e.frame == http2.FrameRSTStream {
			total++ // a reset stream counts as a response
		}
		if e.frame != http2.FrameHeaders || values(e.fields, ":status") == nil {
			continue
		}
		total++
		if len(values(e.fields, "x-from")) > 0 {
			answers[kindOf(values(e.fields, "x-target")[0])]++
		}
	}
	return answers, total
}
