package transport

import (
	"strings"
)

// Line contains the properties of a request that the statistics, the logs and the probes use. Its
// strings must not be used after Serve returns.
type Line struct {
	Method string
	Target string // unchanged, as received
	Host   string // host in the target if it contains one, otherwise the value of the Host field
	Major  int    // major HTTP version of the request, for example 1
	Minor  int    // minor HTTP version of the request, for example 1
	Remote string // address and port of the client, or of the proxy in front of the sidecar
	TLS    bool   // the connection of the client is encrypted
	Open   bool   // the client may send content, a trailer section or tunnel data after the header section
}

// Path returns the path of the target without the query. The path is not decoded.
func (l *Line) Path() string {
	path, _, _ := strings.Cut(l.Target, "?")
	return OriginForm(l.Method, path)
}

// OriginForm returns a target in origin form without decoding it, or "*" (RFC 9112 section 3.2). An authority is
// returned unchanged.
func OriginForm(method, target string) string {
	if target == "" || target[0] == '/' {
		return target
	}
	_, rest, ok := strings.Cut(target, "://")
	if !ok {
		return target
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0 && method == "OPTIONS": // RFC 9112 section 3.2.4
		return "*"
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}
