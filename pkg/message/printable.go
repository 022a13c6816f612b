// Package message prepares text for people. It replaces characters that a terminal interprets or does
// not show, truncates text, encodes JSON, suggests names that are similar to a misspelled name, and
// limits the rate of log messages.
package message

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// isPrintable reports whether a terminal shows r. Control characters (C0 and C1), line separators and
// format characters such as bidirectional overrides and zero-width spaces are not printable.
func isPrintable(r rune) bool {
	return unicode.IsPrint(r) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// Printable replaces each character of s that is not printable, including line feeds, with U+FFFD.
func Printable(s string) string { return replace(s, "") }

// Lines is like [Printable], but it keeps line feeds and tabs.
func Lines(s string) string { return replace(s, "\n\t") }

func replace(s, kept string) string {
	return strings.Map(func(r rune) rune {
		if isPrintable(r) || strings.ContainsRune(kept, r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// Count returns n and noun, with noun in the plural unless n is 1, such as "2 pods".
func Count[N int | uint32 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// ellipsis is the suffix of a truncated string.
const ellipsis = "…"

// Truncate returns s as valid UTF-8 with at most limit bytes. limit must be at least 3. If s is longer than
// limit, the result ends in an ellipsis. The running time depends only on limit.
func Truncate(s string, limit int) string {
	long := len(s) > limit
	s = strings.ToValidUTF8(s[:min(len(s), limit+1)], string(unicode.ReplacementChar))
	if !long && len(s) <= limit {
		return s
	}
	end := min(len(s), limit-len(ellipsis))
	for end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}

// Excerpt returns a printable copy of s with at most limit bytes for logs and pages. limit must be at least 3. The
// running time depends only on limit.
func Excerpt(s string, limit int) string {
	return strings.Clone(Truncate(Printable(s[:min(len(s), limit+1)]), limit))
}

// JSON writes v as indented JSON to w. Characters that are not printable are escaped, so that a program
// that parses the JSON obtains the original text.
func JSON(w io.Writer, v any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escape(b.String()))
	return err
}

// CompactJSON returns v as JSON without white space. HTML characters are not escaped. The keys of maps
// are sorted, so that equal values have the same encoding. It panics if v cannot be encoded.
func CompactJSON(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("message: encode JSON: " + err.Error())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// escape escapes the characters of a JSON document that are not printable, except for line feeds.
// In JSON, line feeds occur only between values, and the other characters occur only in strings.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if isPrintable(r) || r == '\n' {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// A Writer replaces characters as [Lines] does and writes the result to W. If a write ends with an
// incomplete character, the bytes of this character are kept until the next write. A Writer must not be
// used concurrently.
type Writer struct {
	W io.Writer

	partial []byte // start of a character, at most utf8.UTFMax-1 bytes
}

// Write implements io.Writer. It returns len(p) unless W returns an error.
func (w *Writer) Write(p []byte) (int, error) {
	text := append(w.partial, p...)
	n := len(text)
	for i := max(0, n-utf8.UTFMax+1); i < n; i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			n = i
			break
		}
	}
	_, err := io.WriteString(w.W, Lines(string(text[:n])))
	w.partial = append([]byte(nil), text[n:]...)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
