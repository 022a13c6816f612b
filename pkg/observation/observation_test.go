package observation

import (
	"strings"
	"testing"
	"unicode/utf8"

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
