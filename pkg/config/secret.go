package config

import (
	"encoding/json"
	"strconv"
	"strings"
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
	name := "" // the string before
	for text != "" {
		begin := strings.IndexByte(text, '"')
		end := endOfString(text, begin)
		if end < 0 {
			shown.WriteString(safeURLs(text))
			break
		}
		isEndpoint := strings.TrimSpace(text[:begin]) == ":" && strings.EqualFold(name, "endpoint")
		shown.WriteString(safeURLs(text[:begin]))
		literal, value := text[begin:end], ""
		text = text[end:]
		if json.Unmarshal([]byte(literal), &value) != nil {
			shown.WriteString(safeURLs(literal))
			name = ""
			continue
		}
		masked := safeURLs(value)
		if isEndpoint {
			masked = safeEndpoint(value)
		}
		if masked == value {
			shown.WriteString(literal)
		} else {
			shown.WriteString(encodeJSON(masked))
		}
		name = value
	}
	return shown.String()
}

// endOfString is where the JSON string ends that begins at a quotation mark; -1 where
// there is none, or no end.
func endOfString(text string, begin int) int {
	if begin < 0 {
		return -1
	}
	for i := begin + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// safeURLs hides the secrets of the URLs in a text, each of which ends at a blank or a
// quotation mark. In an escaped text a slash may have a backslash before it.
func safeURLs(text string) string {
	var shown strings.Builder
	for {
		_, rest, found := strings.Cut(text, ":")
		if !found {
			shown.WriteString(text)
			return shown.String()
		}
		address, isURL := strings.CutPrefix(rest, "//")
		if !isURL {
			address, isURL = strings.CutPrefix(rest, `\/\/`)
		}
		shown.WriteString(text[:len(text)-len(address)])
		text = address
		if !isURL {
			continue
		}
		end := strings.IndexAny(text, "\" \t\r\n")
		if end < 0 {
			end = len(text)
		}
		shown.WriteString(safeAddress(text[:end]))
		text = text[end:]
	}
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
