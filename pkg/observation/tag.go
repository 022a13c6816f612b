package observation

// Fields that the ingress sets to report the tag of the route that a request used.
const (
	routeTag     = "Knative-Serving-Tag"
	defaultRoute = "Knative-Serving-Default-Route"
)

// A Tag is the type of the route tag of a request. Only [TagOf] determines the type.
type Tag uint8

// Values of Tag.
const (
	TagDisabled  Tag = iota // the ingress does not route by tags
	TagDefault              // the request has no tag
	TagUndefined            // the route does not have the tag
	TagMalformed            // the tag is not a valid name
	TagNamed                // the tag has a name
)

// String returns the value for metrics and spans if the tag has no valid name. Knative defines
// kn:disabled, kn:default and kn:undefined.
func (t Tag) String() string {
	return [...]string{"kn:disabled", "kn:default", "kn:undefined", "kn:tagged", "kn:tagged"}[t]
}

// TagOf returns the type of the tag of a request, and the name if the type is TagNamed. Knative
// accepts any string from a client as a name. TagOf accepts only a DNS label (RFC 1123, in lower
// case), because the name of a tag must be a DNS label.
func TagOf(h Getter) (kind Tag, name string) {
	tag := h.Header(routeTag)
	switch byDefault := h.Header(defaultRoute); {
	case tag == "" && byDefault == "":
		return TagDisabled, ""
	case tag == "":
		return TagDefault, ""
	case byDefault == "true":
		return TagUndefined, ""
	case !isLabel(tag):
		return TagMalformed, ""
	}
	return TagNamed, tag
}

// maxLabel is the maximum length of a DNS label in bytes (RFC 1035 section 2.3.4).
const maxLabel = 63

// isLabel reports whether s is a DNS label in lower case (RFC 1123 section 2.1).
func isLabel(s string) bool {
	if s == "" || len(s) > maxLabel || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
