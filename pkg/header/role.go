package header

// Role is what a field means to a proxy. Names are compared without case.
type Role uint8

// The roles. All but Plain need a thought on the way.
const (
	Plain          Role = iota // passed on
	HopRole                    // for the next hop alone (RFC 9110 section 7.6.1)
	ConnectionRole             // Hop, and names others
	TERole                     // Hop, but "trailers" is said again
	TrailerRole                // Hop for requests; announces the trailer section
	StopsRole                  // Knative's internal affair (docs/promises.md 3.8), in requests
	LengthRole                 // Content-Length: the framing is ours to write
	HostRole
	ExpectRole
	OriginalHostRole
	ForwardedRole
	ForwardedForRole
	ForwardedHostRole
	ForwardedProtoRole
	ProxyStatusRole
	DateRole
)

// RoleOf returns the role of a field.
func RoleOf[T ~string | ~[]byte](name T) Role {
	for _, r := range roles[min(len(name), len(roles)-1)] {
		if equalFold(name, r.name) {
			return r.role
		}
	}
	return Plain
}

type named struct {
	name string // lower case
	role Role
}

// roles holds the names with a role by their length.
var roles = [28][]named{
	2:  {{"te", TERole}},
	4:  {{"host", HostRole}, {"date", DateRole}},
	6:  {{"expect", ExpectRole}},
	7:  {{"trailer", TrailerRole}, {"upgrade", HopRole}},
	9:  {{"forwarded", ForwardedRole}},
	10: {{"connection", ConnectionRole}, {"keep-alive", HopRole}},
	12: {{"proxy-status", ProxyStatusRole}},
	14: {{"content-length", LengthRole}, {"k-network-hash", StopsRole}, {"http2-settings", HopRole}},
	15: {{"x-forwarded-for", ForwardedForRole}, {"k-original-host", OriginalHostRole}, {"k-proxy-request", StopsRole}},
	16: {{"x-forwarded-host", ForwardedHostRole}, {"proxy-connection", HopRole}, {"k-passthrough-lb", StopsRole}},
	17: {{"transfer-encoding", HopRole}, {"x-forwarded-proto", ForwardedProtoRole}},
	18: {{"proxy-authenticate", HopRole}},
	19: {{"proxy-authorization", HopRole}},
	24: {{"knative-serving-revision", StopsRole}},
	25: {{"knative-serving-namespace", StopsRole}},
	27: {},
}

// equalFold reports whether a name is the lower-case one but for case.
func equalFold[T ~string | ~[]byte](name T, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i := range len(lower) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
