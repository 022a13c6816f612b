package forward

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/queue"
	"github.com/queue-proxy/queue-proxy/pkg/wire"
)

// Built is a request in net/http's form, which is made for the first who asks for it: few
// do. The zero value has none. Any goroutine may call Leave.
type Built struct {
	mu      sync.Mutex
	request *http.Request
	cancel  context.CancelFunc // ends its context
}

// Get returns the request, made by build if there is none. gone says whether its client has.
func (b *Built) Get(gone func() bool, build func() *http.Request) *http.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.request == nil {
		ctx, cancel := context.WithCancel(context.Background())
		if gone() {
			cancel()
		}
		b.request, b.cancel = build().WithContext(ctx), cancel
	}
	return b.request
}

// Leave ends the context of the request, because the client has gone or the request has
// ended. One that is built later has to see that by gone.
func (b *Built) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
}

// Reset ends and forgets the request.
func (b *Built) Reset() {
	b.Leave()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.request, b.cancel = nil, nil
}

// Build returns a request in net/http's form. It may be kept.
func Build(line queue.Line, fields []wire.Field) *http.Request {
	target := strings.Clone(line.Target)
	u, err := url.ParseRequestURI(target)
	if err != nil { // net/http does not take it
		u = &url.URL{Path: target}
	}
	h := make(http.Header, len(fields))
	for _, f := range fields {
		h.Add(string(f.Name), string(f.Value))
	}
	return &http.Request{
		Method: strings.Clone(line.Method), RequestURI: target, URL: u, Host: strings.Clone(line.Host), Header: h, Body: http.NoBody,
		Proto: fmt.Sprintf("HTTP/%d.%d", line.Major, line.Minor), ProtoMajor: line.Major, ProtoMinor: line.Minor, RemoteAddr: line.Remote,
	}
}
