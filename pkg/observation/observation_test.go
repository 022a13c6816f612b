package observation

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestShownIsTruncatedAndPrintable(t *testing.T) {
	long := strings.Repeat("x", maxShown)
	for in, want := range map[string]string{
		"":                            "",
		"/a?b":                        "/a?b",
		"/é😀":                         "/é😀",
		"/a\nb\x1b[2J\x7f":            "/a\ufffdb\ufffd[2J\ufffd",
		"/\u009b2J\u0085\u2028\u2029": "/\ufffd2J\ufffd\ufffd\ufffd",
		"/\xff\xc3":                   "/\ufffd\ufffd",
		long:                          long,
		long + "x":                    long[:maxShown-3] + "…",
		long[:maxShown-1] + "é":       long[:maxShown-3] + "…",
		long[:maxShown-2] + "é":       long[:maxShown-2] + "é",
	} {
		harness.Equal(t, Shown(in), want, in)
	}
	for _, in := range []string{strings.Repeat("\xff", 1<<20), strings.Repeat("\u2028", 1<<20), strings.Repeat("x", 1<<20)} {
		if got := Shown(in); len(got) > maxShown || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("%.10q...: got %d bytes, want at most %d that end in an ellipsis", in, len(got), maxShown)
		}
	}
}

type anyRequest = transport.Request // the name of the embedded field must differ from the method Request

// sentFields is a request with header fields.
type sentFields struct {
	anyRequest
	fields fieldsOf
}

func (r sentFields) Header(name string) string { return r.fields.Header(name) }

func TestLogTraceID(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, c := range []struct{ name, ours, parent, b3, single, want string }{
		{"ID of the sidecar", id, "00-ffffffffffffffffffffffffffffffff-00f067aa0ba902b7-01", "", "", id},
		{"Traceparent", "", "00-" + id + "-00f067aa0ba902b7-01", "1234567890abcdef", "", id},
		{"X-B3-TraceId", "", "", "1234567890abcdef", id + "-00f067aa0ba902b7-1", "1234567890abcdef"},
		{"Traceparent with one part", "", "hello", "1234567890abcdef", "", "1234567890abcdef"},
		{"single b3 field", "", "", "", id + "-00f067aa0ba902b7-1", id},
		{"single b3 field with 64 bits", "", "", "", "1234567890abcdef-00f067aa0ba902b7", "1234567890abcdef"},
		{"decision in single b3 field", "", "", "", "d", ""},
		{"invalid ID in single b3 field", "", "", "", `"}-1`, ""},
		{"none", "", "", "", "", ""},
		{"invalid ID", "", `00-","x":"-y`, "", "", ""},
		{"invalid ID in B3", "", "", `"}`, "", ""},
		{"too long", "", "00-" + id + "0-1", "", "", ""},
	} {
		o := &Observation{TraceID: c.ours, Exchange: sentFields{fields: fieldsOf{"Traceparent": c.parent, "X-B3-Traceid": c.b3, "B3": c.single}}}
		harness.Equal(t, o.LogTraceID(), c.want, c.name)
	}
	harness.Equal(t, (&Observation{}).LogTraceID(), "", "without a request")
}
