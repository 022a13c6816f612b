package http2client_test

import (
	"errors"
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/transport"
	"github.com/queue-proxy/queue-proxy/pkg/transport/http2/http2conn"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// The codes are from gRPC's PROTOCOL-HTTP2, section "Errors".
func TestResetCodeSetsGRPCStatus(t *testing.T) {
	for code, want := range map[http2.ErrCode]int{
		http2.ErrCodeNo:                 13,
		http2.ErrCodeProtocol:           13,
		http2.ErrCodeInternal:           13,
		http2.ErrCodeFlowControl:        13,
		http2.ErrCodeSettingsTimeout:    13,
		http2.ErrCodeFrameSize:          13,
		http2.ErrCodeRefusedStream:      14,
		http2.ErrCodeCancel:             1,
		http2.ErrCodeCompression:        13,
		http2.ErrCodeConnect:            13,
		http2.ErrCodeEnhanceYourCalm:    8,
		http2.ErrCodeInadequateSecurity: 7,
		http2.ErrCodeHTTP11Required:     13,
	} {
		a := newPeers(t, script{headers: func(p *peer, f *http2.MetaHeadersFrame) { _ = p.WriteRSTStream(f.StreamID, code) }})
		c, _ := newCall(http.MethodPost)
		_, err := c.Do(newClient(t, a))
		harness.Equal(t, transport.FaultOf(err), transport.FaultReset, code)
		reset, ok := errors.AsType[*http2conn.ResetError](err)
		if !ok {
			t.Fatalf("%v: got %v, want a ResetError", code, err)
		}
		harness.Equal(t, reset.GRPCStatus(), want, code)
	}
}
