package header

// Fields by which the ingress says through which of a route's tags a request came.
const (
	routeTag     = "Knative-Serving-Tag"
	defaultRoute = "Knative-Serving-Default-Route"
)

// Tag says what a request's route tag is. It is decided by [TagOf] and nowhere else.
type Tag uint8

// The kinds of tags.
const (
	TagDisabled  Tag = iota // the ingress does not route by tags
	TagDefault              // no tag was asked for
	TagUndefined            // one that the route does not have
	TagMalformed            // one that no route can have
	TagNamed                // one that has a name
)

// String is the word for a tag without a name. The first three are Knative's.
func (t Tag) String() string {
	switch t {
	case TagDisabled:
		return "kn:disabled"
	case TagDefault:
		return "kn:default"
	case TagUndefined:
		return "kn:undefined"
	}
	return "kn:tagged"
}

// TagOf classifies a request's tag, and returns its name where it has one. Knative has
// whatever a client sends for a name. Here it is a DNS label (RFC 1123, in lower case),
// which the name of a route's tag must be.
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

// maxLabel is how long a DNS label may be, in bytes (RFC 1035 section 2.3.4).
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
