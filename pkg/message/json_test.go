package message

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestAppendJSONStringEscapesAndTruncates(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"", 8, `""`},
		{"plain", 8, `"plain"`},
		{"a\"\\\n\r\t\x00\x7f", 64, `"a\"\\\n\u000d\t\u0000\u007f"`},
		{"\xff\xc3", 64, `"\ufffd\ufffd"`},
		{"é€😀", 64, `"é€😀"`},
		{"\u0080\u009b\u00a0\u2027\u2028\u2029\u202a", 64, `"\u0080\u009b` + "\u00a0\u2027" + `\u2028\u2029` + "\u202a" + `"`},
		{"12345678", 8, `"12345678"`},
		{"123456789", 8, `"12345…"`},
		{"12345é78", 8, `"12345…"`},
		{"1234é789", 8, `"1234…"`},
		{strings.Repeat("\x01", 9), 15, `"\u0001\u0001…"`},
	} {
		got := string(AppendJSONString(nil, c.in, c.limit))
		harness.Equal(t, got, c.want, c.in, "in", c.limit, "bytes")
	}
}
