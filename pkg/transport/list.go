package transport

import "iter"

// Members yields the members of a list without changing them. A comma in a quoted string is not a separator (RFC
// 9110 sections 5.6.1 and 5.6.4). A member with an unterminated quoted string is omitted, because a recipient that
// joins it with the next line could parse it as several members (RFC 9651 section 4.2).
func Members(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		quoted, start := false, 0
		for i := 0; i < len(list); i++ {
			switch c := list[i]; {
			case quoted && c == '\\':
				i++
			case c == '"':
				quoted = !quoted
			case c == ',' && !quoted:
				if !yield(list[start:i]) {
					return
				}
				start = i + 1
			}
		}
		if !quoted {
			yield(list[start:])
		}
	}
}
