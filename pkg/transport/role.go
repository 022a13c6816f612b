package transport

// A Role describes how a proxy handles a field.
type Role uint8

// Values of Role. Fields without a special meaning have the role Plain.
const (
	Plain                Role = iota // forwarded
	HopRole                          // for the next hop only (RFC 9110 section 7.6.1)
	UpgradeRole                      // like HopRole
	KeepAliveRole                    // like HopRole
	TransferEncodingRole             // like HopRole; frames the message
	ConnectionRole                   // like HopRole; names further fields for the next hop
	TERole                           // like HopRole, but the value "trailers" is also sent to the next hop
	TrailerRole                      // announces the trailer section; in requests, like HopRole
	StopsRole                        // removed from requests, because it is internal to Knative (docs/promises.md 3.8)
	LengthRole                       // Content-Length, which the proxy writes itself
	AliasRole                        // a framing field with underscores, which CGI does not distinguish from hyphens
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

// IsHop reports whether a field with this role is only for the next hop, in requests and in responses.
func (r Role) IsHop() bool { return HopRole <= r && r <= TERole }

// RoleOf returns the role of the field with the given name. It ignores the case of ASCII letters.
func RoleOf[T ~string | ~[]byte](name T) Role {
	for _, r := range roles[min(len(name), len(roles)-1)] {
		if EqualFold(name, r.name) {
			return r.role
		}
	}
	return Plain
}

type named struct {
	name string // lower case
	role Role
}

// roles contains the field names that have a role, indexed by their length.
var roles = [28][]named{
	2:  {{"te", TERole}},
	4:  {{"host", HostRole}, {"date", DateRole}},
	6:  {{"expect", ExpectRole}},
	7:  {{"trailer", TrailerRole}, {"upgrade", UpgradeRole}},
	9:  {{"forwarded", ForwardedRole}},
	10: {{"connection", ConnectionRole}, {"keep-alive", KeepAliveRole}},
	12: {{"proxy-status", ProxyStatusRole}},
	14: {{"content-length", LengthRole}, {"k-network-hash", StopsRole}, {"http2-settings", HopRole}, {"content_length", AliasRole}},
	15: {{"x-forwarded-for", ForwardedForRole}, {"k-original-host", OriginalHostRole}, {"k-proxy-request", StopsRole}},
	16: {{"x-forwarded-host", ForwardedHostRole}, {"proxy-connection", HopRole}, {"k-passthrough-lb", StopsRole}},
	17: {{"transfer-encoding", TransferEncodingRole}, {"x-forwarded-proto", ForwardedProtoRole}, {"transfer_encoding", AliasRole}},
	18: {{"proxy-authenticate", HopRole}},
	19: {{"proxy-authorization", HopRole}},
	24: {{"knative-serving-revision", StopsRole}},
	25: {{"knative-serving-namespace", StopsRole}},
	27: {},
}
