package probe

import (
	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// maxDetail is the maximum length in bytes of the error of an attempt in logs, on the status
// page and in the output of `queue-proxy why`. The error can be long because the errors of net/http
// quote the response from the application.
const maxDetail = 4 << 10

// detail returns the error message of an attempt, truncated to maxDetail bytes.
func detail(err error) string { return message.Truncate(err.Error(), maxDetail) }

// notReady is the error that [Prober.Ready] returns. It is immutable.
type notReady struct {
	Word  observation.ReadinessWord // WordCrowded, WordStopped, WordPending if the caller stopped waiting before the first result, or ""
	State observation.Readiness     // state when the error was created
	cause error                     // cancellation cause of the context passed to Ready, or nil
}

// Error returns one line for the body of a 503 response. It contains the index, kind, phase, reason
// and status code of each probe that is not ready, for example:
//
//	not ready: probe 0 (httpGet) starting: status 503
//
// The line does not contain addresses, paths or header fields (docs/promises.md 2.4).
func (e *notReady) Error() string {
	return e.State.NotReady(e.Word)
}

// Unwrap returns the cancellation cause of the context passed to Ready if the context ended the wait. Otherwise it
// returns nil.
func (e *notReady) Unwrap() error { return e.cause }
