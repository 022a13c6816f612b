// Package observation defines the types that describe requests, failures, limits and readiness. Logs,
// metrics, traces and the status page are produced from these types.
package observation

// A Reason is [OK] or the cause of a failed request. The Proxy-Status field, the logs and the metric
// labels contain the same words for a reason (docs/promises.md 3.6).
type Reason uint8

// Values of Reason. Each word names the component that failed and the type of the failure.
const (
	OK                   Reason = iota
	QueueFull                   // the queue is full
	QueueTimeout                // the request waited too long for a slot
	Overload                    // the memory budget for requests is exhausted
	NotReady                    // the user container is not ready (probes only)
	Draining                    // the pod is terminating
	RequestTimeout              // the timeout of the whole request expired
	ResponseStartTimeout        // the first byte of the response did not arrive in time
	IdleTimeout                 // no data was transferred in either direction before the idle timeout expired
	ClientSlow                  // a timeout expired while the sidecar waited for the request body, or for the client to read the response
	AppUnreachable              // the user container does not accept connections on its port
	Local                       // the sidecar has no file descriptor, no local port or no memory for a connection to the user container
	AppReset                    // the user container closed the connection before the response was complete
	AppGarbage                  // the response from the user container is not valid HTTP
	BadRequest                  // the request is not valid HTTP or not allowed
	TooLarge                    // the request body exceeds the configured limit
	HeadTooLarge                // the header section of the request is longer than the user container accepts
	ClientGone                  // the client disconnected
	NumReasons                  // number of reasons
)

// reasons contains the name of each reason and its representation in responses: the status and the
// body for HTTP, the error type of RFC 9209 section 2.3, and the status of a gRPC call
// (docs/promises.md 3.2, 3.6).
var reasons = [NumReasons]struct {
	word, errorType, body string
	status, grpc          int
	app                   bool // the user container failed
}{
	OK:                   {word: "ok", status: 200},
	QueueFull:            {"queue-full", "connection_limit_reached", "pending request queue full\n", 503, 14, false},
	QueueTimeout:         {"queue-timeout", "connection_limit_reached", "pending request queue full\n", 503, 14, false},
	Overload:             {"overload", "connection_limit_reached", "not enough memory for requests\n", 503, 8, false},
	NotReady:             {"not-ready", "destination_unavailable", "not ready\n", 503, 14, false},
	Draining:             {"draining", "destination_unavailable", "shutting down\n", 503, 14, false},
	RequestTimeout:       {"request-timeout", "http_response_timeout", "request timeout", 504, 4, false},
	ResponseStartTimeout: {"response-start-timeout", "http_response_timeout", "request timeout", 504, 4, false},
	IdleTimeout:          {"idle-timeout", "connection_read_timeout", "request timeout", 504, 4, false},
	ClientSlow:           {"client-slow", "http_request_error", "request timeout", 408, 4, false},
	AppUnreachable:       {"app-unreachable", "connection_refused", "the app cannot be reached\n", 502, 14, true},
	Local:                {"local", "proxy_internal_error", "no resources for a connection to the app\n", 500, 14, false},
	AppReset:             {"app-reset", "connection_terminated", "connection to the app closed unexpectedly\n", 502, 14, true},
	AppGarbage:           {"app-garbage", "http_protocol_error", "invalid HTTP response of the app\n", 502, 13, true},
	BadRequest:           {"bad-request", "http_request_error", "bad request\n", 400, 3, false},
	TooLarge:             {"bad-request", "http_request_error", "request body too large\n", 413, 8, false},
	HeadTooLarge:         {"bad-request", "http_request_error", "request header fields too large\n", 431, 8, false},
	ClientGone:           {word: "client-gone", status: 499},
}

// ErrorType returns the error type of the Proxy-Status field (RFC 9209 section 2.3).
func (r Reason) ErrorType() string { return reasons[r].errorType }

// Body returns the content of the HTTP response.
func (r Reason) Body() string { return reasons[r].body }

// GRPC returns the status of the gRPC response.
func (r Reason) GRPC() int { return reasons[r].grpc }

// IsClient reports whether the client caused the failure. The status is then 4xx.
func (r Reason) IsClient() bool { return reasons[r].status/100 == 4 }

// IsApp reports whether the user container failed.
func (r Reason) IsApp() bool { return reasons[r].app }

// String returns the word of the reason.
func (r Reason) String() string { return reasons[r].word }

// Status returns the HTTP status of the reason. The status 499 is used only in logs, because the
// client has disconnected.
func (r Reason) Status() int { return reasons[r].status }
