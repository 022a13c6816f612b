package status

import (
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

var (
	// aHost matches the Host fields that browsers send.
	aHost = regexp.MustCompile(`^(?:([0-9A-Za-z._-]+)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]*)?$`)
	aName = regexp.MustCompile(`^(?i:localhost)$`)
)

// FuzzIsLocal compares isLocal with regular expressions and the package net, for any peer address, Host field
// and site.
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
		address, _, _ := strings.Cut(peer, "%") // remove the zone
		ip := net.ParseIP(address)
		near := ip != nil && ip.IsLoopback() && (site == "" || site == "same-origin" || site == "none")
		if got && !near {
			t.Fatalf("peer %q, site %q: got a local client, want none", peer, site)
		}
		m := aHost.FindStringSubmatch(host)
		if m == nil {
			return // browsers do not send this Host field
		}
		asked := net.ParseIP(m[1] + m[2])
		ours := m[2] == "" && aName.MatchString(m[1]) || asked != nil && asked.IsLoopback()
		if near && address == peer && got != ours {
			t.Errorf("peer %q, host %q: got %t, want %t", peer, host, got, ours)
		}
	})
}
