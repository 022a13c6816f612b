package http2_test

import (
	"fmt"
	"net/http"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

var resetCodes = []struct {
	code   xhttp2.ErrCode
	client xhttp2.ErrCode // code that the client receives
}{
	{xhttp2.ErrCodeNo, xhttp2.ErrCodeInternal}, // the response is incomplete
	{xhttp2.ErrCodeProtocol, xhttp2.ErrCodeProtocol},
	{xhttp2.ErrCodeInternal, xhttp2.ErrCodeInternal},
	{xhttp2.ErrCodeFlowControl, xhttp2.ErrCodeFlowControl},
	{xhttp2.ErrCodeRefusedStream, xhttp2.ErrCodeRefusedStream},
	{xhttp2.ErrCodeCancel, xhttp2.ErrCodeCancel},
	{xhttp2.ErrCodeCompression, xhttp2.ErrCodeCompression},
	{xhttp2.ErrCodeConnect, xhttp2.ErrCodeConnect},
	{xhttp2.ErrCodeEnhanceYourCalm, xhttp2.ErrCodeEnhanceYourCalm},
	{xhttp2.ErrCodeInadequateSecurity, xhttp2.ErrCodeInadequateSecurity},
	{xhttp2.ErrCodeHTTP11Required, xhttp2.ErrCodeHTTP11Required},
}

// See docs/promises.md 3.12.
func TestAppResetIsForwarded(t *testing.T) {
	for _, c := range resetCodes {
		for _, contentType := range []string{"text/plain", "application/grpc"} {
			t.Run(fmt.Sprint(c.code, " ", contentType), func(t *testing.T) {
				a := newFrameApp(t, func(s *appStream) { _ = s.WriteRSTStream(s.id, c.code) })
				cl := connect(t, a.proxy)
				got := cl.receive(cl.send(request("POST", "/", [2]string{"content-type", contentType})))
				harness.Equal(t, got, fmt.Sprintf("\nbody \"\" reset %v", c.client), "response")
				o := harness.Receive(t, a.observations, "observation")
				harness.Equal(t, o.Reason, observation.AppReset, "reason")
				harness.Equal(t, o.Status, http.StatusBadGateway, "status of the reason")
				harness.Equal(t, o.Reset, true, "reset")
			})
		}
	}
}

// A CANCEL after the client's deadline is not a failure of the user container.
func TestAppCancelAfterGRPCTimeoutIsClientGone(t *testing.T) {
	for _, c := range []struct {
		timeout string
		code    xhttp2.ErrCode
		want    observation.Reason
	}{
		{"1n", xhttp2.ErrCodeCancel, observation.ClientGone},
		{"8H", xhttp2.ErrCodeCancel, observation.AppReset},
		{"1n", xhttp2.ErrCodeInternal, observation.AppReset},
	} {
		t.Run(fmt.Sprint(c.timeout, " ", c.code), func(t *testing.T) {
			a := newFrameApp(t, func(s *appStream) { _ = s.WriteRSTStream(s.id, c.code) })
			cl := connect(t, a.proxy)
			got := cl.receive(cl.send(request("POST", "/", [2]string{"content-type", "application/grpc"}, [2]string{"grpc-timeout", c.timeout})))
			harness.Equal(t, got, fmt.Sprintf("\nbody \"\" reset %v", c.code), "response")
			o := harness.Receive(t, a.observations, "observation")
			harness.Equal(t, o.Reason, c.want, "reason")
			harness.Equal(t, o.Status, c.want.Status(), "status in the log")
		})
	}
}

// An informational response is not the beginning of the final response (RFC 9110 section 15.2).
func TestAppResetAfterInterimResponseIsForwarded(t *testing.T) {
	a := newFrameApp(t, func(s *appStream) {
		s.respond(false, ":status", "103")
		_ = s.WriteRSTStream(s.id, xhttp2.ErrCodeRefusedStream)
	})
	cl := connect(t, a.proxy)
	got := cl.receive(cl.send(request("POST", "/")))
	harness.Equal(t, got, "103 []\nbody \"\" reset REFUSED_STREAM", "response")
}
