package status

import (
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

var (
	// aHost is what a browser writes into Host, and what it stands for.
	aHost = regexp.MustCompile(`^(?:([0-9A-Za-z._-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]*)?$`)
	aName = regexp.MustCompile(`^(?i:localhost)$`)
)

// FuzzIsLocal plays a browser that was led here by any name, or a neighbour. Who is
// let in has a loopback address and asked for this host, as expressions and package
// net read it; and people on this host are let in.
func FuzzIsLocal(f *testing.F) {
	f.Add("127.0.0.1", "localhost:8008", "")
	f.Add("::1", "[::1]:8008", "same-origin")
	f.Add("::ffff:127.0.0.1", "127.0.0.1", "none")
	f.Add("127.0.0.1", "localhost.evil.example", "")
	f.Add("127.0.0.1", "127.0.0.1.evil.example:80", "cross-site")
	f.Add("10.0.0.9", "localhost", "")
	f.Add("127.0.0.1", "[localhost]:1", "")
	f.Add("127.0.0.1", "0x7f.1", "")
	f.Fuzz(func(t *testing.T, peer, host, site string) {
		r := &http.Request{RemoteAddr: net.JoinHostPort(peer, "1"), Host: host, Header: http.Header{}}
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		got := isLocal(r)
		address, _, _ := strings.Cut(peer, "%") // a zone says which loopback
		ip := net.ParseIP(address)
		near := ip != nil && ip.IsLoopback() && (site == "" || site == "same-origin" || site == "none")
		if got && !near {
			t.Fatalf("%q of site %q: got let in, want it refused", peer, site)
		}
		m := aHost.FindStringSubmatch(host)
		if m == nil {
			return // no browser writes it
		}
		asked := net.ParseIP(m[1] + m[2])
		ours := m[2] == "" && aName.MatchString(m[1]) || asked != nil && asked.IsLoopback()
		if near && address == peer && got != ours {
			t.Errorf("%q asks for %q: got let in %t, want %t", peer, host, got, ours)
		}
	})
}
