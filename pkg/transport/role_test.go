package transport_test

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzRoleOf compares RoleOf with a map of the names in the RFCs and in docs/promises.md 3.8.
func FuzzRoleOf(f *testing.F) {
	want := map[string]transport.Role{
		"Keep-Alive": transport.KeepAliveRole, "Proxy-Connection": transport.HopRole, "Upgrade": transport.UpgradeRole, "HTTP2-Settings": transport.HopRole,
		"Transfer-Encoding": transport.TransferEncodingRole, "Transfer_Encoding": transport.AliasRole, "Content_Length": transport.AliasRole, "Proxy-Authenticate": transport.HopRole, "Proxy-Authorization": transport.HopRole,
		"Connection": transport.ConnectionRole, "TE": transport.TERole, "Trailer": transport.TrailerRole,
		"K-Network-Hash": transport.StopsRole, "K-Proxy-Request": transport.StopsRole, "K-Passthrough-Lb": transport.StopsRole,
		"Knative-Serving-Revision": transport.StopsRole, "Knative-Serving-Namespace": transport.StopsRole,
		"Content-Length": transport.LengthRole, "Host": transport.HostRole, "Expect": transport.ExpectRole, "K-Original-Host": transport.OriginalHostRole,
		"Forwarded": transport.ForwardedRole, "X-Forwarded-For": transport.ForwardedForRole, "X-Forwarded-Host": transport.ForwardedHostRole,
		"X-Forwarded-Proto": transport.ForwardedProtoRole, "Proxy-Status": transport.ProxyStatusRole, "Date": transport.DateRole,
	}
	byLower := map[string]transport.Role{}
	for name, role := range want {
		byLower[strings.ToLower(name)] = role
		f.Add(name)
		f.Add(strings.ToUpper(name) + "s")
	}
	f.Add("\u212aeep-Alive") // a Kelvin sign, which Unicode case folding maps to k
	f.Fuzz(func(t *testing.T, name string) {
		lower := []byte(name)
		for i, c := range lower {
			if 'A' <= c && c <= 'Z' {
				lower[i] += 'a' - 'A'
			}
		}
		role := byLower[string(lower)]
		harness.Equal(t, transport.RoleOf(name), role, name, "role")
		harness.Equal(t, transport.RoleOf([]byte(name)), role, name, "as bytes: role")
	})
}
