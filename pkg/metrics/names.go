package metrics

import "fmt"

// names says which sets of metrics there are. Sets can be joined by |.
type names uint8

// The sets.
const (
	ourNames  names = 1 << iota
	names118        // as the queue-proxy of Knative up to 1.18 names them
	namesHead       // as the one of Knative after 1.18 does
	allNames  = ourNames | names118 | namesHead
)

// parseNames returns the sets for a value of METRICS_NAMES. An empty value is the default.
func parseNames(word string) (names, error) {
	sets, ok := map[string]names{
		"": ourNames, "default": ourNames, "knative-1.18": names118, "knative-head": namesHead, "all": allNames, "off": 0,
	}[word]
	if !ok {
		return 0, fmt.Errorf("metrics: invalid value %q for the names of the metrics", word)
	}
	return sets, nil
}

// prefix is before all names of our own: also those of client_golang's collectors of
// the process and of the Go runtime, because the usual ones (process_..., go_...) belong
// to the user container where one scrape returns both.
const prefix = "queue_proxy_"
