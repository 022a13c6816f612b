package rewrite

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// AnswerTimeout is the timeout for writing a response of the sidecar. It is separate from the
// timeouts of the request, because the response may report that one of them expired.
const AnswerTimeout = 5 * time.Second

// ServerSettings contains the settings of the engines.
type ServerSettings struct {
	MaxHeaderBytes int                 // maximum length of the header section of a request in bytes, decoded for HTTP/2; longer ones are rejected with 431
	MaxBodyBytes   int64               // maximum length of a request body in bytes; longer bodies are rejected with 413; 0 means no limit
	Connections    *netconn.ConnLimit  // limit on client connections; nil means no limit
	HeaderTimeout  time.Duration       // timeout for receiving the header section of a request, which for HTTP/2 starts with its first frame; 0 means no timeout
	SendTimeout    time.Duration       // timeout for an HTTP/2 client to accept a byte of the output; the timeout of the request applies first
	FullDuplex     bool                // keep the connection of an HTTP/1 client if the response ends before the request
	ServerTiming   bool                // add Server-Timing to responses
	AppHost        string              // Host for requests without a host
	Memory         *netconn.Budget     // memory budget of all requests; nil means no limit
	Bounds         *bound.Recorder     // records the bounds that clients exceed; nil: events are not recorded
	WebSockets     *netconn.WebSockets // contains the open WebSocket connections; may be nil
}
