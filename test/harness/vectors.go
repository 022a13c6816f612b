package harness

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	repeated = regexp.MustCompile(`\\\{(\d+)\*([^}]*)\}`)
	escaped  = regexp.MustCompile(`\\(r|n|t|0|\\|x[0-9a-fA-F]{2})`)
)

// Unescape replaces the escape sequences that test/conformance/doc.go describes.
func Unescape(text string) string {
	text = repeated.ReplaceAllStringFunc(text, func(s string) string {
		m := repeated.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[1])
		return strings.Repeat(m[2], n)
	})
	return escaped.ReplaceAllStringFunc(text, func(s string) string {
		if i := strings.IndexByte("rnt0\\", s[1]); i >= 0 {
			return "\r\n\t\x00\\"[i : i+1]
		}
		n, _ := strconv.ParseUint(s[2:], 16, 8)
		return string([]byte{byte(n)})
	})
}

// WireLine returns the text of a line after > or | in a vector of test/conformance.
func WireLine(text string) string {
	text = strings.TrimPrefix(text, " ")
	if bare, found := strings.CutSuffix(text, `\`); found && !strings.HasSuffix(bare, `\`) {
		return Unescape(bare)
	}
	return Unescape(text) + "\r\n"
}
