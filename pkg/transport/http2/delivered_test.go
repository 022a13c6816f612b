package http2_test

import (
	"net/http"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// Go's HTTP/2 client resets a stream after Content-Length bytes if the last byte was sent without
// END_STREAM.
func TestResetAfterCompleteContentSucceeds(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		head   []string
		body   string
		want   observation.Reason
	}{
		"complete":         {http.MethodGet, []string{":status", "200", "content-length", "3"}, "abc", observation.OK},
		"empty":            {http.MethodGet, []string{":status", "200", "content-length", "0"}, "", observation.OK},
		"HEAD":             {http.MethodHead, []string{":status", "200", "content-length", "3"}, "", observation.OK},
		"204":              {http.MethodGet, []string{":status", "204"}, "", observation.OK},
		"304":              {http.MethodGet, []string{":status", "304", "content-length", "3"}, "", observation.OK},
		"incomplete":       {http.MethodGet, []string{":status", "200", "content-length", "4"}, "abc", observation.ClientGone},
		"unknown length":   {http.MethodGet, []string{":status", "200"}, "abc", observation.ClientGone},
		"announced fields": {http.MethodGet, []string{":status", "200", "content-length", "3", "trailer", "a"}, "abc", observation.ClientGone},
	} {
		t.Run(name, func(t *testing.T) {
			a := newFrameApp(t, func(s *appStream) {
				s.respond(false, c.head...)
				if c.body != "" {
					_ = s.WriteData(s.id, false, []byte(c.body))
				}
			})
			cl := connect(t, a.proxy)
			id := cl.send(request(c.method, "/"))
			cl.awaitContent(id, len(c.body))
			harness.NoError(t, cl.WriteRSTStream(id, xhttp2.ErrCodeCancel))
			o := harness.Receive(t, a.observations, "observation")
			harness.Equal(t, o.Reason, c.want, "reason")
			harness.Equal(t, o.Out, int64(len(c.body)), "bytes of content")
		})
	}
}

// awaitContent reads the header section of a response and n bytes of its content.
func (c *client) awaitContent(id uint32, n int) {
	c.Helper()
	for headed := false; !headed || n > 0; {
		f, err := c.ReadFrame()
		harness.NoError(c, err)
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *xhttp2.MetaHeadersFrame:
			headed = true
		case *xhttp2.DataFrame:
			n -= len(f.Data())
		}
	}
}
