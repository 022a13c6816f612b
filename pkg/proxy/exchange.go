package proxy

import (
	"net/http"
	"strings"
	"time"
)

// An Exchange is one request and its response. [Proxy.Serve] processes it. An engine implements
// Exchange and may reuse a value for the next request of its connection.
//
// All methods except Notify are called by the goroutine that runs [Proxy.Serve].
type Exchange interface {
	// Header returns the first line of the named request field without leading and trailing
	// whitespace, or "" if there is none. The string must not be used after Serve returns.
	Header(name string) string

	// Repeats reports whether the request has more than one line of the named field.
	Repeats(name string) bool

	// Line returns the properties of the request that are available without an [http.Request].
	Line() Line

	// Request returns the request in the form of net/http. Its context is canceled when the client
	// disconnects. The engine may have to allocate the request. It is valid until Observe returns.
	Request() *http.Request

	// Answer sends a response of the sidecar, either instead of Forward or after a Forward that
	// sent nothing to the client. The engine handles a request body that was not read.
	Answer(a *Answer)

	// Wait returns OK after Notify, ClientGone if the client has disconnected, or the reason why
	// the request has expired.
	Wait(state *RequestState) Reason

	// Notify makes Wait return, or makes a running Forward check whether the request has expired.
	// Any goroutine may call it. A call before Wait is not lost.
	Notify()

	// Forward sends the request to the user container and the response to the client. It returns
	// after the exchange with the user container has ended, except for the part in Result.Held.
	Forward(state *RequestState) Result
}

// Line contains the properties of a request that the statistics, the logs and the probes use. Its
// strings must not be used after Serve returns.
type Line struct {
	Method string
	Target string // unchanged, as received
	Host   string // host in the target if it contains one, otherwise the value of the Host field
	Major  int    // HTTP version of the client,
	Minor  int    // for example 1 and 1 for HTTP/1.1
	Remote string // address and port of the client, or of the proxy in front of the sidecar
	TLS    bool   // the connection of the client is encrypted
	Open   bool   // the client can send more data after the header section: content, a trailer section or the bytes of a tunnel
}

// Path returns the path of the target without the query. The path is not decoded.
func (l *Line) Path() string {
	path, _, _ := strings.Cut(l.Target, "?")
	if strings.HasPrefix(path, "/") {
		return path
	}
	if _, rest, ok := strings.Cut(path, "://"); ok { // absolute form (RFC 9112 section 3.2.2)
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
		return "/"
	}
	return path // * or an authority
}

// Result is the result of Forward.
type Result struct {
	Status    int       // status of the final response of the user container; 0 if there was none
	Reason    Reason    // OK if the response was forwarded completely
	Begun     bool      // the client has received the status of the final response of the user container
	Upgraded  bool      // the exchange became a tunnel
	Replayed  bool      // the request was sent twice (docs/promises.md 3.7)
	Reset     bool      // the stream of the client was reset, so that no response can be sent (docs/promises.md 3.12)
	In, Out   int64     // bytes of content from the client and to the client, including responses of the sidecar
	FirstByte time.Time // time of the first byte of the final response; zero if there was none
	Err       error     // underlying error, only for logs; may be nil
	GRPC      int       // gRPC status for this failure; 0 means the status of Reason
	Held      Held      // the exchange if the user container may still process the request; otherwise nil
}

// Held is an exchange with the user container that was aborted before its response began.
// [RequestState.Holds] reports whether an engine must return one.
type Held interface {
	// Wait cancels the request as far as the protocol allows it. It returns when the user container
	// has responded or has closed the connection, or after most. It reports whether the user
	// container has responded. Wait is called once, possibly after Serve has returned.
	Wait(most time.Duration) (answered bool)
}
