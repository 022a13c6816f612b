package metrics

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
)

// Every label of a request but the route tag (tags.go) has a closed list of values,
// and one that the client or the user container chose is only ever looked up in it.

// Classes of status, by first digit. One that is no status counts as 5xx, as RFC
// 9110 section 15 has clients treat it.
var classes = []string{"1xx", "2xx", "3xx", "4xx", "5xx"}

// class is the place of a status in classes.
func class(status int) int {
	if status < 100 || status > 599 {
		return 4
	}
	return status/100 - 1
}

// Methods, as our own metrics write them and as OpenTelemetry does. Case matters
// (RFC 9110 section 9.1).
var (
	methods     = []string{"get", "head", "post", "put", "patch", "delete", "options", "other"}
	otelMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "_OTHER"}
)

// method is the place of a method in both.
func method(m string) int {
	if i := slices.Index(otelMethods, m); i >= 0 {
		return i
	}
	return len(otelMethods) - 1
}

// Protocols, likewise.
var (
	protocols    = []string{"http/1.0", "http/1.1", "http/2"}
	otelVersions = []string{"1.0", "1.1", "2"}
)

// protocol is the place of a client's version in both. What is older than 1.0 is
// counted there, what is newer than 2 under 2.
func protocol(major, minor int) int {
	switch {
	case major >= 2:
		return 2
	case major == 1 && minor >= 1:
		return 1
	}
	return 0
}

// reasons are the words of [queue.Reason], each once, and "other", which says that
// this list is out of date.
var reasons = func() (words []string) {
	for r := range queue.NumReasons {
		if !slices.Contains(words, r.String()) {
			words = append(words, r.String())
		}
	}
	return append(words, "other")
}()

// placeOf is the place of each reason in reasons; two reasons may share a word.
var placeOf = func() (places [queue.NumReasons]int) {
	for r := range queue.NumReasons {
		places[r] = slices.Index(reasons, r.String())
	}
	return places
}()

// reason is the place of w in reasons.
func reason(r queue.Reason) int {
	if r >= queue.NumReasons {
		return len(reasons) - 1
	}
	return placeOf[r]
}

// statuses are the status codes that Knative's metrics are labelled with: those
// that have a name, and 499 for a client that has gone. Applications that answer
// with whatever a client asks for exist, so the list is closed.
var statuses = func() (codes []string) {
	for code := 100; code <= 599; code++ {
		if hasName(code) {
			codes = append(codes, strconv.Itoa(code))
		}
	}
	return codes
}()

// statusPlaces is the place of each code in statuses, from 100 on.
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

// Places that stand for others where there are too many series (tags.go).

// otherMethod is the place of other methods, for each method.
func otherMethod() []int {
	return slices.Repeat([]int{len(otelMethods) - 1}, len(otelMethods))
}

// firstsOfClass are the places of the first of its class, for each of statuses.
func firstsOfClass() (places []int) {
	for _, code := range statuses {
		places = append(places, statusPlaces[int(code[0]-'0')*100-100])
	}
	return places
}

func hasName(status int) bool {
	return http.StatusText(status) != "" || status == queue.ClientGone.Status()
}

// status is the place of a code in statuses. One without a name counts as the x00
// of its class, and one that is no status as 500 (RFC 9110 section 15).
func status(code int) int {
	if code < 100 || code > 599 {
		code = http.StatusInternalServerError
	}
	return statusPlaces[code-100]
}
