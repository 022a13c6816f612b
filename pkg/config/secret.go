package config

import (
	"net/url"
	"strconv"
	"strings"
)

// hidden replaces a secret.
const hidden = "***"

// Values of the tag "hide".
const (
	hideAll = "all" // the value is a secret
	hideURL = "url" // the value is a URL or host:port, which can contain secrets
)

// A hider is a setting that returns its value without secrets.
type hider interface{ shown() string }

// shown returns the value of a setting without secrets.
func shown(f *field) string {
	value := f.String()
	switch {
	case value == "":
		return ""
	case f.tag.Get("hide") == hideAll:
		return hidden
	case f.tag.Get("hide") == hideURL:
		return redactURL(value)
	}
	if h, ok := f.setting.(hider); ok {
		return h.shown()
	}
	return value
}

// quote quotes a value for an error message and truncates it to 120 bytes. If the value is a URL,
// quote hides the secrets in it, because a user may assign an endpoint to the wrong variable.
func quote(text string) string {
	const maxLen = 120 // in bytes
	if strings.Contains(text, "://") {
		text = redactURL(text)
	}
	if len(text) > maxLen {
		return strconv.Quote(strings.ToValidUTF8(text[:maxLen], "")) + "..."
	}
	return strconv.Quote(text)
}

// redactURL hides the user, the password, the query and the fragment in a URL or in an address of the
// form host:port. If text has neither form, for example because a password is not percent-encoded,
// redactURL hides all of it.
func redactURL(text string) string {
	text = strings.TrimSpace(text)
	scheme, rest, found := strings.Cut(text, "://")
	if !found || strings.ContainsAny(scheme, "/?#@") {
		scheme, rest, found = "", text, false
	}
	u, err := url.Parse("//" + rest)
	if err != nil || strings.Contains(u.RawQuery+u.Fragment, "@") { // a password may contain ? or #
		return hidden
	}
	redacted := u.Host + u.EscapedPath()
	if u.User != nil {
		redacted = hidden + "@" + redacted
	}
	if u.RawQuery != "" {
		redacted += "?" + hidden
	}
	if u.Fragment != "" {
		redacted += "#" + hidden
	}
	if found {
		redacted = scheme + "://" + redacted
	}
	return redacted
}

// redactEndpoints hides the secrets of all members with the name "endpoint" in a decoded JSON value.
func redactEndpoints(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			if text, ok := member.(string); ok && strings.EqualFold(name, "endpoint") {
				value[name] = redactURL(text)
			}
			redactEndpoints(member)
		}
	case []any:
		for _, element := range value {
			redactEndpoints(element)
		}
	}
}
