package rewrite

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/pkg/transport/netconn"
)

// AnswerTimeout is the timeout for writing a response from the sidecar. It is separate from the timeouts of the
// request, because the response may report that one of them expired.
const AnswerTimeout = 5 * time.Second

// ServerSettings contains the settings of the engines.
type ServerSettings struct {
	// MaxHeaderBytes is the maximum length of a request header section in bytes. For HTTP/2, it applies to the
	// decoded header section. A request with a longer header section is rejected with 431.
	MaxHeaderBytes int

	// MaxBodyBytes is the maximum length of a request body in bytes. A request with a longer body is rejected with
	// 413. 0 means no limit.
	MaxBodyBytes int64

	Connections *netconn.ConnLimit // limit on client connections; nil means no limit

	// HeaderTimeout is the timeout for receiving the header section of a request. For HTTP/2, it starts with the first
	// frame of the header section. 0 means no timeout.
	HeaderTimeout time.Duration

	// SendTimeout is the maximum time for which the output of an HTTP/2 connection can wait for the client to read. The
	// connection is closed after an additional AnswerTimeout, so that the timeouts of the requests expire first. 0
	// means no limit.
	SendTimeout time.Duration

	FullDuplex   bool                // keep an HTTP/1 client connection open if the response ends before the request
	ServerTiming bool                // add Server-Timing to responses
	AppHost      string              // Host for requests without a host
	Memory       *netconn.Budget     // memory budget of all requests; nil means no limit
	Bounds       *bound.Recorder     // records the bounds that clients exceed; nil means that events are not recorded
	WebSockets   *netconn.WebSockets // set of open WebSocket connections; may be nil
}
