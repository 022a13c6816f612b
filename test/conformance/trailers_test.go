package conformance

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A response can announce trailers that it does not send, or send only trailers that the
// sidecar removes. The response still ends correctly.
func TestAnnouncedTrailersMayBeMissing(t *testing.T) {
	inParallel(t)
	for _, app := range []string{"h1", "h2"} {
		t.Run(app, func(t *testing.T) {
			p := newProxy(t)
			writeCertificate(t, p.dir)
			p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum, Proxy-Status")
				io.WriteString(w, "ok")
				switch r.URL.Path {
				case "/ours":
					w.Header().Set("Proxy-Status", "queue-proxy; error=connection_refused")
				case "/some":
					w.Header().Set("X-Sum", "1")
				}
			}), app)
			p.start()
			for _, protocol := range []string{"h1", "h2c", "tls", "tls-h2"} {
				url := p.url("")
				if strings.HasPrefix(protocol, "tls") {
					url = "https://" + p.tlsAddr()
				}
				for path, want := range map[string][]string{"/none": nil, "/ours": nil, "/some": {"1"}} {
					answer, body := get(t, httpClient(t, protocol), url+path)
					if answer.StatusCode != 200 || body != "ok" {
						t.Errorf("%s, %s: got %s with %q, want 200 with ok", protocol, path, answer.Status, body)
					}
					if sum, status := answer.Trailer.Values("X-Sum"), answer.Trailer.Values("Proxy-Status"); !slices.Equal(sum, want) || status != nil {
						t.Errorf("%s, %s: got trailers X-Sum %q and Proxy-Status %q, want %q and no Proxy-Status", protocol, path, sum, status, want)
					}
				}
			}
		})
	}
}

// A long list of announced trailers is not forwarded, because net/http compares each name with
// all others. The trailers are still forwarded.
func TestLongTrailerListKeepsTrailers(t *testing.T) {
	inParallel(t)
	for _, app := range []string{"h1", "h2"} {
		t.Run(app, func(t *testing.T) {
			p := newProxy(t)
			p.appSpeaking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", names(5000)+"y, x-sum")
				io.WriteString(w, "ok")
				w.Header().Set("X-Sum", "1")
			}), app)
			p.start()
			m, err := exchangeH2(dial(t, p.addr()), "GET", "/", "http", "a.test", nil, "")
			if err != nil || m.status() != 200 || m.Body != "ok" {
				t.Fatalf("got %v, %v, want 200 with ok", m, err)
			}
			if got := values(m.Trailers, "X-Sum"); !slices.Equal(got, []string{"1"}) {
				t.Errorf("got trailer X-Sum %q, want 1", got)
			}
		})
	}
}

// net/http keeps only request trailers that the Trailer field announces.
func TestUnannouncedHTTP2TrailersReachApp(t *testing.T) {
	p := newProxy(t)
	app := p.bare(answers(ok))
	p.start()
	h := dialH2(t, p.addr())
	h.open(1, false, "POST", "/")
	h.data(1, false, "hello")
	if err := h.raw(1, true, []field{{"x-sum", "1"}}); err != nil {
		t.Fatal(err)
	}
	if a := h.answer(1); a.status != 200 {
		t.Fatalf("got %+v, want 200", a)
	}
	heard, broken := app.requests()
	var sum []string
	for _, m := range heard {
		sum = append(sum, values(m.Trailers, "X-Sum")...)
	}
	if !slices.Equal(sum, []string{"1"}) || len(broken) > 0 {
		t.Errorf("the app received %v with trailers X-Sum %q and invalid requests %v, want one request with trailer 1", heard, sum, broken)
	}
}

// The sidecar removes trailer fields that RFC 9110 section 6.5.1 does not permit. The
// field names in this test are announced, and net/http accepts them.
func TestRequestTrailersAreFilteredForAllProtocols(t *testing.T) {
	p := newProxy(t)
	app := p.bare(answers(ok))
	p.start()
	c := dial(t, p.addr())
	c.send("POST /h1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: Expires, X-Forwarded-For, X-Sum\r\n\r\n" +
		"5\r\nhello\r\n0\r\nExpires: 0\r\nX-Forwarded-For: 1.2.3.4\r\nX-Sum: 1\r\n\r\n")
	if m := c.receive("POST"); m.status() != 200 {
		t.Fatalf("got %q, want 200", m.Start)
	}
	h := dialH2(t, p.addr())
	h.open(1, false, "POST", "/h2", "Trailer: Expires, X-Forwarded-For, X-Sum")
	h.data(1, false, "hello")
	if err := h.raw(1, true, []field{{"expires", "0"}, {"x-forwarded-for", "1.2.3.4"}, {"x-sum", "1"}}); err != nil {
		t.Fatal(err)
	}
	if a := h.answer(1); a.status != 200 {
		t.Fatalf("got %+v, want 200", a)
	}
	received, broken := app.requests()
	if len(received) != 2 || len(broken) > 0 {
		t.Fatalf("the app received %d requests and invalid requests %v, want 2 requests and no invalid requests", len(received), broken)
	}
	for _, m := range received {
		if len(m.Trailers) != 1 || !slices.Equal(values(m.Trailers, "X-Sum"), []string{"1"}) {
			t.Errorf("%s: got trailers %v, want only X-Sum", m.Start, m.Trailers)
		}
	}
}

// A framing field is rejected in a trailer section and in the list of announced trailers.
func TestRequestTrailerThatFramesReturns400(t *testing.T) {
	p := newProxy(t)
	p.bare(answers(ok))
	p.start()
	for _, name := range []string{"content-length", "transfer-encoding", "host", "trailer", "content_length", "transfer_encoding"} {
		for where, text := range map[string]string{
			"announced": "Trailer: x, " + name + "\r\n\r\n0\r\n\r\n",
			"sent":      "\r\n0\r\n" + name + ": 1\r\n\r\n",
		} {
			c := dial(t, p.addr())
			c.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" + text)
			if m := c.receive("POST"); m.status() != 400 {
				t.Errorf("%s, %s: got %q, want 400", name, where, m.Start)
			}
		}
		h := dialH2(t, p.addr())
		h.open(1, true, "POST", "/", "Trailer: x, "+name)
		h.open(3, false, "POST", "/")
		if err := h.raw(3, true, []field{{name, "1"}}); err != nil {
			t.Fatal(err)
		}
		for _, stream := range []uint32{1, 3} {
			if a := h.answer(stream); a.status != 400 && !a.cut {
				t.Errorf("%s, stream %d: got %+v, want 400 or a reset", name, stream, a)
			}
		}
	}
}
