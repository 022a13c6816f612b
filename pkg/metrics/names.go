package metrics

import (
	"fmt"
	"strings"
)

// names says which sets of metrics there are. Sets can be joined by |.
type names uint8

// The sets.
const (
	ourNames  names = 1 << iota
	names118        // as the queue-proxy of Knative up to 1.18 names them
	namesHead       // as the one of Knative after 1.18 does
	allNames  = ourNames | names118 | namesHead
)

// words are what METRICS_NAMES can say.
var words = []struct {
	word  string
	names names
}{
	{"default", ourNames},
	{"knative-1.18", names118},
	{"knative-head", namesHead},
	{"all", allNames},
	{"off", 0},
}

// parseNames reads METRICS_NAMES; "" is default.
func parseNames(word string) (names, error) {
	if word == "" {
		return ourNames, nil
	}
	var allowed []string
	for _, w := range words {
		if w.word == word {
			return w.names, nil
		}
		allowed = append(allowed, w.word)
	}
	return 0, fmt.Errorf("metrics: names %q: not one of %s", word, strings.Join(allowed, ", "))
}

// prefix is before all names of our own: also those of client_golang's collectors of
// the process and of the Go runtime, because the usual ones (process_..., go_...) belong
// to the user container where one scrape returns both.
const prefix = "queue_proxy_"

// Our own names. Durations are in seconds, sizes in bytes.
const (
	requestsTotal          = "queue_proxy_requests_total"
	requestFailuresTotal   = "queue_proxy_request_failures_total"
	requestDurationSeconds = "queue_proxy_request_duration_seconds"
	queueWaitSeconds       = "queue_proxy_queue_wait_seconds"
	appDurationSeconds     = "queue_proxy_app_duration_seconds"
	replaysTotal           = "queue_proxy_replays_total"
	kubeletProbesTotal     = "queue_proxy_kubelet_probes_total"

	runningRequests        = "queue_proxy_running_requests"
	waitingRequests        = "queue_proxy_waiting_requests"
	oldestWaiterAgeSeconds = "queue_proxy_oldest_waiter_age_seconds"
	concurrencyLimit       = "queue_proxy_concurrency_limit"
	concurrencyLimitReason = "queue_proxy_concurrency_limit_reason"
	advisedLimit           = "queue_proxy_advised_concurrency_limit"
	queueLimit             = "queue_proxy_queue_limit"

	readyGauge              = "queue_proxy_ready"
	notReadyReason          = "queue_proxy_not_ready_reason"
	readinessFlapsTotal     = "queue_proxy_readiness_flaps_total"
	readinessAnswersSeconds = "queue_proxy_readiness_answer_seconds"
	drainingGauge           = "queue_proxy_draining"
	startupSeconds          = "queue_proxy_startup_seconds"

	certificateExpiry    = "queue_proxy_tls_certificate_expiry_timestamp_seconds"
	logLinesDroppedTotal = "queue_proxy_log_lines_dropped_total"
	spansDroppedTotal    = "queue_proxy_spans_dropped_total"
	appScrapeErrorsTotal = "queue_proxy_app_scrape_errors_total"
	buildInfo            = "queue_proxy_build_info"

	goMaxProcs            = "queue_proxy_go_max_procs"
	goMemoryBytes         = "queue_proxy_go_memory_bytes"
	goMemoryLimitBytes    = "queue_proxy_go_memory_limit_bytes"
	goHeapBytes           = "queue_proxy_go_heap_bytes"
	goAllocatedBytesTotal = "queue_proxy_go_allocated_bytes_total"
	goGCCPUSecondsTotal   = "queue_proxy_go_gc_cpu_seconds_total"
)
