package http1_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/proxy"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

func TestObservationContainsRequestLine(t *testing.T) {
	server := proxytest.Start(t, harness.NewApp(t, harness.Echo), nil)
	c := server.Dial()
	for i, v := range []struct{ line, target, host string }{
		{"GET /a%2f%zz?b=%zz HTTP/1.1", "/a%2f%zz?b=%zz", "field"},
		{"DELETE http://authority:80/x HTTP/1.1", "http://authority:80/x", "authority:80"},
		{"OPTIONS * HTTP/1.1", "*", "field"},
	} {
		c.Send(v.line + "\r\nHost: field\r\n\r\n")
		c.Receive("GET")
		method, _, _ := strings.Cut(v.line, " ")
		want := transport.Line{Method: method, Target: v.target, Host: v.host, Major: 1, Minor: 1, Remote: c.LocalAddr().String()}
		harness.Equal(t, server.Observed(i + 1)[i].Line, want, v.line)
	}
}

// An HTTP/1.1 app, for example a gRPC-Web proxy, can return gRPC responses.
func TestObservationContainsGRPCStatus(t *testing.T) {
	const trailer = "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\ngrpc-status: %s\r\n\r\n"
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nGrpc-Status: %s\r\nContent-Length: 0\r\n\r\n"
	var answers []string
	want := map[string]string{"0": "OK", "2": "UNKNOWN", "5": "NOT_FOUND", "14": "UNAVAILABLE", "16": "UNAUTHENTICATED", "x": "other"}
	for status := range want {
		answers = append(answers, fmt.Sprintf(trailer, status), fmt.Sprintf(head, status))
	}
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for m := conn.Request(); m != nil; m = conn.Request() {
			i, _ := strconv.Atoi(strings.TrimPrefix(m.Target(), "/"))
			conn.Send(answers[i])
		}
	}), nil)
	c := server.Dial()
	for i, answer := range answers {
		c.Send(fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", i))
		c.Receive("POST")
		_, status, _ := strings.Cut(strings.ToLower(answer), "grpc-status: ")
		status, _, _ = strings.Cut(status, "\r\n")
		harness.Equal(t, server.Observed(i + 1)[i].RPC.String(), want[status], answer)
	}
}

// replacing is a trace that replaces the client's traceparent.
type replacing struct{}

func (replacing) ID() string    { return "id" }
func (replacing) Sampled() bool { return true }

func (replacing) Drop(name string) bool { return strings.EqualFold(name, "traceparent") }

func (replacing) Enter(observation.Phase) {}
func (replacing) Fields() []transport.Field {
	return []transport.Field{{Name: "Traceparent", Value: "ours"}}
}

func (replacing) End(*observation.Observation) {}

func TestTraceReplacesClientFields(t *testing.T) {
	var got string
	var repeats bool
	server := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
		for m := conn.Request(); m != nil; m = conn.Request() {
			slices.Sort(m.Fields)
			conn.Send(harness.OK(strings.Join(m.Fields, "|")))
		}
	}), func(p *proxy.Proxy, _ *proxytest.Options) {
		p.Trace = func(x transport.Exchange) proxy.Trace {
			got, repeats = strings.Clone(x.Header("Traceparent")), x.Repeats("Traceparent")
			return replacing{}
		}
	})
	c := server.Dial()
	for i, v := range []struct {
		sent    string
		want    string
		repeats bool
	}{
		{"", "", false},
		{"tRaceparent: theirs\r\n", "theirs", false},
		{"traceparent: one\r\nTRACEPARENT: two\r\n", "one", true},
	} {
		c.Send("GET / HTTP/1.1\r\nHost: a\r\nX-Other: kept\r\n" + v.sent + "\r\n")
		c.WantBody("host: a|traceparent: ours|x-forwarded-for: 127.0.0.1|x-other: kept")
		server.Observed(i + 1)
		if got != v.want || repeats != v.repeats {
			t.Errorf("%q: got %q, repeats %t, want %q, %t", v.sent, got, repeats, v.want, v.repeats)
		}
	}
}
