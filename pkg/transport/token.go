package transport

// text is the constraint for functions that accept field names and values as byte slices or strings.
type text interface{ ~[]byte | ~string }

// tchar contains the characters of a token (RFC 9110 section 5.6.2).
var tchar = [256]bool{
	'!': true, '#': true, '$': true, '%': true, '&': true, '\'': true, '*': true, '+': true,
	'-': true, '.': true, '^': true, '_': true, '`': true, '|': true, '~': true,
	'0': true, '1': true, '2': true, '3': true, '4': true, '5': true, '6': true, '7': true, '8': true, '9': true,
	'A': true, 'B': true, 'C': true, 'D': true, 'E': true, 'F': true, 'G': true, 'H': true, 'I': true,
	'J': true, 'K': true, 'L': true, 'M': true, 'N': true, 'O': true, 'P': true, 'Q': true, 'R': true,
	'S': true, 'T': true, 'U': true, 'V': true, 'W': true, 'X': true, 'Y': true, 'Z': true,
	'a': true, 'b': true, 'c': true, 'd': true, 'e': true, 'f': true, 'g': true, 'h': true, 'i': true,
	'j': true, 'k': true, 'l': true, 'm': true, 'n': true, 'o': true, 'p': true, 'q': true, 'r': true,
	's': true, 't': true, 'u': true, 'v': true, 'w': true, 'x': true, 'y': true, 'z': true,
}

// IsTokenChar reports whether a token, such as a method or a field name, can contain c.
func IsTokenChar(c byte) bool { return tchar[c] }

// EqualFold reports whether a and b are equal. It ignores the case of ASCII letters. Field names
// and tokens are compared in this way (RFC 9110 section 5.1).
func EqualFold[A, B text](a A, b B) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if a[i] != b[i] && Lower(a[i]) != Lower(b[i]) {
			return false
		}
	}
	return true
}

// Lower returns the lower case of an ASCII letter. It returns other bytes unchanged.
func Lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}
