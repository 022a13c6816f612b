package message

import "unicode/utf8"

const hex = "0123456789abcdef"

// AppendJSONString appends s as a JSON string (RFC 8259 section 7) with at most limit bytes between the quotes. Bytes
// that are not valid UTF-8 are replaced with U+FFFD. In contrast to [Truncate], the limit applies to the escaped text,
// and AppendJSONString allocates memory only if the capacity of b is too small.
func AppendJSONString(b []byte, s string, limit int) []byte {
	b = append(b, '"')
	if len(s) <= limit && isPlain(s) {
		return append(append(b, s...), '"')
	}
	end, tail := len(b)+limit, len(b)
	for i := 0; i < len(s); {
		size := 1
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			var r rune
			switch r, size = utf8.DecodeRuneInString(s[i:]); {
			case r == utf8.RuneError && size == 1:
				b = append(b, `\ufffd`...)
			case r < 0xa0: // for example, U+009B starts a control sequence in a terminal
				b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
			case r == '\u2028' || r == '\u2029': // line separators in some programs
				b = append(b, '\\', 'u', '2', '0', '2', hex[r&15])
			default:
				b = append(b, s[i:i+size]...)
			}
		}
		if len(b) > end {
			b = append(b[:tail], ellipsis...)
			break
		}
		if len(b) <= end-len(ellipsis) {
			tail = len(b) // end of the last character after which the ellipsis fits
		}
		i += size
	}
	return append(b, '"')
}

// isPlain reports whether s needs no escape sequences in a JSON string, which is usually true.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
