package metrics

import "fmt"

// names is a bit set that selects the sets of metrics to export.
type names uint8

// Sets of metrics.
const (
	ourNames  names = 1 << iota
	names118        // metrics of Knative's queue-proxy up to 1.18
	names119        // metrics of Knative's queue-proxy 1.19.0 to 1.19.7 and 1.20.0
	namesHead       // metrics of Knative's queue-proxy in later releases
	allNames  = ourNames | names118 | names119 | namesHead
)

// parseNames returns the sets for a value of METRICS_NAMES. "" means default.
func parseNames(word string) (names, error) {
	sets, ok := map[string]names{
		"": ourNames, "default": ourNames, "knative-1.18": names118, "knative-1.19": names119, "knative-head": namesHead, "all": allNames, "off": 0,
	}[word]
	if !ok {
		return 0, fmt.Errorf("metrics: invalid value %q for the metric names", word)
	}
	return sets, nil
}

// prefix is the prefix of our own metrics. It is also added to the metrics of the process and Go collectors
// of client_golang, because a merged scrape contains the metrics process_* and go_* of the user container.
const prefix = "queue_proxy_"
