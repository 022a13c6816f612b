package observation

// A ReadinessWord is the reason why the user container is not ready. The set of words is fixed, so that words can be
// used as label values and in responses. A word does not contain an address, a path or a header field
// (docs/promises.md 2.4).
type ReadinessWord string

// Reasons that describe the result of a probe.
const (
	WordPending       ReadinessWord = "pending"       // no attempt has ended
	WordRefused       ReadinessWord = "refused"       // nothing listens on the port
	WordTimeout       ReadinessWord = "timeout"       // no response before the timeout
	WordReset         ReadinessWord = "reset"         // the connection was closed before the response
	WordUnreachable   ReadinessWord = "unreachable"   // no route to the host, or the host does not exist
	WordTLS           ReadinessWord = "tls"           // the TLS handshake failed
	WordStatus        ReadinessWord = "status"        // the HTTP status does not pass; the code is the status
	WordRedirect      ReadinessWord = "redirect"      // there were too many redirects, or a redirect to another scheme
	WordGarbage       ReadinessWord = "garbage"       // the response uses another protocol
	WordNotServing    ReadinessWord = "not-serving"   // the gRPC health service is not serving; the code is the serving status
	WordUnimplemented ReadinessWord = "unimplemented" // the gRPC server has no health service
	WordRPC           ReadinessWord = "rpc-status"    // the gRPC call failed; the code is the gRPC status
	WordThreshold     ReadinessWord = "threshold"     // fewer than successThreshold consecutive passes
	WordLocal         ReadinessWord = "local"         // the sidecar has no file descriptor, no local port or no memory for the connection
)

// Reasons that do not describe a probe.
const (
	WordCrowded ReadinessWord = "crowded" // too many callers are waiting
	WordStopped ReadinessWord = "stopped" // the process is terminating
)

// ReadinessWords returns all words.
func ReadinessWords() []ReadinessWord {
	return []ReadinessWord{
		WordPending, WordRefused, WordTimeout, WordReset, WordUnreachable, WordTLS, WordStatus, WordRedirect, WordGarbage,
		WordNotServing, WordUnimplemented, WordRPC, WordThreshold, WordLocal, WordCrowded, WordStopped,
	}
}
