package proxy

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// grpcMedia matches the media types of gRPC requests (grpc/doc/PROTOCOL-HTTP2.md).
var grpcMedia = regexp.MustCompile(`^application/grpc([+;](?s:.*))?$`)

// FuzzAnswers sends arbitrary fields. The response to a probe must match the table of
// docs/promises.md section 1. The response to a rejected request must use gRPC if and only if the
// request uses gRPC.
func FuzzAnswers(f *testing.F) {
	f.Add("queue", "", "", "", "the app refuses connections")
	f.Add("probe", "hash", "kube-probe/1.3", "application/grpc", "")
	f.Add("probe", "", "", "application/grpc-web", "")
	f.Add("Queue", "", "", "application/grpc;x", "")
	f.Add(strings.Repeat("\xe9", 300), strings.Repeat("h", 4097), "Knative-Activator-Probe/1", "application/grpc+proto", "x")
	f.Fuzz(func(t *testing.T, probe, hash, agent, media, reason string) {
		x := newFake("/", "K-Network-Probe", probe, "K-Network-Hash", hash, "User-Agent", agent, "Content-Type", media)
		h := newTestProxy()
		h.Ready = func(context.Context) error {
			if reason != "" {
				return errors.New(reason)
			}
			return nil
		}
		status, body, echo := 0, "", ""
		switch {
		case probe == "queue" && reason == "":
			status, body = 200, "queue"
		case probe == "queue":
			status, body = 503, reason+"\n"
		case probe == "probe" && hash == "":
			status, body = 400, "a probe request must contain a non-empty \"K-Network-Hash\" header\n"
		case probe == "probe" && len(hash) > 4096:
			status, body = 400, "the \"K-Network-Hash\" header is longer than 4 KiB\n"
		case probe == "probe":
			status, echo = 200, hash
		case probe != "":
			status, body = 400, "unexpected probe header value: "+string([]byte(probe)[:min(256, len(probe))])+"\n"
		case strings.Index(agent, "Knative-Activator-Probe") == 0, strings.Index(agent, "Knative-Autoscaling-Probe") == 0:
			status, body = 400, "unexpected probe header value: \n"
		}
		h.serve(x)
		switch {
		case status == 0 && (x.forwarded != 1 || len(x.answers) != 0):
			t.Errorf("got %d answers and %d forwarded requests, want one forwarded request", len(x.answers), x.forwarded)
		case status == 0:
		case x.forwarded != 0 || len(x.answers) != 1:
			t.Errorf("got %d answers and %d forwarded requests, want one answer", len(x.answers), x.forwarded)
		default:
			if a := x.answers[0]; a.status != status || a.body != body || a.hash != echo || a.grpc >= 0 {
				t.Errorf("probe %q, hash %q, agent %q: got %+v, want %d %q and the hash %q", probe, hash, agent, a, status, body, echo)
			}
		}
		a := answerFor(&observation.Observation{Reason: observation.QueueFull}, x)
		if want := grpcMedia.MatchString(media); a.grpc >= 0 != want || a.status == 200 != want || a.body == "" != want {
			t.Errorf("%q: got %+v, want gRPC %t", media, a, want)
		}
	})
}

// Parts of a request target that are not a part of the path (RFC 9112 section 3.2).
var (
	query     = regexp.MustCompile(`(?s)\?.*$`)
	authority = regexp.MustCompile(`(?s)^(?:[^/].*?)??://[^/]*`)
)

// FuzzExclude compares the result with a regular expression for each pattern (docs/promises.md
// 3.10).
func FuzzExclude(f *testing.F) {
	f.Add("/healthz", "/healthz?x", "", "")
	f.Add("/a*", "/a/b", "Prometheus/", "Prometheus/2.4")
	f.Add("/a*", "http://h/ab", "x", "")
	f.Add("/", "http://h?y", "", "")
	f.Fuzz(func(t *testing.T, pattern, target, prefix, agent string) {
		if pattern == "" || pattern[0] != '/' || strings.Contains(strings.TrimSuffix(pattern, "*"), "*") {
			return // package config rejects such patterns
		}
		if !utf8.ValidString(pattern + " " + target) {
			return // the regular expressions match runes
		}
		x := newFake("/", transport.UserAgent, agent)
		o := &observation.Observation{Exchange: x, Line: transport.Line{Method: "GET", Target: target, Major: 1, Minor: 1}}
		e := Exclude{Paths: []string{pattern}}
		if prefix != "" {
			e.UserAgents = []string{prefix}
		}
		literal, more := strings.CutSuffix(pattern, "*")
		expression := `^` + regexp.QuoteMeta(literal)
		if !more {
			expression += `$`
		}
		path := query.ReplaceAllString(target, "")
		if rest := authority.ReplaceAllString(path, ""); rest != path {
			path = "/" + strings.TrimPrefix(rest, "/")
		}
		want := regexp.MustCompile(expression).MatchString(path) || prefix != "" && strings.Index(agent, prefix) == 0
		if got := e.has(o); got != want {
			t.Errorf("%q and %q of %q and %q: got excluded %t, want %t", pattern, prefix, target, agent, got, want)
		}
	})
}
