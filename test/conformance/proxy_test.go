package conformance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func TestRequestTargetsAreForwarded(t *testing.T) { perform(t, "targets.txt") }

func TestFieldsAndTrailersAreForwarded(t *testing.T) { perform(t, "fields.txt") }

func TestResponsesAreForwardedOrRejected(t *testing.T) { perform(t, "responses.txt") }

func TestRequestSmugglingVectors(t *testing.T) { perform(t, "smuggling.txt") }

// both lists the client protocols without TLS.
var both = []string{"h1", "h2c"}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bare(func(c *bareConn, m *message) bool {
		c.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(m.Start), m.Start))
		return true
	})
	c := dial(t, p.addr())
	c.send(request("GET", "/1") + "POST /2 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc" + request("GET", "/3"))
	for _, want := range []string{"GET /1 HTTP/1.1", "POST /2 HTTP/1.1", "GET /3 HTTP/1.1"} {
		if m := c.receive("GET"); m.Body != want {
			t.Errorf("got %q, want %q", m.Body, want)
		}
	}
}

// answerWithSize is an app that sends a response with the requested size and framing. The field
// X-Got contains the length and the hash of the received body.
func answerWithSize(w http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		n = -1
	}
	w.Header().Set("X-Got", fmt.Sprintf("%d %d %x", r.ContentLength, n, h.Sum(nil)))
	size, _ := strconv.Atoi(r.URL.Query().Get("size"))
	if r.URL.Query().Get("framing") == "length" {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	} else {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
	}
	w.Write(noise(size))
}

func TestBodiesOfAllSizesAreForwarded(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.app(http.HandlerFunc(answerWithSize))
	for _, protocol := range both {
		client := httpClient(t, protocol)
		for _, framing := range []string{"length", "chunked"} {
			for _, size := range []int{0, 1, 1000, 100_000, 10_000_000} {
				t.Run(fmt.Sprint(protocol, " ", framing, " ", size), func(t *testing.T) {
					body := noise(size)
					var reader io.Reader = bytes.NewReader(body)
					length := int64(size)
					if framing == "chunked" {
						reader, length = io.MultiReader(reader), -1
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					r, _ := http.NewRequestWithContext(ctx, "POST", p.url(fmt.Sprintf("/?size=%d&framing=%s", size, framing)), reader)
					answer, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					defer answer.Body.Close()
					got, err := io.ReadAll(answer.Body)
					if err != nil {
						t.Fatalf("read the response: %v", err)
					}
					if !bytes.Equal(got, body) {
						t.Errorf("got %d bytes, want the %d bytes from the app", len(got), size)
					}
					if framing == "length" && answer.ContentLength != int64(size) {
						t.Errorf("got Content-Length %d, want %d", answer.ContentLength, size)
					}
					sum := sha256.Sum256(body)
					want := fmt.Sprintf("%d %d %s", length, size, hex.EncodeToString(sum[:]))
					told := answer.Header.Get("X-Got")
					if framing == "chunked" && protocol == "h2c" && size == 0 {
						// In HTTP/2, the application cannot distinguish an empty DATA frame from a
						// missing body, so the framing is not compared.
						_, told, _ = strings.Cut(told, " ")
						_, want, _ = strings.Cut(want, " ")
					}
					if told != want {
						t.Errorf("the app received length, bytes and hash %s, want %s", told, want)
					}
				})
			}
		}
	}
}

// noise returns size bytes that depend only on size.
func noise(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size)}).Read(b)
	return b
}

func TestEndlessDownloadEndsWithClient(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			gone := make(chan struct{})
			p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(gone)
				block := noise(64 << 10)
				for r.Context().Err() == nil {
					if _, err := w.Write(block); err != nil {
						return
					}
				}
			}))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "GET", p.url("/"), nil)
			answer, err := httpClient(t, protocol).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, answer.Body, 20<<20); err != nil {
				t.Fatal(err)
			}
			cancel()
			answer.Body.Close()
			receiveClose(t, "the request is canceled in the app", gone)
		})
	}
}

func TestEndlessUploadGetsEarlyResponse(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := io.CopyN(io.Discard, r.Body, 20<<20)
				if err != nil {
					t.Errorf("app: read after %d bytes: %v", n, err)
				}
				w.Header().Set("Connection", "close")
				w.WriteHeader(http.StatusInsufficientStorage)
			}))
			status := within(t, "the response to an endless upload", func() (int, error) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				r, _ := http.NewRequestWithContext(ctx, "POST", p.url("/"), endless{})
				if protocol == "h1" { // the Go client loses early responses
					return rawUpload(t, p, -1)
				}
				answer, err := httpClient(t, protocol).Do(r)
				if err != nil {
					return 0, err
				}
				answer.Body.Close()
				return answer.StatusCode, nil
			})
			if status != 507 {
				t.Errorf("got %d, want 507", status)
			}
		})
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// rawUpload sends a POST request with length bytes, or with an unlimited number of chunks if
// length is -1. It reads the response at the same time and returns its status.
func rawUpload(t *testing.T, p *proxy, length int) (int, error) {
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	head := "POST /early HTTP/1.1\r\nHost: a.test\r\n"
	block := append([]byte("8000\r\n"), append(make([]byte, 0x8000), "\r\n"...)...)
	if length >= 0 {
		head += fmt.Sprintf("Content-Length: %d\r\n\r\n", length)
		block = make([]byte, 32<<10)
	} else {
		head += "Transfer-Encoding: chunked\r\n\r\n"
	}
	if _, err := io.WriteString(c, head); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	defer func() { c.Close(); <-done }()
	go func() {
		defer close(done)
		for left := length; left != 0; left -= len(block) {
			if length >= 0 && left < len(block) {
				block = block[:left]
			}
			if _, err := c.Write(block); err != nil {
				return
			}
			if left < 0 {
				left = -1 + len(block) // continue without end
			}
		}
	}()
	m, err := readResponse(bufio.NewReader(c), "POST")
	if err != nil {
		return 0, err
	}
	return m.status(), m.Cut
}

// If an app rejects an upload after the header section, each of 40 clients receives the
// response.
func TestEarlyRejectionOfUploadReachesClient(t *testing.T) {
	inParallel(t)
	const times, length = 40, 10 << 20
	refuse := func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large")
		c.CloseWrite()
		io.Copy(io.Discard, c) // lingering close: RFC 9112 section 9.6 recommends that servers read until the client closes
		return false
	}
	upload := map[string]func(t *testing.T, p *proxy) (int, error){
		"h1": func(t *testing.T, p *proxy) (int, error) { return rawUpload(t, p, length) },
		"h2c": func(t *testing.T, p *proxy) (int, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "POST", p.url("/early"), bytes.NewReader(make([]byte, length)))
			answer, err := httpClient(t, "h2c").Do(r)
			if err != nil {
				return 0, err
			}
			defer answer.Body.Close()
			return answer.StatusCode, nil
		},
	}
	for _, protocol := range both {
		for _, app := range []string{"bare", "net/http"} {
			t.Run(protocol+" client, "+app+" app", func(t *testing.T) {
				p := newProxy(t)
				p.start()
				if app == "bare" {
					p.bareHeads(refuse)
				} else {
					p.sample()
				}
				heard := map[string]int{}
				for range times {
					status, err := upload[protocol](t, p)
					if err != nil {
						heard[err.Error()]++
					} else {
						heard[strconv.Itoa(status)]++
					}
				}
				if heard["413"] != times {
					t.Errorf("got %v, want 413 %d times", heard, times)
				}
			})
		}
	}
}

// A response with status 200 to a complete POST request does not close the connection.
func TestCompletePostKeepsConnection(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.sample()
	c := dial(t, p.addr())
	for i := range 20 {
		body := noise(i * 1000)
		c.send(fmt.Sprintf("POST /sink HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		if m := c.receive("POST"); m.status() != 200 || m.get("Connection") != "" {
			t.Fatalf("POST %d: got %q with Connection %q, want 200 without Connection", i, m.Start, m.get("Connection"))
		}
	}
}

func TestServerSentEventsAreNotBuffered(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			next := make(chan struct{})
			p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range 10 {
					fmt.Fprintf(w, "data: %d\n\n", i)
					http.NewResponseController(w).Flush()
					select {
					case <-next: // the client has received the previous event
					case <-r.Context().Done():
						return
					}
				}
			}))
			answer, err := httpClient(t, protocol).Get(p.url("/"))
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			lines := bufio.NewReader(answer.Body)
			for i := range 10 {
				got := within(t, "event "+strconv.Itoa(i), func() (string, error) {
					a, err := lines.ReadString('\n')
					if err == nil {
						_, err = lines.ReadString('\n')
					}
					return a, err
				})
				if want := fmt.Sprintf("data: %d\n", i); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				next <- struct{}{}
			}
			if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil {
				t.Errorf("after the last event: got %q, %v, want the end of the response", rest, err)
			}
		})
	}
}

// In HTTP/2, a request with an invalid path is malformed, and only its stream is reset (RFC
// 9113 sections 8.1.1 and 8.3.1).
func TestInvalidEscapeOverHTTP2ResetsStream(t *testing.T) {
	p := newProxy(t)
	p.start()
	app := p.bare(answers(ok))
	if m, err := exchangeH2(dial(t, p.addr()), "GET", "/a%zz", "http", "a.test:80", nil, ""); err == nil || !strings.Contains(err.Error(), "PROTOCOL_ERROR") {
		t.Errorf("got %v, %v, want a stream reset with PROTOCOL_ERROR", m, err)
	}
	if heard, _ := app.requests(); len(heard) != 0 {
		t.Errorf("the app received %d requests, want 0", len(heard))
	}
}

// The target and the fields are forwarded over HTTP/2 in the same way as over HTTP/1.1.
func TestTargetsAndFieldsAreForwardedOverHTTP2(t *testing.T) {
	p := newProxy(t)
	p.start()
	app := p.bare(answers(ok))
	for _, target := range []string{
		"/?x=1;y=2&z=%zz", "/a;b=c/d", "//a//b", "/a%2fb%2Fc", "/a/../b/./c", "/\xc3\xa9/%2f", `/p"q|r`, "/a?", "*",
	} {
		method := "GET"
		if target == "*" {
			method = "OPTIONS"
		}
		before, _ := app.requests()
		m, err := exchangeH2(dial(t, p.addr()), method, target, "http", "a.test:80", []field{
			{"x-a", "1"}, {"x-b", "between"}, {"x-a", "2"},
			{"cookie", "a=1"}, {"cookie", "b=2"}, // HTTP/1.1 requires a single field line (RFC 9113 section 8.2.3)
			{"te", "trailers"},
			{"x-forwarded-for", "1.1.1.1"}, {"x-forwarded-proto", "https"},
			{"k-passthrough-lb", "true"},
		}, "")
		if err != nil || m.status() != 200 || m.Body != "ok" {
			t.Errorf("%s: got %v, %v, want 200", target, m, err)
			continue
		}
		heard, _ := app.requests()
		if len(heard) != len(before)+1 {
			t.Fatalf("%s: the app received %d requests, want 1", target, len(heard)-len(before))
		}
		got := heard[len(before)]
		if want := method + " " + target + " HTTP/1.1"; got.Start != want {
			t.Errorf("the app received %q, want %q", got.Start, want)
		}
		checkFields(t, "app", "field", got.Fields, []field{
			{"Host", "a.test:80"}, {"X-A", "1"}, {"X-A", "2"}, {"X-B", "between"}, {"Cookie", "a=1; b=2"}, {"TE", "trailers"},
			{"X-Forwarded-For", "1.1.1.1, 127.0.0.1"}, {"X-Forwarded-Proto", "https"}, {"Forwarded", "for=1.1.1.1;proto=https"},
		})
		for _, name := range []string{"K-Passthrough-Lb", "User-Agent", "Accept-Encoding", "Content-Length", "Transfer-Encoding"} {
			if v := values(got.Fields, name); v != nil {
				t.Errorf("%s: the app received %s: %q, want none", target, name, v)
			}
		}
	}
}

// MAX_HEADER_BYTES limits response headers for each combination of the app's protocol and the
// client's protocol.
func TestLongResponseHeadersAreForwarded(t *testing.T) {
	const fields, size = 60, 15 << 10 // 900 KiB in total
	long := strings.Repeat("x", size)
	for _, app := range []string{"h1", "h2"} {
		for _, client := range []string{"h1", "h2c"} {
			t.Run("app "+app+", client "+client, func(t *testing.T) {
				p := newProxy(t)
				p.start()
				p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					for range fields {
						w.Header().Add("X-Long", long)
					}
					io.WriteString(w, "ok")
				}), app)
				resp, body := get(t, httpClient(t, client), p.url("/"))
				if got := resp.Header["X-Long"]; resp.StatusCode != 200 || len(got) != fields || got[fields-1] != long || body != "ok" {
					t.Errorf("got %d, %d fields and %q, want 200, %d fields and body ok", resp.StatusCode, len(got), body, fields)
				}
			})
		}
	}
}

func TestResponseHeaderOverLimitReturns502(t *testing.T) {
	for _, app := range []string{"h1", "h2"} {
		t.Run(app, func(t *testing.T) {
			p := newProxy(t)
			p.start("MAX_HEADER_BYTES=16384")
			p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Long", strings.Repeat("x", 20<<10))
			}), app)
			if m := dial(t, p.addr()).ask("/"); m.status() != 502 || word(m.get("Proxy-Status")) != "app-garbage" {
				t.Errorf("got %q, %q, want 502 app-garbage", m.Start, m.get("Proxy-Status"))
			}
		})
	}
}

func TestLargeHeadersAreForwardedOverHTTP2(t *testing.T) {
	p := newProxy(t)
	p.start()
	long := strings.Repeat("x", 30_000)
	app := p.bare(answers("HTTP/1.1 200 OK\r\nX-C: " + long + "\r\nX-D: " + long + "\r\nContent-Length: 0\r\n\r\n"))
	m, err := exchangeH2(dial(t, p.addr()), "GET", "/", "http", "a.test", []field{{"x-a", long}, {"x-b", long}}, "")
	if err != nil || m.get("X-C") != long || m.get("X-D") != long {
		t.Errorf("the response does not contain X-C and X-D: %v", err)
	}
	if heard, _ := app.requests(); len(heard) != 1 || heard[0].get("X-A") != long || heard[0].get("X-B") != long {
		t.Error("the app received no request with X-A and X-B")
	}
}

func TestTrailersAreForwardedOverHTTP2(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.sample()
	r, _ := http.NewRequest("POST", p.url("/trailers"), io.MultiReader(strings.NewReader("hello")))
	r.Trailer = http.Header{"X-Sum": {"532"}}
	answer, err := httpClient(t, "h2c").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"X-Sum": "532", "X-Body-Length": "5"} {
		if got := answer.Trailer.Get(name); got != want {
			t.Errorf("trailer %s: got %q, want %q (all: %v)", name, got, want, answer.Trailer)
		}
	}
}

func TestEarlyHintsAreForwardedOverHTTP2(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.sample()
	var interim []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			interim = append(interim, code)
			return nil
		},
	})
	r, _ := http.NewRequestWithContext(ctx, "GET", p.url("/hints?status=418"), nil)
	answer, err := httpClient(t, "h2c").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if !slices.Equal(interim, []int{103}) || answer.StatusCode != 418 {
		t.Errorf("got %v before %d, want 103 before 418", interim, answer.StatusCode)
	}
}

// If a client waits for 100 Continue, it sends its body after the application has requested it.
// If the application rejects the request, the client does not send the body.
func TestExpectContinueIsForwardedToApp(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.bareHeads(func(c *bareConn, m *message) bool {
		if strings.Contains(m.Start, "/refuse") {
			c.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return false
		}
		c.send("HTTP/1.1 100 Continue\r\n\r\n")
		m.readBody(c.r, false)
		c.send(fmt.Sprintf("HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s", len(m.Body), m.Body))
		return true
	})
	head := "POST /%s HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"

	c := dial(t, p.addr())
	c.send(fmt.Sprintf(head, "refuse"))
	if m := c.receive("POST"); m.status() != 417 || len(m.Interim) > 0 {
		t.Errorf("rejected request: got %q after %d interim responses, want 417 without interim responses", m.Start, len(m.Interim))
	}

	c = dial(t, p.addr())
	c.send(fmt.Sprintf(head, "take"))
	m, err := readHead(c.r)
	if err != nil || m.status() != 100 {
		t.Fatalf("got %v, %v, want 100", m, err)
	}
	c.send("hello")
	if m := c.receive("POST"); m.status() != 201 || m.Body != "hello" {
		t.Errorf("got %q with %q, want 201 with hello", m.Start, m.Body)
	}
}

// The request is canceled in the app if the client disconnects while the app works on it.
func TestClientDisconnectCancelsRequestInApp(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		for _, phase := range []string{"before the header section", "in the body"} {
			t.Run(protocol+" "+phase, func(t *testing.T) {
				p := newProxy(t)
				p.start()
				there, gone := make(chan struct{}), make(chan struct{})
				p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if phase == "in the body" {
						io.WriteString(w, "first part")
						http.NewResponseController(w).Flush()
					}
					close(there)
					<-r.Context().Done()
					close(gone)
				}))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					r, _ := http.NewRequestWithContext(ctx, "GET", p.url("/"), nil)
					if answer, err := httpClient(t, protocol).Do(r); err == nil {
						io.Copy(io.Discard, answer.Body)
						answer.Body.Close()
					}
				}()
				receiveClose(t, "the app received the request", there)
				cancel()
				receiveClose(t, "the request is canceled in the app", gone)
			})
		}
	}
}

// docs/promises.md 3.4: a FIN after a complete request means that the client has disconnected.
func TestHalfClosedConnectionCancelsRequest(t *testing.T) {
	p := newProxy(t)
	p.start()
	there, gone := make(chan struct{}), make(chan struct{})
	p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(there)
		<-r.Context().Done()
		close(gone)
	}))
	c := dial(t, p.addr())
	c.send(request("GET", "/"))
	receiveClose(t, "the app received the request", there)
	c.Conn.(*net.TCPConn).CloseWrite()
	receiveClose(t, "the request is canceled in the app", gone)
}

func TestAppFailureInBodyTruncatesResponse(t *testing.T) {
	p := newProxy(t)
	p.start()
	p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "1000000")
		}
		w.Write(noise(500_000))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	for _, protocol := range both {
		for _, path := range []string{"/chunked", "/length"} {
			t.Run(protocol+path, func(t *testing.T) {
				answer, err := httpClient(t, protocol).Get(p.url(path))
				if err != nil {
					return // an error before the header section is also permitted
				}
				defer answer.Body.Close()
				if n, err := io.Copy(io.Discard, answer.Body); err == nil {
					t.Errorf("got a complete response after %d bytes, want an error", n)
				}
			})
		}
	}
}

// checkOurs fails the test unless m is an error response from the sidecar with the given
// status, error type and reason, and with a short text that contains no address.
func checkOurs(t *testing.T, p *proxy, m *message, status int, kind, word string) {
	t.Helper()
	if m.status() != status {
		t.Errorf("got %q, want %d", m.Start, status)
	}
	want := fmt.Sprintf("queue-proxy; error=%s; details=%q", kind, word)
	if got := m.get("Proxy-Status"); got != want {
		t.Errorf("got Proxy-Status %q, want %q", got, want)
	}
	if len(m.Body) == 0 || len(m.Body) > 100 {
		t.Errorf("got a body of %d bytes, want a short message", len(m.Body))
	}
	for _, inside := range []string{"127.0.0.1", "::1", strconv.Itoa(p.port.user), "dial", "tcp"} {
		if strings.Contains(m.Body, inside) {
			t.Errorf("got body %q, want a message without %q", m.Body, inside)
		}
	}
}

func TestUnavailableAppReturns502(t *testing.T) {
	p := newProxy(t)
	p.start("CONNECT_RETRY=50ms")
	c := dial(t, p.addr())
	m := c.ask("/")
	checkOurs(t, p, m, 502, "connection_refused", "app-unreachable")
	c.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello")
	checkOurs(t, p, c.receive("POST"), 502, "connection_refused", "app-unreachable")
	m, err := exchangeH2(dial(t, p.addr()), "GET", "/", "http", "a.test", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	checkOurs(t, p, m, 502, "connection_refused", "app-unreachable")
}

func TestRequestWaitsForAppRestart(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start("CONNECT_RETRY=15s")
			later := time.AfterFunc(200*time.Millisecond, func() { p.sample() })
			defer later.Stop()
			answer, _ := get(t, httpClient(t, protocol), p.url("/status/204"))
			if answer.StatusCode != 204 {
				t.Errorf("got %d, want 204 from the app", answer.StatusCode)
			}
		})
	}
}

func TestConnectFallsBackToIPv6Loopback(t *testing.T) {
	p := newProxy(t)
	p.start()
	l, err := net.Listen("tcp6", net.JoinHostPort("::1", strconv.Itoa(p.port.user)))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	if m := dial(t, p.addr()).ask("/"); m.status() != 204 {
		t.Errorf("got %q, want 204 from the app", m.Start)
	}
}

// A request in the syntax of HTTP/1 with another major version is invalid (RFC 9112 section
// 2.3, RFC 9110 sections 2.5 and 15.6.6). This includes an HTTP/2 preface that is malformed or
// does not start the connection (RFC 9113 section 3.4).
func TestUnsupportedVersionReturns505(t *testing.T) {
	p := newProxy(t)
	p.start()
	app := p.bare(answers(ok))
	for _, text := range []string{
		preface + "\r\n\r\nXX\r\n\r\n",
		preface + "\r\n\r\nSM\r\nX",
		preface + "\r\nSM\r\n\r\n",
		preface + "\r\nHost: a.test\r\n\r\n",
		preface + "\r\nHost: a.test\r\nContent-Length: 1\r\n\r\nx",
		preface + "\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		preface + "\r\nK-Network-Probe: queue\r\n\r\n",
		preface + "\n\n",
		"\r\n" + http2.ClientPreface,
		"PRI / HTTP/2.0\r\nHost: a.test\r\n\r\n",
		"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: a.test\r\n\r\n",
		"GET / HTTP/3.0\r\nHost: a.test\r\n\r\n",
		"GET / HTTP/0.9\r\nHost: a.test\r\n\r\n",
		"GET / HTTP/9.9\r\nHost: a.test\r\n\r\n",
	} {
		c := dial(t, p.addr())
		c.send(text)
		refusedVersion(t, text, c)
	}
	for _, first := range []string{request("GET", "/first"), "GET /first HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"} {
		for _, text := range []string{http2.ClientPreface, preface + "\r\nHost: a.test\r\n\r\n"} {
			c := dial(t, p.addr())
			c.send(first + text) // the text is in the same packet as the first request
			c.receive("GET")
			refusedVersion(t, first+text, c)
			c = dial(t, p.addr())
			c.send(first)
			c.receive("GET")
			c.send(text) // the text follows the response to the first request
			refusedVersion(t, first+text, c)
		}
	}
	// A later minor version is accepted.
	c := dial(t, p.addr())
	c.send("GET /first HTTP/1.2\r\nHost: a.test\r\n\r\n")
	if m := c.receive("GET"); m.status() != 200 {
		t.Errorf("HTTP/1.2: got %q, want 200", m.Start)
	}
	heard, broken := app.requests()
	for _, m := range heard {
		if m.Start != "GET /first HTTP/1.1" {
			t.Errorf("the app received %q, want only GET /first", m.Start)
		}
	}
	if len(heard) != 9 || broken != nil {
		t.Errorf("the app received %d requests and %v, want 9", len(heard), broken)
	}
}

func refusedVersion(t *testing.T, text string, c *client) {
	t.Helper()
	if b, err := c.r.Peek(5); string(b) != "HTTP/" {
		t.Errorf("%q: got %q, %v, want a response in HTTP/1.1", text, b, err)
		return
	}
	if m := c.receive("GET"); m.Start != "HTTP/1.1 505 HTTP Version Not Supported" || word(m.get("Proxy-Status")) != "bad-request" {
		t.Errorf("%q: got %q with %v, want 505 from the sidecar", text, m.Start, m.Fields)
	}
	c.closed()
}

// The application closes each connection after the response, although the response does not contain
// the connection option close. If the FIN arrives before the next request, the client does not
// receive an error.
func TestClosedAppConnectionIsNotReused(t *testing.T) {
	p := newProxy(t)
	p.start()
	app := p.bare(func(c *bareConn, m *message) bool {
		c.send(ok)
		return false
	})
	c := dial(t, p.addr())
	for i := range 40 {
		c.send(fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello", i))
		if m := c.receive("POST"); m.status() != 200 || m.Body != "ok" {
			t.Fatalf("POST %d: got %q with %q, want 200 with ok", i, m.Start, m.Body)
		}
		p.awaitAppConnectionsClosed("h1")
	}
	if heard, _ := app.requests(); len(heard) != 40 {
		t.Errorf("the app received %d requests, want 40", len(heard))
	}
}

// The app closes a reused connection after the request was written. Only idempotent requests
// are retried, and only once (RFC 9110 section 9.2.2).
func TestOnlyIdempotentRequestsAreRetried(t *testing.T) {
	inParallel(t)
	for _, row := range []struct {
		name, text   string
		status, seen int
	}{
		{"GET", request("GET", "/x"), 200, 2},
		{"HEAD", request("HEAD", "/x"), 200, 2},
		{"DELETE", request("DELETE", "/x"), 200, 2},
		{"PUT with a small body", "PUT /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello", 0, 2},
		{"POST with a body", "POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello", 502, 1},
		{"POST without a body", "POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n", 502, 1},
		{"PATCH", "PATCH /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello", 502, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			var seen, lost atomic.Int32
			p.bare(func(c *bareConn, m *message) bool {
				if strings.HasSuffix(m.Start, " /warm HTTP/1.1") {
					c.send(ok)
					return true
				}
				seen.Add(1)
				if c.number == 0 {
					lost.Add(1)
					return false // close the reused connection without a response
				}
				if strings.HasPrefix(m.Start, "HEAD ") {
					c.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
				} else {
					c.send(ok)
				}
				return true
			})
			c := dial(t, p.addr())
			c.ask("/warm")
			c.send(row.text)
			method, _, _ := strings.Cut(row.text, " ")
			m := c.receive(method)
			if lost.Load() != 1 {
				t.Fatalf("the reused connection received the request %d times, want 1", lost.Load())
			}
			got := int(seen.Load())
			if row.status == 0 { // a retry is allowed but not required
				if m.status() == 200 && got == 2 || m.status() == 502 && got == 1 {
					return
				}
				t.Errorf("got %q and %d attempts in the app, want 200 and 2, or 502 and 1", m.Start, got)
				return
			}
			if m.status() != row.status || got != row.seen {
				t.Errorf("got %q and %d attempts in the app, want %d and %d", m.Start, got, row.status, row.seen)
			}
			if row.status == 502 {
				checkOurs(t, p, m, 502, "connection_terminated", "app-reset")
			}
		})
	}
}

// A request on a new connection is never retried.
func TestAppThatClosesConnectionReturns502(t *testing.T) {
	inParallel(t)
	for name, end := range map[string]func(*bareConn){
		"closes": func(c *bareConn) { c.Close() },
		"resets": func(c *bareConn) { c.reset() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t)
			p.start()
			var seen atomic.Int32
			p.bare(func(c *bareConn, m *message) bool {
				seen.Add(1)
				end(c)
				return false
			})
			m := dial(t, p.addr()).ask("/")
			checkOurs(t, p, m, 502, "connection_terminated", "app-reset")
			if got := seen.Load(); got != 1 {
				t.Errorf("the app received the request %d times, want 1", got)
			}
		})
	}
}

// A response that ends with the connection is truncated if the connection is reset.
func TestResetTruncatesCloseDelimitedResponse(t *testing.T) {
	p := newProxy(t)
	p.start()
	written := make(chan struct{})
	seen := make(chan struct{})
	p.bare(func(c *bareConn, m *message) bool {
		c.send("HTTP/1.1 200 OK\r\n\r\nsome bytes")
		close(written)
		<-seen
		c.reset()
		return false
	})
	c := dial(t, p.addr())
	c.send(request("GET", "/"))
	m, err := readHead(c.r)
	if err != nil || m.status() != 200 {
		t.Fatalf("got %v, %v, want 200", m, err)
	}
	receiveClose(t, "the app has sent the response", written)
	close(seen)
	if err := m.readBody(c.r, true); err == nil && m.Cut == nil {
		t.Errorf("got %q and a complete response, want an error", m.Body)
	}
}

// Both directions transfer data alternately. Full duplex is always enabled for HTTP/2. For
// HTTP/1.1, a setting enables it.
func TestFullDuplex(t *testing.T) {
	inParallel(t)
	for _, protocol := range both {
		t.Run(protocol, func(t *testing.T) {
			p := newProxy(t)
			p.start("ENABLE_HTTP_FULL_DUPLEX=true")
			p.app(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.NewResponseController(w).EnableFullDuplex()
				b := make([]byte, 4096)
				for {
					n, err := r.Body.Read(b)
					if n > 0 {
						w.Write(bytes.ToUpper(b[:n]))
						http.NewResponseController(w).Flush()
					}
					if err != nil {
						return
					}
				}
			}))
			send, reply := duplexClient(t, p, protocol)
			for i := range 20 {
				send(fmt.Sprintf("message %02d", i))
				if got, want := within(t, "a reply", reply), fmt.Sprintf("MESSAGE %02d", i); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
			}
		})
	}
}

// duplexClient starts a POST request. It returns two functions: one sends a part of the request
// body, and the other reads a part of the same size from the response body.
func duplexClient(t *testing.T, p *proxy, protocol string) (send func(string), reply func() (string, error)) {
	const size = len("message 00")
	if protocol == "h1" {
		c := dial(t, p.addr())
		c.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n")
		headRead := false
		var pending string
		return func(text string) { c.send(fmt.Sprintf("%x\r\n%s\r\n", len(text), text)) },
			func() (string, error) {
				if !headRead {
					if m, err := readHead(c.r); err != nil || m.status() != 200 {
						return "", fmt.Errorf("got header section %v, %v, want status 200", m, err)
					}
					headRead = true
				}
				for len(pending) < size {
					line, err := readLine(c.r)
					if err != nil {
						return "", err
					}
					n, err := strconv.ParseUint(line, 16, 31)
					if err != nil || n == 0 {
						return "", fmt.Errorf("got chunk size %q, want a positive number", line)
					}
					b := make([]byte, n+2)
					if _, err := io.ReadFull(c.r, b); err != nil {
						return "", err
					}
					pending += string(b[:n])
				}
				piece := pending[:size]
				pending = pending[size:]
				return piece, nil
			}
	}
	body, sender := io.Pipe()
	t.Cleanup(func() { sender.Close() })
	var answer *http.Response
	return func(text string) {
			if answer == nil {
				go io.WriteString(sender, text)
				return
			}
			io.WriteString(sender, text)
		}, func() (string, error) {
			if answer == nil {
				r, _ := http.NewRequestWithContext(t.Context(), "POST", p.url("/"), body)
				var err error
				if answer, err = httpClient(t, protocol).Do(r); err != nil {
					return "", err
				}
				t.Cleanup(func() { answer.Body.Close() })
			}
			b := make([]byte, size)
			_, err := io.ReadFull(answer.Body, b)
			return string(b), err
		}
}

// The sidecar detects the protocol of the app without sending a body twice. The test does not
// run in parallel, because the sidecar sends the first body if the detection has no result after 25 ms.
func TestClientAndAppUseDifferentVersions(t *testing.T) {
	for _, app := range []string{"h1", "h2"} {
		for _, protocol := range both {
			t.Run(protocol+" client, "+app+" app", func(t *testing.T) {
				p := newProxy(t)
				p.start()
				var seen atomic.Int32
				p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method != "PRI" { // ignore the HTTP/2 preface of protocol detection
						seen.Add(1)
					}
					n, err := io.Copy(io.Discard, r.Body)
					fmt.Fprintf(w, "%s %d %v", r.Proto, n, err)
				}), app)
				client := httpClient(t, protocol)
				for i, size := range []int{1 << 20, 0, 5} {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					r, _ := http.NewRequestWithContext(ctx, "POST", p.url("/"), bytes.NewReader(make([]byte, size)))
					answer, err := client.Do(r)
					if err != nil {
						cancel()
						t.Fatalf("POST %d: %v", i, err)
					}
					b, err := io.ReadAll(answer.Body)
					answer.Body.Close()
					cancel()
					proto := map[string]string{"h1": "HTTP/1.1", "h2": "HTTP/2.0"}[app]
					if want := fmt.Sprintf("%s %d <nil>", proto, size); answer.StatusCode != 200 || string(b) != want {
						t.Errorf("POST %d: got %d %q, %v, want 200 %q", i, answer.StatusCode, b, err, want)
					}
				}
				if got := seen.Load(); got != 3 {
					t.Errorf("the app received %d requests, want 3", got)
				}
			})
		}
	}
}

func receiveClose(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s: timeout after %v", what, patience)
	}
}
