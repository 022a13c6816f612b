package http1_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/test/harness"
	"github.com/queue-proxy/queue-proxy/test/proxytest"
)

// Those who count and tell see the same request by either engine, byte for byte.
func TestBothEnginesTellTheSameOfARequest(t *testing.T) {
	for _, slow := range []bool{false, true} {
		proxy := proxytest.Start(t, harness.NewApp(t, harness.Echo), func(_ *queue.Proxy, s *proxytest.Options) { s.NetHTTP = slow })
		c := proxy.Dial()
		for i, v := range []struct{ line, target, host string }{
			{"GET /a%2f?b=%zz HTTP/1.1", "/a%2f?b=%zz", "field"}, // in a path net/http refuses it
			{"DELETE http://authority:80/x HTTP/1.1", "http://authority:80/x", "authority:80"},
			{"OPTIONS * HTTP/1.1", "*", "field"},
		} {
			c.Send(v.line + "\r\nHost: field\r\n\r\n")
			c.Receive("GET")
			method, _, _ := strings.Cut(v.line, " ")
			want := queue.Line{Method: method, Target: v.target, Host: v.host, Major: 1, Minor: 1, Remote: c.LocalAddr().String()}
			if got := proxy.Observed(i + 1)[i].Line; got != want {
				t.Errorf("%s, net/http %t: got %+v, want %+v", v.line, slow, got, want)
			}
		}
	}
}

// replacing is a trace that has its own word in the place of the client's.
type replacing struct{}

func (replacing) ID() string { return "id" }

func (replacing) Drop(name string) bool { return strings.EqualFold(name, "traceparent") }

func (replacing) Enter(queue.Phase)     {}
func (replacing) Fields() []queue.Field { return []queue.Field{{Name: "Traceparent", Value: "ours"}} }

func (replacing) End(*queue.Observation) {}

func TestATraceReplacesTheClientsFieldsInBothEngines(t *testing.T) {
	for _, slow := range []bool{false, true} {
		var heard string
		var repeats bool
		proxy := proxytest.Start(t, harness.NewApp(t, func(conn *harness.AppConn) {
			for m := conn.Request(); m != nil; m = conn.Request() {
				slices.Sort(m.Fields)
				conn.Send(harness.OK(strings.Join(m.Fields, "|")))
			}
		}), func(p *queue.Proxy, s *proxytest.Options) {
			s.NetHTTP = slow
			p.Trace = func(x queue.Exchange) queue.Trace {
				heard, repeats = strings.Clone(x.Header("Traceparent")), x.Repeats("Traceparent")
				return replacing{}
			}
		})
		c := proxy.Dial()
		for i, v := range []struct {
			sent    string
			heard   string
			repeats bool
		}{
			{"", "", false},
			{"tRaceparent: theirs\r\n", "theirs", false},
			{"traceparent: one\r\nTRACEPARENT: two\r\n", "one", true},
		} {
			c.Send("GET / HTTP/1.1\r\nHost: a\r\nX-Other: kept\r\n" + v.sent + "\r\n")
			c.WantBody("host: a|traceparent: ours|x-forwarded-for: 127.0.0.1|x-other: kept")
			proxy.Observed(i + 1)
			if heard != v.heard || repeats != v.repeats {
				t.Errorf("%q, net/http %t: got %q, repeats %t, want %q, %t", v.sent, slow, heard, repeats, v.heard, v.repeats)
			}
		}
	}
}
