package queue

import (
	"net/http"
	"strings"
	"time"
)

// An Exchange is one request and what becomes of it, as the lifecycle in serve.go
// sees it. An engine implements it and may reuse the value for the next request of
// its connection.
//
// All methods but Notify are called by the goroutine that runs [Proxy.Serve].
type Exchange interface {
	// Header returns the first line of the named request field with blanks
	// trimmed, "" when there is none. The string must not be kept after Serve.
	Header(name string) string

	// Repeats reports whether the request has more than one line of that field.
	Repeats(name string) bool

	// Line returns what is said of the request without building it.
	Line() Line

	// Request returns the request for those who need all of it. Its context ends
	// when the client has gone. It may cost allocations where an engine has to build
	// it first, and is valid until Observe has returned.
	Request() *http.Request

	// Answer sends an answer of our own, in the place of Forward or after a
	// Forward that sent the client nothing. The engine deals with a body that
	// nobody has read.
	Answer(a *Answer)

	// Wait returns OK after Notify, ClientGone when the client has gone, or the reason
	// for which the request has expired.
	Wait(state *RequestState) Reason

	// Notify makes Wait return, or a running Forward look again whether the request has
	// expired. Any goroutine may call it; a call that comes early is not lost.
	Notify()

	// Forward sends the request to the user container and the response back, and
	// returns when the exchange with the user container has really ended.
	Forward(state *RequestState) Result
}

// Line is a request as those see it who count it and tell of it. Its strings must
// not be kept after Serve.
type Line struct {
	Method string
	Target string // byte for byte, as it came
	Host   string // that is asked for: of the target, if it has one, or of the field
	Major  int    // of the client's HTTP version,
	Minor  int    // as in HTTP/1.1
	Remote string // the client's address and port, or those of the proxy before us
	TLS    bool   // the client's connection is encrypted
	Open   bool   // the client can send more after the header section: content, a trailer section or the bytes of a tunnel
}

// Path returns the path of the target without its query, as it came: not decoded.
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

// Result is what Forward has to tell.
type Result struct {
	Status    int       // of the user container's final response; 0: there was none
	Reason    Reason    // OK: the response went through to its end
	Begun     bool      // the client has seen the status of the user container's final response
	Upgraded  bool      // the exchange became a tunnel
	Replayed  bool      // it was sent twice (docs/promises.md 3.7)
	Reset     bool      // the client's stream was reset, so that no answer can be sent (docs/promises.md 3.12)
	In, Out   int64     // bytes of content, client to user container and back; of an answer of our own too
	FirstByte time.Time // of the final response; zero: there was none
	Err       error     // what the system said, for logs alone; may be nil
	GRPC      int       // gRPC status of an answer to this failure; 0: the status of Reason
	Held      Held      // the user container may still be at work on the request; nil: it is not
}

// Held is an exchange with the user container that was broken off before its response
// began. [RequestState.Holds] says whether an engine has to report one.
type Held interface {
	// Wait tells the user container, as far as the protocol can, that nobody waits for
	// the response, and returns when it has answered or closed, or after most. It reports
	// whether the user container has answered. It is called once, and may be called after
	// Serve.
	Wait(most time.Duration) (answered bool)
}
