// Package bound counts and reports the events in which a bound on the behavior of a peer
// closes a connection, resets a stream or rejects a request.
package bound

// A Name identifies a bound. The set of names is closed: the names are label values of a
// metric.
type Name uint8

// The bounds. Names that start with App limit the user container, all others limit clients.
const (
	ControlFrames     Name = iota // HTTP/2 frames that carry no useful work
	UnreadReplies                 // replies to HTTP/2 frames that the client does not read
	HeaderBlock                   // length of an encoded HTTP/2 header block
	FrameTimeout                  // time to receive the rest of an HTTP/2 frame or header block
	ConcurrentStreams             // open HTTP/2 streams of a connection
	SendTimeout                   // time until the client reads more of the output
	AppControlFrames              // ControlFrames, from the user container
	AppHeaderBlock                // HeaderBlock, from the user container
	NumNames                      // the number of bounds
)

var names = [NumNames]string{
	ControlFrames:     "h2-control-frames",
	UnreadReplies:     "h2-unread-replies",
	HeaderBlock:       "h2-header-block",
	FrameTimeout:      "h2-frame-timeout",
	ConcurrentStreams: "h2-concurrent-streams",
	SendTimeout:       "send-timeout",
	AppControlFrames:  "app-h2-control-frames",
	AppHeaderBlock:    "app-h2-header-block",
}

// String returns the name as it appears in metrics, logs and on the status page.
func (n Name) String() string { return names[n] }

// A Recorder counts events. A nil Recorder is valid and does nothing.
type Recorder struct{}

// Hit records that the bound acted on the peer with the given address.
func (r *Recorder) Hit(Name, string) {}
