// Package bound counts and reports the events in which a bound on the behavior of a peer
// closes a connection, resets a stream or rejects a request.
//
// The engines call [Recorder.Hit] for each event. The counts are exported as the metric
// queue_proxy_bounds_total. docs/bounds.md lists the bounds and is made from this package.
package bound

// A Name identifies a bound. The set of names is closed: the names are label values of a
// metric.
type Name uint8

// The bounds. Names that start with App limit the user container, names that start with Port
// limit clients of the ports for statistics, metrics, hooks and status, and all others limit
// clients.
const (
	ControlFrames       Name = iota // HTTP/2 frames that carry no useful work
	UnreadReplies                   // replies to HTTP/2 frames that the client does not read
	HeaderBlock                     // length of an encoded HTTP/2 header block
	FrameTimeout                    // time to receive the rest of an HTTP/2 frame or header block
	ConcurrentStreams               // open HTTP/2 streams of a connection
	SendTimeout                     // time until the client reads more of the output
	SilentConnection                // time until the first byte on a new connection
	HeaderTimeout                   // time to receive a header section, from its first byte
	HeaderSection                   // size of a header section, and the number and the lists of its fields
	BodyTimeout                     // time until the next byte of a request body
	BodySize                        // size of a request body
	ChunkExtensions                 // length of chunk extensions relative to the content
	TrailerSection                  // size of a trailer section
	TunnelTimeout                   // time until the next byte of a tunnel that is closed in one direction
	MaxConnections                  // open connections of clients
	TLSHandshakeTimeout             // time to complete a TLS handshake
	TLSHandshakeStall               // time until the next flight of a TLS handshake while others wait
	TLSHandshakeQueue               // time until a TLS handshake begins while others are in progress
	TLSHandshakeSize                // bytes that a client sends in a TLS handshake
	TLSNoContent                    // bytes of TLS records and messages without content
	TLSUnreadReplies                // replies to TLS messages that the client does not read
	PortConnections                 // open connections to a small port
	PortHeaderSection               // incomplete header sections on a small port
	PortHandshake                   // time and bytes of a TLS handshake on a small port
	AppControlFrames                // ControlFrames, from the user container
	AppHeaderBlock                  // HeaderBlock, from the user container
	AppInformational                // informational responses of the user container to one request
	AppHeaderSection                // HeaderSection, from the user container
	AppChunkExtensions              // ChunkExtensions, from the user container
	AppTrailerSection               // TrailerSection, from the user container
	AppHeadBody                     // content after the header section of a response to HEAD
	NumNames                        // the number of bounds
)

// An Object is what a bound closes.
type Object string

// The objects.
const (
	Connection Object = "connection"
	Stream     Object = "stream"
	Request    Object = "request"
)

// bounds contains the label value of each bound, the object that it closes, and a sentence
// for the operator: the cause, and what to do.
var bounds = [NumNames]struct {
	label  string
	closes Object
	text   string
}{
	ControlFrames: {"h2-control-frames", Connection,
		"The client sent too many HTTP/2 frames without useful work. Check whether it is defective or an attacker."},
	UnreadReplies: {"h2-unread-replies", Connection,
		"The client did not read the replies to its HTTP/2 frames. Check whether it is defective or an attacker."},
	HeaderBlock: {"h2-header-block", Connection,
		"The client sent an HTTP/2 header block that is too long. Send shorter headers, or raise MAX_HEADER_BYTES."},
	FrameTimeout: {"h2-frame-timeout", Connection,
		"The client did not send the rest of an HTTP/2 frame in time. Check the network, or raise HEADER_TIMEOUT."},
	ConcurrentStreams: {"h2-concurrent-streams", Stream,
		"The client opened more HTTP/2 streams than the advertised limit. Use more connections, or a client that reads the limit."},
	SendTimeout: {"send-timeout", Connection,
		"The client did not read the response in time. Check the client and the network, or raise SEND_TIMEOUT."},
	SilentConnection: {"silent-connection", Connection,
		"The client opened a connection and sent nothing. This is normal for connections that a client opens in advance."},
	HeaderTimeout: {"header-timeout", Connection,
		"The client did not send the rest of a header section in time. Check the network, or raise HEADER_TIMEOUT."},
	HeaderSection: {"header-section", Request,
		"The client sent a header section that is too large. Send fewer or shorter headers, or raise MAX_HEADER_BYTES."},
	BodyTimeout: {"body-timeout", Request,
		"The client did not send the next byte of a request body in time. Check the client, or raise BODY_TIMEOUT."},
	BodySize: {"body-size", Request,
		"The client sent a request body that is too large. Send smaller bodies, or raise MAX_BODY_BYTES."},
	ChunkExtensions: {"chunk-extensions", Request,
		"The client sent chunk extensions that are longer than the content. Check whether it is defective or an attacker."},
	TrailerSection: {"trailer-section", Request,
		"The client sent a trailer section that is too large. Send fewer or shorter trailers."},
	TunnelTimeout: {"tunnel-timeout", Connection,
		"A tunnel was closed in one direction and was idle in the other direction. Close both directions, or send data."},
	MaxConnections: {"max-connections", Connection,
		"A connection without a request was closed for a new connection. Raise MAX_CONNECTIONS, or use fewer connections."},
	TLSHandshakeTimeout: {"tls-handshake-timeout", Connection,
		"The client did not complete the TLS handshake in time. Check the client and the network."},
	TLSHandshakeStall: {"tls-handshake-stall", Connection,
		"The client stopped in a TLS handshake while other handshakes waited. Check who opens so many connections."},
	TLSHandshakeQueue: {"tls-handshake-queue", Connection,
		"The TLS handshake did not begin in time because too many others were in progress. Check who opens so many connections."},
	TLSHandshakeSize: {"tls-handshake-size", Connection,
		"The client sent a TLS handshake that is too long. Use a shorter certificate chain."},
	TLSNoContent: {"tls-no-content", Connection,
		"The client sent too many TLS messages without content. Check whether it is defective or an attacker."},
	TLSUnreadReplies: {"tls-unread-replies", Connection,
		"The client did not read the replies to its TLS messages. Check whether it is defective or an attacker."},
	PortConnections: {"port-connections", Connection,
		"A connection to a small port was closed for a new connection. Check who opens so many connections to it."},
	PortHeaderSection: {"port-header-section", Connection,
		"A client of a small port sent a header section that is too large. Check whether it is defective or an attacker."},
	PortHandshake: {"port-handshake", Connection,
		"A client of a small port sent a TLS handshake that is too long or too slow. Check its certificates and the network."},
	AppControlFrames: {"app-h2-control-frames", Connection,
		"The user container sent too many HTTP/2 frames without useful work. Check its HTTP/2 library for a defect."},
	AppHeaderBlock: {"app-h2-header-block", Connection,
		"The user container sent an HTTP/2 header block that is too long. Send fewer or shorter headers, or raise MAX_HEADER_BYTES."},
	AppInformational: {"app-informational-responses", Request,
		"The user container sent too many informational responses. Send fewer before the final response."},
	AppHeaderSection: {"app-header-section", Request,
		"The user container sent a header section that is too large. Send fewer or shorter headers, or raise MAX_HEADER_BYTES."},
	AppChunkExtensions: {"app-chunk-extensions", Request,
		"The user container sent chunk extensions that are longer than the content. Check its HTTP library for a defect."},
	AppTrailerSection: {"app-trailer-section", Request,
		"The user container sent a trailer section that is too large. Send fewer or shorter trailers."},
	AppHeadBody: {"app-head-body", Connection,
		"The user container sent content after a response to HEAD. Connections are not reused after such responses. Fix the application."},
}

// String returns the label value of the bound, which is its name in logs and on the status
// page.
func (n Name) String() string { return bounds[n].label }

// Closes returns the object that the bound closes.
func (n Name) Closes() Object { return bounds[n].closes }

// Text returns a sentence for the operator: the cause of an event, and what to do.
func (n Name) Text() string { return bounds[n].text }
