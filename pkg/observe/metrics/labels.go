package metrics

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// Each request label has a fixed list of values, except for the route tag (tags.go). Values from the client
// or the user container are looked up in these lists and never used directly.

// classes contains the classes of status codes, by the first digit. An invalid status code is counted as
// 5xx, as RFC 9110 section 15 specifies for clients.
var classes = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}

// class returns the index of a status code in classes.
func class(status int) int {
	if status < 100 || status > 599 {
		return 4
	}
	return status/100 - 1
}

// Label values for methods in our own metrics and in OpenTelemetry. Method names are case-sensitive (RFC
// 9110 section 9.1).
var (
	methods     = []string{"get", "head", "post", "put", "patch", "delete", "options", "other"}
	otelMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "_OTHER"}
)

// method returns the index of a method in methods and otelMethods.
func method(m string) int {
	if i := slices.Index(otelMethods, m); i >= 0 {
		return i
	}
	return len(otelMethods) - 1
}

// Label values for protocol versions in our own metrics and in OpenTelemetry.
var (
	protocols    = []string{"http/1.0", "http/1.1", "http/2"}
	otelVersions = []string{"1.0", "1.1", "2"}
)

// protocol returns the index of an HTTP version in protocols and otelVersions. It returns
// the index of the nearest version if the version is unknown.
func protocol(major, minor int) int {
	switch {
	case major >= 2:
		return 2
	case major == 1 && minor >= 1:
		return 1
	}
	return 0
}

// reasons contains the distinct words of [observation.Reason], and "other" for unknown values.
var reasons = func() (words []string) {
	for r := range observation.NumReasons {
		if !slices.Contains(words, r.String()) {
			words = append(words, r.String())
		}
	}
	return append(words, "other")
}()

// placeOf maps each [observation.Reason] to an index in reasons. Several reasons can have the same word.
var placeOf = func() (places [observation.NumReasons]int) {
	for r := range observation.NumReasons {
		places[r] = slices.Index(reasons, r.String())
	}
	return places
}()

// reason returns the index of r in reasons.
func reason(r observation.Reason) int {
	if r >= observation.NumReasons {
		return len(reasons) - 1
	}
	return placeOf[r]
}

// grpcStatuses contains the word for each [observation.GRPCStatus] except the zero value.
var grpcStatuses = func() (words []string) {
	for s := range observation.NumGRPCStatuses - 1 {
		words = append(words, observation.GRPCStatus(s+1).String())
	}
	return words
}()

// statuses contains the status codes that are label values in Knative metrics. These are the codes that have
// a name, and 499 for a client that disconnected. Other codes are not label values, because some applications
// respond with any status code that the client requests.
var statuses = func() (codes []string) {
	for code := 100; code <= 599; code++ {
		if hasName(code) {
			codes = append(codes, strconv.Itoa(code))
		}
	}
	return codes
}()

// statusPlaces contains the index in statuses for each status code from 100 to 599.
var statusPlaces = func() (places [500]int) {
	next := 0
	for i := range places {
		places[i] = places[i/100*100]
		if hasName(100 + i) {
			places[i] = next
			next++
		}
	}
	return places
}()

// otherMethod returns, for each element of otelMethods, the index of _OTHER. The result is used for requests
// that would need a new series after maxMade series were created (tags.go).
func otherMethod() []int {
	return slices.Repeat([]int{len(otelMethods) - 1}, len(otelMethods))
}

// firstsOfClass returns, for each element of statuses, the index of the first status code in the same class.
// The result is used for requests that would need a new series after maxMade series were created (tags.go).
func firstsOfClass() (places []int) {
	for _, code := range statuses {
		places = append(places, statusPlaces[int(code[0]-'0')*100-100])
	}
	return places
}

func hasName(status int) bool {
	return http.StatusText(status) != "" || status == observation.ClientGone.Status()
}

// status returns the index of a status code in statuses. A code without a name is counted as the code x00 of
// its class. An invalid code is counted as 500 (RFC 9110 section 15).
func status(code int) int {
	if code < 100 || code > 599 {
		code = http.StatusInternalServerError
	}
	return statusPlaces[code-100]
}
