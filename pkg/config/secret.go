package config

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// hidden stands where a secret would.
const hidden = "***"

// What the tag "hide" may say.
const (
	hideAll = "all"
	hideURL = "url"
)

// shown is the value of a setting as people and logs may see it.
func shown(f *field) string {
	value := f.String()
	hide, _ := f.setting.(interface{ shown() string })
	switch {
	case value == "":
		return ""
	case f.tag.Get("hide") == hideAll:
		return hidden
	case f.tag.Get("hide") == hideURL:
		value = safeEndpoint(value)
	case hide != nil:
		value = hide.shown()
	}
	return safe(value)
}

// quote makes a value fit for a line of an error.
func quote(text string) string {
	const enough = 120 // bytes: a path, an endpoint, the beginning of a template
	text = safe(text)
	if len(text) > enough {
		return strconv.Quote(strings.ToValidUTF8(text[:enough], "")) + "..."
	}
	return strconv.Quote(text)
}

// A process that shows nothing in which there may be a secret needs neither of them, which
// take several KB.
var (
	jsonString = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)"(?:[^"\\]|\\.)*"`) })
	// schemeless is a URL behind its scheme; in an escaped text a slash may have a backslash before it.
	schemeless = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`:(?://|\\/\\/)[^" \t\r\n]*`) })
)

// safe hides what may be a secret in a text: user, password, query and fragment of
// every URL, and of every endpoint in JSON. The rest stays as it is.
//
// JSON is not taken apart, so that a text is shown in the order and with the blanks
// that it was written in, also where it has an error. Its strings are looked at one by
// one, because a slash can be written in two ways there and a letter in many.
func safe(text string) string {
	if !strings.ContainsAny(text, `@?#\`) {
		return text
	}
	var shown strings.Builder
	name, done := "", 0 // the string before, and what has been shown
	for _, span := range jsonString().FindAllStringIndex(text, -1) {
		between, literal, value := text[done:span[0]], text[span[0]:span[1]], ""
		done = span[1]
		shown.WriteString(safeURLs(between))
		if json.Unmarshal([]byte(literal), &value) != nil {
			shown.WriteString(safeURLs(literal))
			name = ""
			continue
		}
		masked := safeURLs(value)
		if strings.TrimSpace(between) == ":" && strings.EqualFold(name, "endpoint") {
			masked = safeEndpoint(value)
		}
		if masked != value {
			literal = encodeJSON(masked)
		}
		shown.WriteString(literal)
		name = value
	}
	shown.WriteString(safeURLs(text[done:]))
	return shown.String()
}

// safeURLs hides the secrets of the URLs in a text, each of which ends at a blank or a
// quotation mark.
func safeURLs(text string) string {
	return schemeless().ReplaceAllStringFunc(text, func(url string) string {
		slashes := len("://")
		if url[1] != '/' {
			slashes = len(`:\/\/`)
		}
		return url[:slashes] + safeAddress(url[slashes:])
	})
}

// safeEndpoint hides the secrets of a text that is a URL, or host:port.
func safeEndpoint(text string) string {
	if scheme, rest, found := strings.Cut(text, "://"); found && !strings.ContainsAny(scheme, "/?#@") {
		return scheme + "://" + safeAddress(rest)
	}
	return safeAddress(text)
}

// safeAddress hides the secrets of what stands behind the scheme of a URL. A password
// with a slash, a question mark or a number sign in it is not written as it should be
// (RFC 3986, 3.2.1); where it looks like one, all is hidden.
func safeAddress(text string) string {
	authority, rest := text, ""
	if end := strings.IndexAny(text, `/\?#`); end >= 0 {
		authority, rest = text[:end], text[end:]
	}
	at := strings.LastIndexByte(authority, '@')
	if host := authority[at+1:]; strings.Contains(rest, "@") {
		path := strings.IndexAny(rest, `/\`)
		if path < 0 {
			path = len(rest)
		}
		_, port, _ := strings.Cut(host[strings.LastIndexByte(host, ']')+1:], ":")
		if strings.Contains(rest[:path], "@") || strings.Trim(port, "0123456789") != "" {
			return hidden
		}
	}
	if at >= 0 {
		authority = hidden + authority[at:]
	}
	if query := strings.IndexAny(rest, "?#"); query >= 0 && query+1 < len(rest) {
		rest = rest[:query+1] + hidden
	}
	return authority + rest
}
