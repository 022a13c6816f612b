package http2client

import (
	"strconv"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/pkg/transport/rewrite"
)

// AppendRequest adds the header section of a request to a user container that uses HTTP/2.
func AppendRequest(k *http2conn.Block, q *rewrite.Request) {
	k.Grow(q.Size())
	k.Request(q.Method, q.Authority(), q.Path())
	if trailers := q.EachField(k); trailers {
		k.Field(transport.TE, "trailers")
	}
	if q.Length >= 0 {
		k.Field(transport.ContentLength, strconv.FormatInt(q.Length, 10))
	}
}
