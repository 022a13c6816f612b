package wire

import (
	"iter"
	"strconv"
	"unsafe"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// text is the constraint for functions that accept byte slices and strings.
type text interface{ ~[]byte | ~string }

// ValidToken reports whether s is a token, such as a method or a field name (RFC 9110 section
// 5.6.2). The empty string is not a token.
func ValidToken[T text](s T) bool {
	for i := range len(s) {
		if !transport.IsTokenChar(s[i]) {
			return false
		}
	}
	return len(s) > 0
}

// ValidValue reports whether s is valid as a field value. A field value must not contain control characters except
// for the tab (RFC 9110 section 5.5). The empty string is valid.
func ValidValue[T text](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// HasToken reports whether a comma-separated list contains the member token. It ignores case (RFC 9110 section
// 5.6.1). A member that has parameters is not equal to token.
func HasToken[A, B text](value A, token B) bool {
	for member := range Members(value) {
		if transport.EqualFold(member, token) {
			return true
		}
	}
	return false
}

// Members iterates over the members of a comma-separated list without the whitespace around them. A
// member can be empty (RFC 9110 section 5.6.1).
func Members[T text](list T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for begin, end := 0, 0; begin <= len(list); begin = end + 1 {
			for end = begin; end < len(list) && list[end] != ','; {
				end++
			}
			if !yield(Trim(list[begin:end])) {
				return
			}
		}
	}
}

// countTokens returns the number of members of a list that are not empty. If a member is not a token, ok is false,
// and countTokens does not count the members after it.
func countTokens(value []byte) (n int, ok bool) {
	for member := range Members(value) {
		if len(member) == 0 {
			continue
		}
		if n++; !ValidToken(member) {
			return n, false
		}
	}
	return n, true
}

// Expectation reports whether the value of an Expect field contains 100-continue, and whether the value contains
// another expectation. Empty members of the list are ignored (RFC 9110 sections 5.6.1 and 10.1.1).
func Expectation[T text](value T) (continues, other bool) {
	for member := range Members(value) {
		if transport.EqualFold(member, "100-continue") {
			continues = true
		} else if len(member) > 0 {
			other = true
		}
	}
	return continues, other
}

// Find returns the value of the first field with the given name. It ignores case.
func Find[T text](fields []Field, name T) (value []byte, ok bool) {
	for i := range fields {
		if transport.EqualFold(fields[i].Name, name) {
			return fields[i].Value, true
		}
	}
	return nil, false
}

// Repeats reports whether there is more than one field with the given name. It ignores case.
func Repeats[T text](fields []Field, name T) bool {
	n := 0
	for i := range fields {
		if transport.EqualFold(fields[i].Name, name) {
			n++
		}
	}
	return n > 1
}

// String returns b as a string without a copy. The string is valid until b is modified.
func String(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Bytes returns s as a byte slice without a copy. The slice must not be modified.
func Bytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

func blank(c byte) bool { return c == ' ' || c == '\t' }
func digit(c byte) bool { return '0' <= c && c <= '9' }

// hex returns the value of a hexadecimal digit, or -1.
func hex(c byte) int {
	switch {
	case digit(c):
		return int(c - '0')
	case 'a' <= transport.Lower(c) && transport.Lower(c) <= 'f':
		return int(transport.Lower(c)-'a') + 10
	}
	return -1
}

// Trim removes whitespace from both ends of s (OWS, RFC 9110 section 5.6.3).
func Trim[T text](s T) T {
	for len(s) > 0 && blank(s[0]) {
		s = s[1:]
	}
	for len(s) > 0 && blank(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// decimal parses 1*DIGIT. ok is false if the number is not a valid int64.
func decimal(s []byte) (n int64, ok bool) {
	u, err := strconv.ParseUint(String(s), 10, 63)
	return int64(u), err == nil
}
