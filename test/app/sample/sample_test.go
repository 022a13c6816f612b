package sample

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func ask(t *testing.T, s *httptest.Server, method, target, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(IDHeader, "one")
	answer, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(b)
}

func TestPathSelectsResponse(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	for _, row := range []struct {
		method, target, body string
		status, length       int // expected values; if length is -1, it is not compared
	}{
		{"GET", "/", "", 200, len(Guide)},
		{"GET", "/status/404", "", 404, 0},
		{"GET", "/status/20", "", 400, -1},
		{"GET", "/bytes/100000", "", 200, 100000},
		{"GET", "/stream/100000", "", 200, 100000},
		{"GET", "/slow?ms=1", "", 200, -1},
		{"GET", "/sse?n=3&ms=1", "", 200, len("data: 0\n\n") * 3},
		{"GET", "/hints?status=418", "", 418, 0},
		{"POST", "/early", "body", 413, 0},
		{"GET", "/ready", "", 200, 0},
	} {
		answer, body := ask(t, s, row.method, row.target, row.body)
		if answer.StatusCode != row.status {
			t.Errorf("%s: got status %d, want %d", row.target, answer.StatusCode, row.status)
		}
		if row.length >= 0 && len(body) != row.length {
			t.Errorf("%s: got %d bytes, want %d", row.target, len(body), row.length)
		}
	}
}

func TestEchoReturnsTargetAndBody(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	_, body := ask(t, s, "POST", "/a%2fb?x=1;y=%zz", "hello")
	var got Request
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	if got.Target != "/a%2fb?x=1;y=%zz" || got.BodyLength != 5 || got.BodySHA256 != hello {
		t.Errorf("got %+v, want the original target, 5 bytes and the hash of hello", got)
	}
}

func TestStreamsEndWithEventOrStatus(t *testing.T) {
	app, ending := New(), make(chan struct{})
	app.Ending = ending
	s := httptest.NewUnstartedServer(app)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	events, err := http.Get(s.URL + "/sse?n=100&ms=60000")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	message, sender := io.Pipe()
	defer sender.Close()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodPost, s.URL+"/grpc/stream", message)
	if err != nil {
		t.Fatal(err)
	}
	call, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer call.Body.Close()
	close(ending)
	if body, err := io.ReadAll(events.Body); err != nil || !strings.HasSuffix(string(body), "event: end\ndata: end\n\n") {
		t.Errorf("got %q, %v, want end as the last event", body, err)
	}
	if _, err := io.ReadAll(call.Body); err != nil || call.Trailer.Get("Grpc-Status") != "14" {
		t.Errorf("got %v and trailer %v, want Grpc-Status 14", err, call.Trailer)
	}
}

func TestReadyReturnsConfiguredStatus(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	ask(t, s, "POST", "/ready?status=503", "")
	if answer, _ := ask(t, s, "GET", "/ready", ""); answer.StatusCode != 503 {
		t.Errorf("after POST /ready?status=503: got status %d, want 503", answer.StatusCode)
	}
}

func TestGRPCHealthReturnsReadiness(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	for _, want := range []string{"\x00\x00\x00\x00\x02\x08\x01", "\x00\x00\x00\x00\x02\x08\x02"} {
		answer, body := ask(t, s, "POST", "/grpc.health.v1.Health/Check", "")
		if body != want || answer.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("got %q and trailer %v, want %q and Grpc-Status 0", body, answer.Trailer, want)
		}
		ask(t, s, "POST", "/ready?status=503", "")
	}
}

func TestCountersDoNotCountOwnRequests(t *testing.T) {
	a := New()
	s := httptest.NewServer(a)
	defer s.Close()
	ask(t, s, "GET", "/status/200", "")
	ask(t, s, "GET", "/max", "")
	ask(t, s, "GET", "/seen?id=one", "")
	if got := a.Seen("one"); got != 1 {
		t.Errorf("got %d requests with this ID, want 1", got)
	}
	if got := a.Running(); got.Max != 1 || got.Ended != 1 {
		t.Errorf("got %+v, want a maximum of 1 and 1 completed request", got)
	}
}

func TestDieAbortsResponse(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	answer, err := s.Client().Get(s.URL + "/die?after=10")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got error %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

func TestLedgerIsWrittenBeforeResponse(t *testing.T) {
	var ledger strings.Builder
	a := New()
	a.Ledger = &ledger
	s := httptest.NewServer(a)
	defer s.Close()
	answer, _ := ask(t, s, "GET", "/bytes/5", "")
	if got := answer.Header.Get(IDHeader); got != "one" {
		t.Errorf("got ID %q in the response, want \"one\"", got)
	}
	ask(t, s, "GET", "/max", "")
	if got := ledger.String(); got != "seen one\n" {
		t.Errorf("got lines %q, want one line", got)
	}
}

func TestResetAndGarbageReturnError(t *testing.T) {
	s := httptest.NewServer(New())
	defer s.Close()
	for _, path := range []string{"/reset", "/garbage"} {
		if answer, err := s.Client().Get(s.URL + path); err == nil {
			answer.Body.Close()
			t.Errorf("%s: got status %d, want an error", path, answer.StatusCode)
		}
	}
}

func TestGRPCCallReturnsMessages(t *testing.T) {
	s := httptest.NewUnstartedServer(New())
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	const message = "\x00\x00\x00\x00\x02hi"
	answer, body := ask(t, s, "POST", "/grpc/any", message)
	if body != message || answer.Header.Get("Content-Type") != "application/grpc" || answer.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %q with %v and trailer %v, want the message and Grpc-Status 0", body, answer.Header, answer.Trailer)
	}
}
