package message

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// hidden contains an example of each kind of nonprintable character.
const hidden = "\x00\x1b\r\x7f\u0085\u009b\u00ad\u034f\u061c\u115f\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066\u2069\u3164\ufeff\U000e0041"

func TestPrintableReplacesControlCharacters(t *testing.T) {
	const shown = "a b é 日本 … | \u0301"
	harness.Equal(t, Printable(shown), shown)
	harness.Equal(t, Printable(hidden+"\n\t"), strings.Repeat("\ufffd", utf8.RuneCountInString(hidden)+2))
	harness.Equal(t, Lines("a\n\tb"+"\u202e"), "a\n\tb\ufffd")
}

func TestJSONEscapesHiddenCharacters(t *testing.T) {
	var b bytes.Buffer
	harness.NoError(t, JSON(&b, map[string]string{"a": hidden + "<é>"}))
	if text := strings.TrimRight(b.String(), "\n"); Lines(text) != text || !strings.Contains(text, `\u009b`) || !strings.Contains(text, `\udb40\udc41<é>`) {
		t.Errorf("got %q, want escapes only for characters that are not printable", text)
	}
	var got map[string]string
	harness.NoError(t, json.Unmarshal(b.Bytes(), &got))
	harness.Equal(t, got["a"], hidden+"<é>")
}

func TestWriterReplacesSplitCharacters(t *testing.T) {
	const text = "é\u202e日\x1b[2J\n"
	for size := 1; size < 8; size++ {
		var b bytes.Buffer
		w := Writer{W: &b}
		for rest := []byte(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			n := min(size, len(rest))
			got, err := w.Write(rest[:n])
			harness.Equal(t, got, n, err)
		}
		harness.Equal(t, b.String(), "é\ufffd日\ufffd[2J\n", size)
	}
}

func TestTruncateLimitsBytes(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 3, ""},
		{"12345678", 8, "12345678"},
		{"123456789", 8, "12345…"},
		{"1234é789", 8, "1234…"},
		{"123456é", 8, "123456é"},
		{"1234567é", 8, "12345…"},
		{"日本日本", 3, "…"},
		{"a\xffb", 8, "a\ufffdb"},
		{"\xff\xff\xff\xff", 3, "…"},
		{"a\xff\xff\xff\xff\xff\xff\xffb", 8, "a\ufffdb…"},
		{strings.Repeat("\xffx", 8), 8, "\ufffdx…"},
		{strings.Repeat("é", 1000), 9, "ééé…"},
	} {
		got := Truncate(c.text, c.limit)
		harness.Equal(t, got, c.want, c.text, "limit", c.limit)
		if len(got) > c.limit || !utf8.ValidString(got) {
			t.Errorf("got %q of %d bytes, want at most %d in UTF-8", got, len(got), c.limit)
		}
	}
}
