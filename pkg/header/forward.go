package header

import (
	"net/netip"
	"strings"
)

// maxForwarded is the length in bytes of the longest Forwarded that is made. It is
// more than ten thousand proxies long; without it a megabyte of commas would become
// thirteen.
const maxForwarded = 256 << 10

// MakeForwarded returns a Forwarded value (RFC 7239 section 4) that says what
// X-Forwarded-For, -Host and -Proto say, "" when they say nothing. The hop that
// is being made is not part of it. A node that is no address becomes "unknown". It
// says all or, where that would be longer than [maxForwarded], nothing: a chain of
// which a part is missing lies about where a request comes from.
func MakeForwarded(xff, host, proto string) string {
	if len(host)+len(proto) > maxForwarded {
		return ""
	}
	var b strings.Builder
	first := func() {
		for _, p := range [2][2]string{{"host", host}, {"proto", proto}} {
			if p[1] == "" {
				continue
			}
			if b.Len() > 0 {
				b.WriteByte(';')
			}
			b.WriteString(p[0])
			b.WriteByte('=')
			writeValue(&b, p[1])
		}
	}
	if strings.TrimSpace(xff) == "" {
		first()
	} else {
		for node := range strings.SplitSeq(xff, ",") {
			begin := b.Len() == 0
			if !begin {
				b.WriteString(", ")
			}
			b.WriteString("for=")
			writeValue(&b, node7239(strings.TrimSpace(node)))
			if begin {
				first()
			}
			if b.Len() > maxForwarded {
				break
			}
		}
	}
	if b.Len() > maxForwarded {
		return ""
	}
	return b.String()
}

// node7239 returns an X-Forwarded-For node in the spelling of RFC 7239 section 6,
// without a zone, which means nothing to other hosts.
func node7239(node string) string {
	if a, err := netip.ParseAddrPort(node); err == nil {
		return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()).String()
	}
	bare, bracketed := node, false
	if strings.HasPrefix(node, "[") && strings.HasSuffix(node, "]") {
		bare, bracketed = node[1:len(node)-1], true
	}
	a, err := netip.ParseAddr(bare)
	switch {
	case err != nil, bracketed && a.Is4():
		return "unknown"
	case a.Is6():
		return "[" + a.WithZone("").String() + "]"
	}
	return a.String()
}

// writeValue writes a token as it is and anything else as a quoted string (RFC
// 7239 section 4).
func writeValue(b *strings.Builder, s string) {
	for i := range len(s) {
		if !tchar[s[i]] {
			b.WriteByte('"')
			for j := range len(s) {
				if s[j] == '"' || s[j] == '\\' {
					b.WriteByte('\\')
				}
				b.WriteByte(s[j])
			}
			b.WriteByte('"')
			return
		}
	}
	b.WriteString(s)
}

// WithoutOurs removes our own member from a Proxy-Status value that the user
// container has sent and keeps the others, so that nobody speaks in our name
// (RFC 9209 section 2; RFC 9651 section 3.1).
func WithoutOurs(proxyStatus string) string {
	kept := make([]string, 0, 2)
	for member := range Members(proxyStatus) {
		member = strings.TrimSpace(member)
		name, _, _ := strings.Cut(member, ";")
		name = strings.Trim(name, "\" \t") // what no reader takes for our name, however lenient, is another's
		if member != "" && !strings.EqualFold(name, ProxyName) {
			kept = append(kept, member)
		}
	}
	return strings.Join(kept, ", ")
}
