package header_test

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

// FuzzRoleOf looks names up in a map instead, with the names as the RFCs and
// docs/promises.md 3.8 write them.
func FuzzRoleOf(f *testing.F) {
	want := map[string]header.Role{
		"Keep-Alive": header.HopRole, "Proxy-Connection": header.HopRole, "Upgrade": header.HopRole, "HTTP2-Settings": header.HopRole,
		"Transfer-Encoding": header.HopRole, "Proxy-Authenticate": header.HopRole, "Proxy-Authorization": header.HopRole,
		"Connection": header.ConnectionRole, "TE": header.TERole, "Trailer": header.TrailerRole,
		"K-Network-Hash": header.StopsRole, "K-Proxy-Request": header.StopsRole, "K-Passthrough-Lb": header.StopsRole,
		"Knative-Serving-Revision": header.StopsRole, "Knative-Serving-Namespace": header.StopsRole,
		"Content-Length": header.LengthRole, "Host": header.HostRole, "Expect": header.ExpectRole, "K-Original-Host": header.OriginalHostRole,
		"Forwarded": header.ForwardedRole, "X-Forwarded-For": header.ForwardedForRole, "X-Forwarded-Host": header.ForwardedHostRole,
		"X-Forwarded-Proto": header.ForwardedProtoRole, "Proxy-Status": header.ProxyStatusRole, "Date": header.DateRole,
	}
	byLower := map[string]header.Role{}
	for name, role := range want {
		byLower[strings.ToLower(name)] = role
		f.Add(name)
		f.Add(strings.ToUpper(name) + "s")
	}
	f.Add("\u212aeep-Alive") // a Kelvin sign, which some fold to a k
	f.Fuzz(func(t *testing.T, name string) {
		lower := []byte(name)
		for i, c := range lower {
			if 'A' <= c && c <= 'Z' {
				lower[i] += 'a' - 'A'
			}
		}
		role := byLower[string(lower)]
		if got := header.RoleOf(name); got != role {
			t.Errorf("%q: got role %d, want %d", name, got, role)
		}
		if got := header.RoleOf([]byte(name)); got != role {
			t.Errorf("%q as bytes: got role %d, want %d", name, got, role)
		}
		hop := role == header.HopRole || role == header.ConnectionRole || role == header.TERole || role == header.TrailerRole
		if got := header.Hop(name); got != hop {
			t.Errorf("%q: got for the next hop alone %t, want %t", name, got, hop)
		}
		if got := header.StopsHere(name); got != (role == header.StopsRole) {
			t.Errorf("%q: got stopped %t, want %t", name, got, !got)
		}
	})
}
