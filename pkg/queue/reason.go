package queue

// Reason says how an exchange ended: [OK], or which side has failed and what went
// wrong. The list is closed: the same words stand in the Proxy-Status field, in
// the log and in metric labels (docs/promises.md 3.6).
type Reason uint8

// The reasons. Each word names the side that gave up and what it gave up on.
const (
	OK                   Reason = iota
	QueueFull                   // no place in the queue
	QueueTimeout                // waited too long for a slot
	Overload                    // the memory budget for requests is exhausted
	NotReady                    // the user container is not ready (probes only)
	Draining                    // the pod is ending
	RequestTimeout              // the clock of the whole request ran out
	ResponseStartTimeout        // no first byte of the response in time
	IdleTimeout                 // no byte in either direction in time
	AppUnreachable              // nothing listens at the user container's port
	Local                       // the sidecar has no file descriptor, no local port or no memory for a connection to the user container
	AppReset                    // the user container broke the connection off
	AppGarbage                  // what the user container sent is not HTTP
	BadRequest                  // what the client sent is not HTTP, or not for us
	TooLarge                    // the request's body is over the limit that was set
	HeadTooLarge                // the header section is longer than the user container accepts
	ClientGone                  // nobody is left to get an answer
	NumReasons                  // the number of reasons
)

// reasons is the one table of what a reason is called and how clients get it:
// status and body over HTTP, the error type of RFC 9209 section 2.3, and the
// status of a gRPC call (docs/promises.md 3.2, 3.6).
var reasons = [NumReasons]struct {
	word, errorType, body string
	status, grpc          int
	app                   bool // the user container failed
}{
	OK:                   {word: "ok", status: 200},
	QueueFull:            {"queue-full", "connection_limit_reached", "pending request queue full\n", 503, 14, false},
	QueueTimeout:         {"queue-timeout", "connection_limit_reached", "pending request queue full\n", 503, 14, false},
	Overload:             {"overload", "connection_limit_reached", "out of memory for requests\n", 503, 8, false},
	NotReady:             {"not-ready", "destination_unavailable", "not ready\n", 503, 14, false},
	Draining:             {"draining", "destination_unavailable", "shutting down\n", 503, 14, false},
	RequestTimeout:       {"request-timeout", "http_response_timeout", "request timeout", 504, 4, false},
	ResponseStartTimeout: {"response-start-timeout", "http_response_timeout", "request timeout", 504, 4, false},
	IdleTimeout:          {"idle-timeout", "connection_read_timeout", "request timeout", 504, 4, false},
	AppUnreachable:       {"app-unreachable", "connection_refused", "the app cannot be reached\n", 502, 14, true},
	Local:                {"local", "proxy_internal_error", "no resources for a connection to the app\n", 500, 14, false},
	AppReset:             {"app-reset", "connection_terminated", "the app broke the connection off\n", 502, 14, true},
	AppGarbage:           {"app-garbage", "http_protocol_error", "the app did not answer in HTTP\n", 502, 13, true},
	BadRequest:           {"bad-request", "http_request_error", "bad request\n", 400, 3, false},
	TooLarge:             {"bad-request", "http_request_error", "request body too large\n", 413, 8, false},
	HeadTooLarge:         {"bad-request", "http_request_error", "request header fields too large\n", 431, 8, false},
	ClientGone:           {word: "client-gone", status: 499},
}

// String returns the reason's word.
func (r Reason) String() string { return reasons[r].word }

// Status returns the HTTP status that tells the reason. 499 is for logs alone:
// nobody is there to read it.
func (r Reason) Status() int { return reasons[r].status }
