package rewrite

import (
	"net/netip"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
)

// maxForwarded is the maximum length of a generated Forwarded value in bytes. The limit allows more than ten
// thousand proxies. Without the limit, an X-Forwarded-For field with a megabyte of commas would result in a value
// of 13 MB.
const maxForwarded = 256 << 10

// MakeForwarded returns a Forwarded value (RFC 7239 section 4) with the information in X-Forwarded-For,
// X-Forwarded-Host and X-Forwarded-Proto. It returns "" if all of them are empty. The current hop is not added. A
// node that is not an address becomes "unknown". If the value would be longer than [maxForwarded], MakeForwarded
// returns "", because an incomplete chain would describe a wrong origin of the request.
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

// node7239 returns an X-Forwarded-For node in the format of RFC 7239 section 6. It removes the zone of an IPv6
// address, which has no meaning on other hosts.
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

// writeValue writes a token unchanged, and any other value as a quoted string (RFC 7239 section 4).
func writeValue(b *strings.Builder, s string) {
	for i := range len(s) {
		if !transport.IsTokenChar(s[i]) {
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

// WithoutOurs removes the sidecar's member from a Proxy-Status value that the user container sent,
// so that only the sidecar can set it. It keeps the other members (RFC 9209 section 2; RFC 9651
// section 3.1).
func WithoutOurs(proxyStatus string) string {
	kept := make([]string, 0, 2)
	for member := range transport.Members(proxyStatus) {
		member = strings.TrimSpace(member)
		name, _, _ := strings.Cut(member, ";")
		name = strings.Trim(name, "\" \t") // a lenient recipient may accept a quoted name
		if member != "" && !strings.EqualFold(name, transport.ProxyName) {
			kept = append(kept, member)
		}
	}
	return strings.Join(kept, ", ")
}
