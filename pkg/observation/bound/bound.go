// Package bound counts and reports exceeded bounds and client errors. For each of these events, the
// sidecar closes a connection, resets a stream or rejects a request.
//
// The engines call [Recorder.Hit] or [Recorder.Fail] for each event. The counts are exported as the
// metrics queue_proxy_bounds_total and queue_proxy_client_errors_total. The tables of docs/bounds.md
// are generated from this package and from proofs in document_test.go.
package bound

// A Name identifies a bound or a client error. The set of names is fixed, because the names are label
// values of a metric.
type Name uint8

// The bounds. Names that start with App limit the user container. Names that start with Port limit
// clients of the ports for statistics, metrics, hooks and status. All other names limit clients.
const (
	ControlFrames       Name = iota // number of HTTP/2 frames without content, such as PING
	UnreadReplies                   // size of the unread replies to HTTP/2 frames
	HeaderBlock                     // length of an encoded HTTP/2 header block
	FrameTimeout                    // time to receive the rest of an HTTP/2 frame or header block
	ConcurrentStreams               // number of open HTTP/2 streams on a connection
	SendTimeout                     // time until the client reads more of the output
	SilentConnection                // time until the first byte on a new connection
	HeaderTimeout                   // time to receive a header section, from its first byte
	HeaderSection                   // size of a header section, number of its fields, and length of its list values
	BodyTimeout                     // time until the next byte of a request body
	BodySize                        // size of a request body
	ChunkExtensions                 // length of chunk extensions relative to the content
	TrailerSection                  // size of a trailer section
	TunnelTimeout                   // time until the next byte of a tunnel that is closed in one direction
	MaxConnections                  // number of open client connections
	Memory                          // memory for all requests
	TLSHandshakeTimeout             // time that a TLS handshake waits for the client
	TLSHandshakeStall               // time until the next flight of a TLS handshake while others wait
	TLSHandshakeQueue               // number of TLS handshakes that wait while other handshakes are in progress
	TLSHandshakeSize                // number of bytes that a client sends in a TLS handshake
	TLSRecordTimeout                // time to wait for the rest of a TLS record or message
	TLSNoContent                    // number of bytes in TLS records and messages without content
	TLSUnreadReplies                // size of the unread replies to TLS messages
	PortConnections                 // number of open connections to a small port
	PortHeaderSection               // total size of incomplete header sections on a small port
	PortHandshake                   // time and number of bytes of a TLS handshake on a small port
	AppControlFrames                // ControlFrames, from the user container
	AppUnreadReplies                // UnreadReplies, from the user container
	AppHeaderBlock                  // HeaderBlock, from the user container
	AppInformational                // number of informational responses from the user container to one request
	AppHeaderSection                // HeaderSection, from the user container
	AppChunkExtensions              // ChunkExtensions, from the user container
	AppTrailerSection               // TrailerSection, from the user container
	AppHeadBody                     // content after the header section of a response to HEAD
	NumNames                        // the number of bounds
)

// Client errors. A client error is recorded if a client violates a protocol or if a TLS handshake
// fails. Errors in a request body are not client errors.
const (
	MalformedRequest  Name = NumNames + iota // rejected header section, or HTTP/2 stream error (RFC 9113 section 5.4.2)
	HTTP2Error                               // connection error (RFC 9113 section 5.4.1)
	TLSNoCertificate                         // the client sent no certificate, but one is required
	TLSBadCertificate                        // the verification of the client certificate failed
	TLSRejected                              // the client sent an alert, for example because it does not trust the certificate
	TLSFailed                                // other handshake failures, such as incompatible TLS versions
	TLSRecord                                // a TLS record or message after the handshake is not valid
	NumEvents                                // the number of bounds and client errors
)

// IsError reports whether n is a client error and not a bound.
func (n Name) IsError() bool { return n >= NumNames }

// An Object is a type of object that is closed, reset or rejected because of a bound or a client error.
type Object string

// Values of Object.
const (
	Connection Object = "connection"
	Stream     Object = "stream"
	Request    Object = "request"
)

// bounds contains the label value, the type of the closed object, and the text for each bound and client
// error.
var bounds = [NumEvents]struct {
	label  string
	closes Object
	text   string
}{
	ControlFrames: {"h2-control-frames", Connection,
		"The client sent too many HTTP/2 control frames. The client may be defective or malicious."},
	UnreadReplies: {"h2-unread-replies", Connection,
		"The client did not read the replies to HTTP/2 frames. The client may be defective or malicious."},
	HeaderBlock: {"h2-header-block", Connection,
		"The client sent an HTTP/2 header block that is too large. Reduce the headers or increase MAX_HEADER_BYTES."},
	FrameTimeout: {"h2-frame-timeout", Connection,
		"The client did not send a complete HTTP/2 frame in time. Check the network or increase HEADER_TIMEOUT."},
	ConcurrentStreams: {"h2-concurrent-streams", Stream,
		"The client opened too many concurrent HTTP/2 streams. Use a client that supports the advertised limit."},
	SendTimeout: {"send-timeout", Connection,
		"The client did not read the response in time. Check the network or increase SEND_TIMEOUT."},
	SilentConnection: {"silent-connection", Connection,
		"The client sent no data on a new connection. This is expected for connections that are not used."},
	HeaderTimeout: {"header-timeout", Connection,
		"The client did not send a complete header in time. Check the network or increase HEADER_TIMEOUT."},
	HeaderSection: {"header-section", Request,
		"The client sent a header section that exceeds the size limit or the limit of 1000 fields. Reduce the header or increase MAX_HEADER_BYTES."},
	BodyTimeout: {"body-timeout", Request,
		"The client did not send the request body in time. Check the network or increase BODY_TIMEOUT."},
	BodySize: {"body-size", Request,
		"The client sent a request body that is too large. Reduce the body or increase MAX_BODY_BYTES."},
	ChunkExtensions: {"chunk-extensions", Request,
		"The client sent chunk extensions that are too large. The client may be defective or malicious."},
	TrailerSection: {"trailer-section", Request,
		"The client sent a trailer that is too large. Reduce the size of the trailer."},
	TunnelTimeout: {"tunnel-timeout", Connection,
		"A half-closed tunnel did not receive data in time. Check the client and the application."},
	MaxConnections: {"max-connections", Connection,
		"The limit on the number of connections was reached. The connection with the longest idle time was closed. Reduce the number of connections, or increase MAX_CONNECTIONS, the memory limit or the limit on open files."},
	Memory: {"memory", Connection,
		"The memory budget for requests was exceeded. The connection with the highest memory use per request was closed. Check the client or increase the memory limit."},
	TLSHandshakeTimeout: {"tls-handshake-timeout", Connection,
		"The TLS handshake did not complete in time. Check the client and the network."},
	TLSHandshakeStall: {"tls-handshake-stall", Connection,
		"The next message of the TLS handshake did not arrive in time. Check the client and the network."},
	TLSHandshakeQueue: {"tls-handshake-queue", Connection,
		"The queue of TLS handshakes was full. Reduce the rate of new connections."},
	TLSHandshakeSize: {"tls-handshake-size", Connection,
		"The client sent a TLS handshake that is too large. Reduce the size of the certificate chain."},
	TLSRecordTimeout: {"tls-record-timeout", Connection,
		"The client did not send a complete TLS record in time. Check the network or increase HEADER_TIMEOUT."},
	TLSNoContent: {"tls-no-content", Connection,
		"The client sent too many TLS messages without content. The client may be defective or malicious."},
	TLSUnreadReplies: {"tls-unread-replies", Connection,
		"The client did not read the replies to TLS messages. The client may be defective or malicious."},
	PortConnections: {"port-connections", Connection,
		"The limit on the number of connections to an internal port was reached. A connection was closed. Check the number of connections."},
	PortHeaderSection: {"port-header-section", Connection,
		"The client sent a header that is too large to an internal port. The client may be defective or malicious."},
	PortHandshake: {"port-handshake", Connection,
		"A TLS handshake on an internal port exceeded the time limit or the size limit. Check the client and the network."},
	AppControlFrames: {"app-h2-control-frames", Connection,
		"The user container sent too many HTTP/2 control frames. The HTTP/2 library of the application is defective."},
	AppUnreadReplies: {"app-h2-unread-replies", Connection,
		"The user container did not read the replies to HTTP/2 frames. The HTTP/2 library of the application is defective."},
	AppHeaderBlock: {"app-h2-header-block", Connection,
		"The user container sent an HTTP/2 header block that is too large. Reduce the headers or increase MAX_HEADER_BYTES."},
	AppInformational: {"app-informational-responses", Request,
		"The user container sent too many informational responses. Reduce the number of informational responses."},
	AppHeaderSection: {"app-header-section", Request,
		"The user container sent a header section that exceeds the size limit or the limit of 1000 fields. Reduce the header or increase MAX_HEADER_BYTES."},
	AppChunkExtensions: {"app-chunk-extensions", Request,
		"The user container sent chunk extensions that are too large. The HTTP library of the application is defective."},
	AppTrailerSection: {"app-trailer-section", Request,
		"The user container sent a trailer that is too large. Reduce the size of the trailer."},
	AppHeadBody: {"app-head-body", Connection,
		"The user container sent a body in response to HEAD. Remove the body from the response."},
	MalformedRequest: {"malformed-request", Request,
		"The client sent a request that is not valid HTTP, or an unsupported expectation. Check the port and the protocol of the client."},
	HTTP2Error: {"h2-protocol", Connection,
		"The client violated the HTTP/2 protocol. Check the HTTP/2 library of the client."},
	TLSNoCertificate: {"tls-no-certificate", Connection,
		"The client did not send a certificate. Configure a client certificate, or unset QUEUE_PROXY_TLS_CLIENT_CA."},
	TLSBadCertificate: {"tls-bad-certificate", Connection,
		"The client certificate could not be verified. Check its issuer and validity, and the CA certificates in the file QUEUE_PROXY_TLS_CLIENT_CA."},
	TLSRejected: {"tls-rejected", Connection,
		"The client rejected the TLS handshake. Check whether the client trusts the certificate, and whether its names and validity are correct."},
	TLSFailed: {"tls-handshake", Connection,
		"A TLS handshake failed. Check the TLS version of the client, and whether the client uses TLS on this port."},
	TLSRecord: {"tls-record", Connection,
		"The client sent a TLS record that is not valid. Check the TLS library of the client, and whether a proxy changes the data."},
}

// String returns the label value of the bound or client error, which is also the name in logs and on the
// status page.
func (n Name) String() string { return bounds[n].label }

// Closes returns the type of object that is closed, reset or rejected because of the bound or client error.
func (n Name) Closes() Object { return bounds[n].closes }

// Text returns the cause of an event and the action that an operator can take.
func (n Name) Text() string { return bounds[n].text }
