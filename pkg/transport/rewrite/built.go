package rewrite

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http1/wire"
)

// Built holds an [http.Request] that is built on first use, because it is seldom needed. The zero value is ready to
// use. Any goroutine may call Leave.
type Built struct {
	mu      sync.Mutex
	request *http.Request
	cancel  context.CancelFunc // cancels the context of request
}

// Get returns the request. The first call creates it with build. gone reports whether the client has disconnected.
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

// Leave cancels the context of the request. It is called when the client disconnects. If the request is built after
// that, Get calls gone, which reports the disconnect.
func (b *Built) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
}

// Reset cancels and removes the request.
func (b *Built) Reset() {
	b.Leave()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.request, b.cancel = nil, nil
}

// Build returns an [http.Request] with the given properties and fields. The result does not refer to the memory of
// the arguments, except for line.Remote.
func Build(line transport.Line, fields []wire.Field) *http.Request {
	target := strings.Clone(line.Target)
	u, err := url.ParseRequestURI(target)
	if err != nil { // net/http does not accept the target
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
