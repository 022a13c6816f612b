package forward

import (
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/pkg/connlimit"
	"github.com/queue-proxy/queue-proxy/pkg/goaway"
	"github.com/queue-proxy/queue-proxy/pkg/memory"
)

// Settings are those of the engines.
type Settings struct {
	MaxHeaderBytes int              // of a request's head, decoded if it is one of HTTP/2; more is answered with 431
	MaxBodyBytes   int64            // of a request's body, more is answered with 413; 0: no limit
	Connections    *connlimit.Limit // of clients; nil: no limit
	HeaderTimeout  time.Duration    // for a request's head to arrive, over HTTP/2 once it has begun; 0: none
	SendTimeout    time.Duration    // for an HTTP/2 client to take a byte of what is written; the clock of its request comes first
	FullDuplex     bool             // an answer before the request's end does not cost an HTTP/1 client its connection
	ServerTiming   bool             // responses say in Server-Timing how long their requests waited
	AppHost        string           // what the Host of a request without one says
	Memory         *memory.Budget   // of all requests; nil: no limit
	Bounds         *bound.Recorder  // records the bounds that clients exceed; nil: events are not recorded
	WebSockets     *goaway.Set      // those that are open are in it; nil: nobody wants to know
}
