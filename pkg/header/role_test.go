package header_test

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/header"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// FuzzRoleOf compares RoleOf with a map of the names in the RFCs and in docs/promises.md 3.8.
func FuzzRoleOf(f *testing.F) {
	want := map[string]header.Role{
		"Keep-Alive": header.KeepAliveRole, "Proxy-Connection": header.HopRole, "Upgrade": header.UpgradeRole, "HTTP2-Settings": header.HopRole,
		"Transfer-Encoding": header.TransferEncodingRole, "Transfer_Encoding": header.AliasRole, "Content_Length": header.AliasRole, "Proxy-Authenticate": header.HopRole, "Proxy-Authorization": header.HopRole,
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
	f.Add("\u212aeep-Alive") // a Kelvin sign, which Unicode case folding maps to k
	f.Fuzz(func(t *testing.T, name string) {
		lower := []byte(name)
		for i, c := range lower {
			if 'A' <= c && c <= 'Z' {
				lower[i] += 'a' - 'A'
			}
		}
		role := byLower[string(lower)]
		harness.Equal(t, header.RoleOf(name), role, name, "role")
		harness.Equal(t, header.RoleOf([]byte(name)), role, name, "as bytes: role")
	})
}
