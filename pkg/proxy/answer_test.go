package proxy

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// fieldsOf returns the fields of an answer, one per line.
func fieldsOf(a *answer) string {
	var b strings.Builder
	a.Fields(func(name, value string) { b.WriteString(name + ": " + value + "\n") })
	return b.String()
}

// TestAnswerForEachReason checks the HTTP and gRPC responses (docs/promises.md 3.2 and 3.6).
func TestAnswerForEachReason(t *testing.T) {
	for _, c := range []struct {
		reason observation.Reason
		status int
		body   string
		proxy  string // parameters of Proxy-Status
		retry  bool   // the response contains Retry-After: 1, and a pushback for gRPC
		grpc   int    // grpc-status; the response has no pushback if it is 8
	}{
		{observation.QueueFull, 503, "pending request queue full\n", `error=connection_limit_reached; details="queue-full"`, true, 14},
		{observation.Overload, 503, "not enough memory for requests\n", `error=connection_limit_reached; details="overload"`, true, 8},
		{observation.QueueTimeout, 503, "pending request queue full\n", `error=connection_limit_reached; details="queue-timeout"`, true, 14},
		{observation.NotReady, 503, "not ready\n", `error=destination_unavailable; details="not-ready"`, false, 14},
		{observation.Draining, 503, "shutting down\n", `error=destination_unavailable; details="draining"`, false, 14},
		{observation.RequestTimeout, 504, "request timeout", `error=http_response_timeout; details="request-timeout"`, false, 4},
		{observation.ResponseStartTimeout, 504, "request timeout", `error=http_response_timeout; details="response-start-timeout"`, false, 4},
		{observation.IdleTimeout, 504, "request timeout", `error=connection_read_timeout; details="idle-timeout"`, false, 4},
		{observation.ClientSlow, 408, "request timeout", `error=http_request_error; details="client-slow"`, false, 4},
		{observation.AppUnreachable, 502, "the app cannot be reached\n", `error=connection_refused; details="app-unreachable"`, false, 14},
		{observation.Local, 500, "no resources for a connection to the app\n", `error=proxy_internal_error; details="local"`, false, 14},
		{observation.AppReset, 502, "connection to the app closed unexpectedly\n", `error=connection_terminated; details="app-reset"`, false, 14},
		{observation.AppGarbage, 502, "invalid HTTP response of the app\n", `error=http_protocol_error; details="app-garbage"`, false, 13},
		{observation.BadRequest, 400, "bad request\n", `error=http_request_error; details="bad-request"`, false, 3},
		{observation.TooLarge, 413, "request body too large\n", `error=http_request_error; details="bad-request"`, false, 8},
		{observation.HeadTooLarge, 431, "request header fields too large\n", `error=http_request_error; details="bad-request"`, false, 8},
	} {
		status := "Proxy-Status: queue-proxy; " + c.proxy + "\n"
		if c.retry {
			status += "Retry-After: 1\n"
		}
		grpc := strings.TrimSuffix(status, "Retry-After: 1\n")
		if pushback := c.grpc != 8; pushback {
			grpc = status
		}
		a := answerFor(&observation.Observation{Reason: c.reason}, newFake("/", "Content-Type", "text/html"))
		harness.Equal(t, fmt.Sprintf("%d %s", a.status, a.body), fmt.Sprintf("%d %s", c.status, c.body), c.reason.String())
		harness.Equal(t, fieldsOf(&a), status+"Content-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\n", c.reason.String()+" fields")

		a = answerFor(&observation.Observation{Reason: c.reason}, newFake("/", "Content-Type", "application/grpc"))
		harness.Equal(t, fmt.Sprintf("%d %q", a.status, a.body), `200 ""`, c.reason.String()+" to gRPC")
		want := grpc + fmt.Sprintf("Content-Type: application/grpc\nGrpc-Status: %d\nGrpc-Message: %v\n", c.grpc, c.reason)
		if c.retry && c.grpc != 8 {
			want += fmt.Sprintf("Grpc-Retry-Pushback-Ms: %d\n", a.pushback)
		}
		harness.Equal(t, fieldsOf(&a), want, c.reason.String()+" fields to gRPC")
	}
	harness.Equal(t, observation.ClientGone.Status(), 499, "status of a disconnected client")
	harness.Equal(t, int(observation.NumReasons), 18, "number of reasons")
}

// The promises list the error type of each reason in Proxy-Status.
func TestPromisesListAllReasons(t *testing.T) {
	text, err := os.ReadFile("../../docs/promises.md")
	harness.NoError(t, err)
	for reason := range observation.NumReasons {
		if reason.ErrorType() == "" {
			continue
		}
		row := regexp.MustCompile("(?m)^\\|.*`" + reason.String() + "`.*\\| " + reason.ErrorType() + " \\|$")
		if !row.Match(text) {
			t.Errorf("docs/promises.md 3.6: no row for %v with the error type %s", reason, reason.ErrorType())
		}
	}
}

func TestGRPCErrorKeepsMediaType(t *testing.T) {
	long := "application/grpc+" + strings.Repeat("x", maxMediaType)
	for contentType, want := range map[string]string{
		"application/grpc":                     "application/grpc",
		"application/grpc+json":                "application/grpc+json",
		"application/grpc+proto ; charset=x":   "application/grpc+proto",
		"application/grpc;application/grpc+no": "application/grpc",
		long:                                   "application/grpc",
	} {
		a := answerFor(&observation.Observation{Reason: observation.AppReset}, newFake("/", "Content-Type", contentType))
		var got string
		a.Fields(func(name, value string) {
			if name == "Content-Type" {
				got = value
			}
		})
		harness.Equal(t, got, want, contentType)
	}
}

// The pushback is a random value from 500 to 1500 ms (docs/promises.md 3.2).
func TestQueueFullPushbackIsRandom(t *testing.T) {
	seen := map[int]bool{}
	for range 1000 {
		a := answerFor(&observation.Observation{Reason: observation.QueueFull}, newFake("/", "Content-Type", "application/grpc"))
		if a.pushback < 500 || a.pushback > 1500 {
			t.Fatalf("got %d ms, want 500 to 1500", a.pushback)
		}
		seen[a.pushback] = true
	}
	if len(seen) < 100 {
		t.Errorf("got %d different values in 1000 responses, want more", len(seen))
	}
}

func TestAnswerSizeIsBodyLength(t *testing.T) {
	for _, c := range []struct {
		method, media string
		reason        observation.Reason
		want          int64
	}{
		{"GET", "", observation.RequestTimeout, 15},
		{"POST", "", observation.QueueFull, 27},
		{"HEAD", "", observation.RequestTimeout, 0},
		{"POST", "application/grpc", observation.QueueFull, 0},
	} {
		h := newTestProxy()
		f := newFake("/", "Content-Type", c.media)
		f.request.Method = c.method
		f.app = func(*RequestState) transport.Result { return transport.Result{Err: reasonError(c.reason)} }
		h.serve(f)
		harness.Equal(t, h.of(t, f).Out, c.want, fmt.Sprintf("%s %s %v", c.method, c.media, c.reason))
	}
}

func TestReasonWordsAreUniqueExceptBadRequest(t *testing.T) {
	seen := map[string]observation.Reason{}
	for reason := observation.OK; reason < observation.NumReasons; reason++ {
		word := reason.String()
		if word == "" || reason.Status() == 0 {
			t.Errorf("reason %d: got word %q, status %d, want both", reason, word, reason.Status())
		}
		if other, twice := seen[word]; twice && reason != observation.TooLarge && reason != observation.HeadTooLarge {
			t.Errorf("reason %d: got %q, want a word that differs from reason %d", reason, word, other)
		}
		seen[word] = reason
	}
}

func TestSuccessfulProbeHasNoProxyStatusError(t *testing.T) {
	queue := answer{status: 200, body: "queue", grpc: -1}
	harness.Equal(t, fieldsOf(&queue), "Proxy-Status: queue-proxy\nContent-Type: text/plain; charset=utf-8\n", "queue probe")
	network := answer{status: 200, hash: "abc", grpc: -1}
	harness.Equal(t, fieldsOf(&network), "Proxy-Status: queue-proxy\nK-Network-Hash: abc\n", "network probe")
}

func TestIsGRPCAcceptsSuffixes(t *testing.T) {
	for media, want := range map[string]bool{
		"":                                  false,
		"application/grpc":                  true,
		"application/grpc+proto":            true,
		"application/grpc;charset=utf-8":    true,
		"application/grpc-web":              false,
		"application/grpc-web+proto":        false,
		"application/grpcx":                 false,
		"application/json":                  false,
		"text/plain; was=application/grpc":  false,
		"application/json;application/grpc": false,
	} {
		harness.Equal(t, transport.IsGRPC(media), want, media)
	}
}

// The format of grpc-timeout is specified in gRPC PROTOCOL-HTTP2, section "Requests".
func TestGRPCTimeoutExpires(t *testing.T) {
	for _, c := range []struct {
		timeout string
		after   time.Duration
		want    bool
	}{
		{"5m", 5 * time.Millisecond, true},
		{"5m", 4 * time.Millisecond, false},
		{"2S", 2 * time.Second, true},
		{"1M", time.Minute - 1, false},
		{"1H", time.Hour, true},
		{"7u", 7 * time.Microsecond, true},
		{"7n", 7, true},
		{"0S", 0, true},
		{"99999999H", 1<<63 - 1, false},
		{"123456789n", time.Hour, false}, // nine digits
		{"", time.Hour, false},
		{"5", time.Hour, false},
		{"m", time.Hour, false},
		{"-1m", time.Hour, false},
		{"5x", time.Hour, false},
	} {
		harness.Equal(t, grpcExpired(c.timeout, c.after), c.want, c.timeout, "after", c.after)
	}
}

// canceled is the error of a stream that the user container canceled.
type canceled struct{}

func (canceled) Error() string   { return "canceled" }
func (canceled) GRPCStatus() int { return grpcCancelled }

func TestGRPCStatusOfFailedCall(t *testing.T) {
	for _, c := range []struct {
		reason  observation.Reason
		reset   error // nil if the stream was not reset
		timeout string
		want    int
	}{
		{observation.AppReset, nil, "", 14},
		{observation.AppReset, canceled{}, "", 1},
		{observation.AppReset, canceled{}, "1n", 4},
		{observation.AppReset, canceled{}, "1H", 1},
		{observation.AppReset, nil, "1n", 4},
		{observation.AppUnreachable, nil, "1n", 4},
		{observation.QueueFull, nil, "1n", 14}, // the call can be repeated, because the application did not receive it
	} {
		o := &observation.Observation{Start: time.Now().Add(-time.Second), Reason: c.reason, Result: transport.Result{Err: c.reset}}
		a := answerFor(o, newFake("/", "Content-Type", "application/grpc", "Grpc-Timeout", c.timeout))
		harness.Equal(t, a.grpc, c.want, c.reason, c.reset, c.timeout)
	}
}
