package metrics

import (
	"fmt"
	"strings"
)

// Names says which sets of metrics there are (METRICS_NAMES). Sets can be joined
// by |.
type Names uint8

// The sets.
const (
	Default     Names = 1 << iota // our own
	Knative118                    // as the queue-proxy of Knative up to 1.18 names them
	KnativeHead                   // as the one of Knative after 1.18 does
	All         = Default | Knative118 | KnativeHead
)

// words are what METRICS_NAMES can say.
var words = []struct {
	word  string
	names Names
}{
	{"default", Default},
	{"knative-1.18", Knative118},
	{"knative-head", KnativeHead},
	{"all", All},
}

// ParseNames reads METRICS_NAMES: default, knative-1.18, knative-head or all; ""
// is default.
func ParseNames(word string) (Names, error) {
	if word == "" {
		return Default, nil
	}
	var allowed []string
	for _, w := range words {
		if w.word == word {
			return w.names, nil
		}
		allowed = append(allowed, w.word)
	}
	return 0, fmt.Errorf("%q is not one of %s", word, strings.Join(allowed, ", "))
}

// String is the word for n, as METRICS_NAMES has it.
func (n Names) String() string {
	for _, w := range words {
		if w.names == n {
			return w.word
		}
	}
	return fmt.Sprintf("Names(%d)", uint8(n))
}

// Our own names. Durations are in seconds, sizes in bytes.
const (
	RequestsTotal          = "queue_proxy_requests_total"
	RequestFailuresTotal   = "queue_proxy_request_failures_total"
	RequestDurationSeconds = "queue_proxy_request_duration_seconds"
	QueueWaitSeconds       = "queue_proxy_queue_wait_seconds"
	AppDurationSeconds     = "queue_proxy_app_duration_seconds"
	ReplaysTotal           = "queue_proxy_replays_total"
	KubeletProbesTotal     = "queue_proxy_kubelet_probes_total"

	RunningRequests        = "queue_proxy_running_requests"
	WaitingRequests        = "queue_proxy_waiting_requests"
	OldestWaiterAgeSeconds = "queue_proxy_oldest_waiter_age_seconds"
	ConcurrencyLimit       = "queue_proxy_concurrency_limit"
	QueueLimit             = "queue_proxy_queue_limit"

	Ready                   = "queue_proxy_ready"
	NotReadyReason          = "queue_proxy_not_ready_reason"
	ReadinessFlapsTotal     = "queue_proxy_readiness_flaps_total"
	ReadinessAnswersSeconds = "queue_proxy_readiness_answer_seconds"
	Draining                = "queue_proxy_draining"
	StartupSeconds          = "queue_proxy_startup_seconds"

	CertificateExpiry    = "queue_proxy_tls_certificate_expiry_timestamp_seconds"
	LogLinesDroppedTotal = "queue_proxy_log_lines_dropped_total"
	SpansDroppedTotal    = "queue_proxy_spans_dropped_total"
	AppScrapeErrorsTotal = "queue_proxy_app_scrape_errors_total"
	BuildInfo            = "queue_proxy_build_info"

	ProcessCPUSecondsTotal     = "queue_proxy_process_cpu_seconds_total"
	ProcessResidentMemoryBytes = "queue_proxy_process_resident_memory_bytes"
	ProcessVirtualMemoryBytes  = "queue_proxy_process_virtual_memory_bytes"
	ProcessThreads             = "queue_proxy_process_threads"
	ProcessOpenFDs             = "queue_proxy_process_open_fds"
	ProcessMaxFDs              = "queue_proxy_process_max_fds"
	ProcessStartTimeSeconds    = "queue_proxy_process_start_time_seconds"

	GoGoroutines          = "queue_proxy_go_goroutines"
	GoMaxProcs            = "queue_proxy_go_max_procs"
	GoMemoryBytes         = "queue_proxy_go_memory_bytes"
	GoMemoryLimitBytes    = "queue_proxy_go_memory_limit_bytes"
	GoHeapBytes           = "queue_proxy_go_heap_bytes"
	GoAllocatedBytesTotal = "queue_proxy_go_allocated_bytes_total"
	GoGCCyclesTotal       = "queue_proxy_go_gc_cycles_total"
	GoGCCPUSecondsTotal   = "queue_proxy_go_gc_cpu_seconds_total"
)
